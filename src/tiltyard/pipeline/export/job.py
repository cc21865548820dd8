"""Export: a version of a table as Parquet files, with a manifest that is written when all of them are there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import lance
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.export.tasks import Export, Exported, Part, export_part
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.sources.filesystem import absolute_path, list_files, write_file
from tiltyard.pipeline.spark_tasks import run_tasks
from tiltyard.pipeline.table_location import Connection, check_no_blobs
from tiltyard.pipeline.task_errors import RefusedError, clean_message
from tiltyard.pipeline.version_diff import group_fragments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST = "_SUCCESS"
ROWS_PER_FILE = 1_000_000
_VERSION = "version"


@job("export")
def export(
    run: Run,
    where: Connection,
    spark: SparkSession,
    table: Annotated[str, "The table to read."],
    destination: Annotated[str, "The folder to write, local or of an object store; it has to be empty."],
    *,
    version: Annotated[int | None, "The version to write, if not the newest."] = None,
    tag: Annotated[str | None, "The tag whose version to write."] = None,
    branch: Annotated[str | None, "The branch to write, if not main."] = None,
    filter: Annotated[str | None, "Only rows for which this holds, in SQL."] = None,  # noqa: A002  # Lance's own name
    columns: Annotated[list[str], "Only these columns."] = [],  # noqa: B006  # the registry copies it
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"], "How the files are compressed."
    ] = "zstd",
    rows_per_file: Annotated[int, "About how many rows a file holds: whole fragments."] = ROWS_PER_FILE,
) -> Mapping[str, object]:
    """Write a version of a table as Parquet files.

    A file `_SUCCESS` is written last, and lists the others with their rows, and the version that they are of.

    \b
    Example:
      tiltyard job export --uri http://127.0.0.1:2333 films s3://lake/films --filter 'year >= 2000'
    """
    if rows_per_file < 1:
        raise InvalidInputError("A file holds at least one row: set rows_per_file to 1 or more.")
    destination = absolute_path(destination)
    found = catalog_client.table(where, table)
    pinned = run.checkpoints().get(_VERSION)
    dataset = found.dataset(int(pinned) if pinned else (version if version is not None else tag), branch)
    if pinned is None:
        _check_empty(destination, dict(where.storage))
        run.save_checkpoint(_VERSION, str(dataset.version))
    scan: dict[str, Any] = {"columns": columns or None, "filter": filter}
    check_no_blobs(dataset.schema, columns or None)
    try:
        schema = dataset.scanner(**scan).projected_schema
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"These columns, or rows, of {table} cannot be read: {clean_message(error)}."
        ) from error
    how = Export(found.location(), dataset.version, branch, scan, schema, compression, dict(where.storage))
    return _export(run, spark, how, _parts(dataset, destination.rstrip("/"), rows_per_file), destination)


def _export(
    run: Run, spark: SparkSession, how: Export, parts: Sequence[Part], destination: str
) -> Mapping[str, object]:
    kept = run.checkpoints()
    done = {part.path: Exported(**json.loads(kept[part.path])) for part in parts if part.path in kept}
    left = [part for part in parts if part.path not in done]

    def hear(position: int, exported: Exported) -> None:
        run.save_checkpoint(left[position].path, json.dumps(asdict(exported)))
        done[left[position].path] = exported
        figures = {"rows": sum(one.rows for one in done.values()), "bytes": sum(one.size for one in done.values())}
        run.progress(**figures, tasks=len(done), tasks_total=len(parts))

    run_tasks(spark, run, partial(export_part, how), left, on_result=hear, name=f"export {run.id}")
    run.check()
    files = [done[part.path] for part in parts]
    figures = {"version": how.version, "rows": sum(one.rows for one in files), "bytes": sum(one.size for one in files)}
    manifest = {**figures, "branch": how.branch, "files": [asdict(one) for one in files]}
    write_file(f"{destination.rstrip('/')}/{MANIFEST}", json.dumps(manifest, indent=1).encode(), how.storage)
    return {**figures, "files": len(files)}


def _parts(dataset: lance.LanceDataset, destination: str, rows_per_file: int) -> list[Part]:
    """Neighbouring fragments, about so many rows a file; a file without rows for a table without any."""
    rows = {one.fragment_id: one.metadata.num_rows for one in dataset.get_fragments()}
    groups = group_fragments(rows, rows_per_file, 1) or [()]
    return [Part(f"{destination}/part-{number:05}.parquet", group) for number, group in enumerate(groups)]


def _check_empty(destination: str, storage: Mapping[str, str]) -> None:
    """Raise RefusedError for a folder that holds files: readers of it would read those as well."""
    if found := list_files(destination, storage, missing_ok=True):
        raise RefusedError(f"{destination} holds {found[0].path}: name an empty folder.")
