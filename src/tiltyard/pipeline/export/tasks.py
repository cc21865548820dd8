"""Tasks that write tables elsewhere: rows of some fragments as one Parquet file, or the files of a whole table.

A scan returns where blobs are stored. Their bytes are read by the addresses of their rows, a bounded number at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import obstore
import pyarrow as pa
import pyarrow.parquet

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.filesystem import is_remote, local_path, open_store
from tiltyard.pipeline.table_location import TableLocation, scan_fragments
from tiltyard.runtime.durability import Durability, atomic_file

BLOB_ROWS = 1024
"""Rows of a table with blobs that are looked at once."""
BLOB_BYTES = 32 << 20
"""Bytes of blobs that are read at once; a larger blob is read alone."""
_MAX_BLOB_BYTES = (1 << 31) - 1
_EXTERNAL = 3
"""The kind of a blob that is a file elsewhere, in Lance's descriptors."""


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
    blobs: tuple[str, ...] = ()
    """The columns of `schema` that hold blobs, which the files have as bytes."""


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
                for batch in _read_batches(spec, dataset, part.fragments) if part.fragments else ():
                    writer.write_batch(batch)
                    rows += batch.num_rows
        except pa.ArrowNotImplementedError as error:
            raise RefusedError(f"Parquet cannot hold a column: {error}. Choose others with --columns.") from error
        size = file.stat().st_size
    return ExportedFile(part.path.rpartition("/")[2], rows, size)


def _read_batches(spec: ExportSpec, dataset: lance.LanceDataset, fragments: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of fragments with the bytes of their blobs. Raises RefusedError for one that is not to be read."""
    if not spec.blobs:
        yield from scan_fragments(dataset, fragments, **spec.scan)
        return
    chosen = frozenset(fragments)
    selected = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in chosen]
    scan = {**spec.scan, "columns": spec.schema.names, "batch_size": BLOB_ROWS}
    for batch in dataset.scanner(fragments=selected, with_row_address=True, **scan).to_batches():
        sizes = [sum(row) for row in zip(*(_blob_sizes(batch.column(name), name) for name in spec.blobs), strict=True)]
        for start, end in _groups(sizes):
            yield _with_bytes(spec, dataset, batch.slice(start, end - start))


def _blob_sizes(descriptors: pa.Array, name: str) -> list[int]:
    """Return the sizes of blobs. Raises RefusedError for one elsewhere, or too large for a Parquet file."""
    entries = descriptors.to_pylist()
    if any(entry and entry.get("kind") == _EXTERNAL for entry in entries):
        raise RefusedError(f"A blob of '{name}' is a file outside the table, which is not read: leave the column out.")
    sizes = [int(entry["size"]) if entry else 0 for entry in entries]
    if (largest := max(sizes, default=0)) > _MAX_BLOB_BYTES:
        raise RefusedError(f"Parquet holds no value of {largest} bytes, as '{name}' has one: leave the column out.")
    return sizes


def _groups(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows whose blobs take up to `BLOB_BYTES` together, or are a single one."""
    start = size = 0
    for end, row in enumerate(sizes):
        if end > start and size + row > BLOB_BYTES:
            yield start, end
            start, size = end, 0
        size += row
    if sizes:
        yield start, len(sizes)


def _with_bytes(spec: ExportSpec, dataset: lance.LanceDataset, rows: pa.RecordBatch) -> pa.RecordBatch:
    addresses = rows.column("_rowaddr").to_pylist()
    columns = []
    for field in spec.schema:
        column = rows.column(field.name)
        if field.name in spec.blobs:
            wanted = [address for address, entry in zip(addresses, column.is_valid().to_pylist(), strict=True) if entry]
            path = f"`{field.name}`"
            found = dict(dataset.read_blobs(path, addresses=wanted, preserve_order=True)) if wanted else {}
            column = pa.array([found.get(address) for address in addresses], field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=spec.schema)


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
    Durability().make_folder(str(target.parent))
    with atomic_file(target) as temporary:
        yield temporary


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A table to copy: the location and the version of it, and the folder that the server has chosen for its copy."""

    source: str
    version: int
    target: str


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """Why a table could not be copied; None if it was."""

    error: str | None = None


def copy_part(storage: Mapping[str, str], part: CopyPart) -> CopyOutcome:
    """Copy a table's files. A retried task finds what one before has written, which is the same.

    One table that cannot be copied does not fail the others, so errors are the outcome.
    """
    options = dict(storage) or None
    try:
        source = lance.dataset(part.source, part.version, storage_options=options)
        source.deep_clone(part.target, part.version, storage_options=options)
    except (OSError, ValueError, RuntimeError) as error:
        if _has_table(part.target, options):
            return CopyOutcome()
        return CopyOutcome(str(error).splitlines()[0] if str(error) else type(error).__name__)
    return CopyOutcome()


def _has_table(location: str, options: Mapping[str, str] | None) -> bool:
    try:
        lance.dataset(location, storage_options=dict(options or {}) or None)
    except (OSError, ValueError, RuntimeError):
        return False
    return True
