"""What an export's tasks do: rows of some fragments into one Parquet file, which is there whole or not at all."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet

from tiltyard.pipeline.sources.filesystem import is_remote, local_path, open_store
from tiltyard.pipeline.table_location import TableLocation, scan_fragments
from tiltyard.pipeline.task_errors import RefusedError


@dataclass(frozen=True, slots=True)
class Export:
    """What all tasks of an export share: `scan` are options of pylance's scanner, `schema` is that of the files."""

    location: TableLocation
    version: int
    branch: str | None
    scan: Mapping[str, Any]
    schema: pa.Schema
    compression: str
    storage: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """One file, and the fragments whose rows it holds; without any, it has the columns alone."""

    path: str
    fragments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written: its name, rows, and bytes."""

    name: str
    rows: int
    size: int


def export_part(export: Export, part: Part) -> Exported:
    """Write a file; done twice, it is there once. Runs in a task. Raises RefusedError for a type that Parquet lacks."""
    dataset = export.location.open(export.version, export.branch)
    rows = 0
    with _whole(part.path, export.storage) as file:
        try:
            with pyarrow.parquet.ParquetWriter(file, export.schema, compression=export.compression) as writer:
                for batch in scan_fragments(dataset, part.fragments, **export.scan) if part.fragments else ():
                    writer.write_batch(batch)
                    rows += batch.num_rows
        except pa.ArrowNotImplementedError as error:
            raise RefusedError(f"Parquet cannot hold a column: {error}. Choose others with --columns.") from error
        size = file.stat().st_size
    return Exported(part.path.rpartition("/")[2], rows, size)


@contextmanager
def _whole(path: str, storage: Mapping[str, str]) -> Iterator[Path]:
    """A local file to write, which becomes the one at `path` when it is complete."""
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="tiltyard-") as folder:
            making = Path(folder) / "part"
            yield making
            store, key = open_store(path, storage)
            obstore.put(store, key, making)
        return
    target = local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    making = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield making
        making.replace(target)
    finally:
        making.unlink(missing_ok=True)
