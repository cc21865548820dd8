"""Tasks of an export: write the rows of some fragments as one Parquet file, atomically."""

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
class ExportSpec:
    """The export, as all its tasks share it: `scan` are options of pylance's scanner, `schema` is that of the files."""

    location: TableLocation
    version: int
    branch: str | None
    scan: Mapping[str, Any]
    schema: pa.Schema
    compression: str
    storage: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExportPart:
    """A file to write, and the fragments whose rows it holds; without any fragment, it has the columns but no rows."""

    path: str
    fragments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file that is written: its name, rows, and size in bytes. Checkpoints and the manifest hold it as JSON."""

    name: str
    rows: int
    size: int


def export_part(spec: ExportSpec, part: ExportPart) -> ExportedFile:
    """Write a file. Idempotent. Raises RefusedError for a type that Parquet lacks."""
    dataset = spec.location.open(spec.version, spec.branch)
    rows = 0
    with _atomic_file(part.path, spec.storage) as file:
        try:
            with pyarrow.parquet.ParquetWriter(file, spec.schema, compression=spec.compression) as writer:
                for batch in scan_fragments(dataset, part.fragments, **spec.scan) if part.fragments else ():
                    writer.write_batch(batch)
                    rows += batch.num_rows
        except pa.ArrowNotImplementedError as error:
            raise RefusedError(f"Parquet cannot hold a column: {error}. Choose others with --columns.") from error
        size = file.stat().st_size
    return ExportedFile(part.path.rpartition("/")[2], rows, size)


@contextmanager
def _atomic_file(path: str, storage: Mapping[str, str]) -> Iterator[Path]:
    """Yield a temporary local file, which is uploaded or moved to `path` when the block ends without an error."""
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="tiltyard-") as folder:
            temporary = Path(folder) / "part"
            yield temporary
            store, key = open_store(path, storage)
            obstore.put(store, key, temporary)
        return
    target = local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
