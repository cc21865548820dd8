"""Export job: write a version of a table as Parquet files, and a manifest once all of them are written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.blob_columns import check_no_blobs, is_blob
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.export.tasks import ExportedFile, ExportPart, ExportSpec, export_part
from tiltyard.pipeline.jobs import ColumnNames, job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.sources.filesystem import absolute_path, list_files, write_file
from tiltyard.pipeline.spark_tasks import group_for_tasks, run_tasks
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.task_errors import clean_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST = "_SUCCESS"
ROWS_PER_FILE = 1_000_000
_CHECKPOINT_KEY = "version"


@job("export", lazy=True)
def export(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    table: Annotated[str, "The table to read."],
    destination: Annotated[str, "The folder to write, local or on an object store; it has to be empty."],
    *,
    version: Annotated[int | None, "The version to export [default: the latest]."] = None,
    tag: Annotated[str | None, "The tag of the version to export."] = None,
    branch: Annotated[str | None, "The branch to export [default: main]."] = None,
    filter: Annotated[str | None, "SQL condition: only rows that meet it."] = None,  # noqa: A002  # Lance's own name
    columns: Annotated[list[str], "Only these columns: a,b.", ColumnNames()] = [],  # noqa: B006  # the registry copies it
    format: Annotated[Literal["parquet"], "The files' format."] = "parquet",  # noqa: A002  # as of `ingest`
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"], "The compression of the files."
    ] = "zstd",
    rows_per_file: Annotated[int, "About how many rows a file holds; files hold whole fragments."] = ROWS_PER_FILE,
) -> Mapping[str, object]:
    """Write a version of a table as Parquet files.

    A file `_SUCCESS` is written last: it lists the others with their rows, and names the version.

    \b
    Example:
      tiltyard job export --uri http://127.0.0.1:2333 films s3://lake/films --filter 'year >= 2000'
    """
    if rows_per_file < 1:
        raise InvalidInputError("A file holds at least one row: set rows_per_file to 1 or more.")
    destination = absolute_path(destination)
    target = catalog_client.table(catalog, table)
    pinned = run.checkpoints().get(_CHECKPOINT_KEY)
    dataset = target.dataset(int(pinned) if pinned else (version if version is not None else tag), branch)
    if pinned is None:
        _check_empty(destination, dict(catalog.storage))
        run.save_checkpoint(_CHECKPOINT_KEY, str(dataset.version))
    scan: dict[str, Any] = {"columns": columns or None, "filter": filter}
    blobs = _blob_columns(dataset.schema, columns or dataset.schema.names)
    try:
        schema = dataset.scanner(**scan).projected_schema
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"These columns, or rows, of {table} cannot be read: {clean_message(error)}."
        ) from error
    schema = pa.schema([pa.field(field.name, pa.large_binary()) if field.name in blobs else field for field in schema])
    spec = ExportSpec(
        target.location(), dataset.version, branch, scan, schema, compression, dict(catalog.storage), blobs
    )
    return _write_parts(run, spark, spec, _plan_parts(dataset, destination.rstrip("/"), rows_per_file), destination)


def _blob_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of blobs among these. Raises RefusedError for blobs within structs and lists."""
    blobs = tuple(field.name for field in schema if field.name in columns and is_blob(field))
    check_no_blobs(schema, [name for name in columns if name not in blobs])
    return blobs


def _write_parts(
    run: Run, spark: SparkSession | LazySession, spec: ExportSpec, parts: Sequence[ExportPart], destination: str
) -> Mapping[str, object]:
    """Write the files that no earlier driver has written, then the manifest; return the figures."""
    checkpoints = run.checkpoints()
    files = {
        part.path: ExportedFile(**json.loads(checkpoints[part.path])) for part in parts if part.path in checkpoints
    }
    missing = [part for part in parts if part.path not in files]

    def handle_result(position: int, file: ExportedFile) -> None:
        path = missing[position].path
        run.save_checkpoint(path, json.dumps(asdict(file)))
        files[path] = file
        rows, size = sum(file.rows for file in files.values()), sum(file.size for file in files.values())
        run.progress(rows=rows, bytes=size, tasks=len(files), tasks_total=len(parts))

    run_tasks(spark, run, partial(export_part, spec), missing, on_result=handle_result, name=f"export {run.id}")
    run.check()
    written = [files[part.path] for part in parts]
    rows, size = sum(file.rows for file in written), sum(file.size for file in written)
    figures = {"version": spec.version, "rows": rows, "bytes": size}
    manifest = {**figures, "branch": spec.branch, "files": [asdict(file) for file in written]}
    write_file(f"{destination.rstrip('/')}/{MANIFEST}", json.dumps(manifest, indent=1).encode(), spec.storage)
    return {**figures, "files": len(written)}


def _plan_parts(dataset: lance.LanceDataset, destination: str, rows_per_file: int) -> list[ExportPart]:
    """Plan a file for each group of neighbouring fragments; for an empty table, one without rows."""
    rows = {fragment.fragment_id: fragment.metadata.num_rows for fragment in dataset.get_fragments()}
    groups = group_for_tasks(rows.items(), rows_per_file, 1) or [()]
    return [ExportPart(f"{destination}/part-{number:05}.parquet", group) for number, group in enumerate(groups)]


def _check_empty(destination: str, storage: Mapping[str, str]) -> None:
    """Raise RefusedError for a folder that holds files: readers of it would read those as well."""
    if files := list_files(destination, storage, missing_ok=True):
        raise RefusedError(f"{destination} holds {files[0].path}: name an empty folder.")
