"""Read blobs: values that Lance stores apart from their rows, whole or in ranges of bytes.

A scan returns where a blob is stored. Its bytes are read by row id, from a handle that is kept with the version, so
that the ranges of one blob cost one look-up. A blob whose descriptor names a file elsewhere is refused: whoever can
write the table's files could name any file that the server can read.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.columns.blob_columns import is_blob
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.model.operations import ArrowAnswer, BytesAnswer, StreamedAnswer, StreamedValue, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import ARROW_STREAM, models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import find_table
from tiltyard.tables.query.integer_filters import ROW_ID
from tiltyard.tables.query.policy_enforcement import open_with_policies, redact_errors
from tiltyard.tables.query.scanners import make_scanner
from tiltyard.tables.schema.field_paths import arrow_field, path_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import lance
    from lance import BlobFile

    from tiltyard.context import Context
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.tables.query.policy_enforcement import PolicyScope

MAX_BLOBS = 10_000
"""Blobs of one request: their row ids are a list in a filter."""
MAX_BLOB_BYTES = 64 << 20
"""Bytes of a blob that is held in memory, to be returned in the format that the client chooses."""
BATCH_BYTES = 8 << 20
"""Bytes of blobs that are read at once; a larger blob is read alone."""
_FILE = "file://"
_EPOCH = datetime.fromtimestamp(0, UTC)
_EXTERNAL = 3
"""The kind of a blob that is a file elsewhere, in Lance's descriptors."""


@operation(needs=on_table(Privilege.READ, enforces_policies=True), changes=False, query=True)
def fetch_table_blobs(ctx: Context, request: models.FetchTableBlobsRequest) -> ArrowAnswer | StreamedAnswer:
    """Return the blobs of a column in some rows, one row for each id, in the order of the ids; null for a null.

    With a blob above `MAX_BLOB_BYTES` the response is a stream, in which the bytes of large ones are read as they go.

    Raises what opening the table raises, TableColumnNotFoundError, InvalidInputError (no column of blobs, no such row,
    too many blobs), PermissionDeniedError (a masked column, a file elsewhere).
    """
    row_ids = request.row_ids
    if len(row_ids) > MAX_BLOBS:
        raise InvalidInputError(f"One request fetches {MAX_BLOBS} blobs at most, not {len(row_ids)}.")
    column = _open_column(ctx, request)
    schema = pa.schema([pa.field(request.column, pa.large_binary())])
    if not row_ids:
        return ArrowAnswer(schema, [])
    sizes = column.sizes(row_ids)
    if any((size or 0) > MAX_BLOB_BYTES for size in sizes.values()):
        return StreamedAnswer(schema, _streamed(ctx, column, schema, row_ids, sizes), ARROW_STREAM)
    return ArrowAnswer(schema, _batches(ctx, column, schema, row_ids, sizes))


def _streamed(
    ctx: Context, column: _BlobColumn, schema: pa.Schema, row_ids: Sequence[int], sizes: dict[int, int | None]
) -> Iterator[pa.RecordBatch | StreamedValue]:
    """Yield the blobs in batches of bounded size, and those that are larger each by itself."""
    for is_large, group in groupby(row_ids, lambda row_id: (sizes[row_id] or 0) > BATCH_BYTES):
        if is_large:
            for row_id in group:
                yield StreamedValue(sizes[row_id] or 0, _reader(ctx, column, row_id))
        else:
            yield from _batches(ctx, column, schema, list(group), sizes)


def _reader(ctx: Context, column: _BlobColumn, row_id: int) -> Callable[[int, int], bytes]:
    """Return what reads a range of a blob, as long as the request has time."""
    blob = column.open(row_id)

    def read(offset: int, length: int) -> bytes:
        ctx.check_deadline()
        with lance_errors(column.dataset):
            return blob.read_range(offset, length)

    return read


def _batches(
    ctx: Context, column: _BlobColumn, schema: pa.Schema, row_ids: Sequence[int], sizes: dict[int, int | None]
) -> Iterator[pa.RecordBatch]:
    """Yield the blobs in batches of bounded size."""
    group: list[int] = []
    size = 0
    for row_id in row_ids:
        if group and size + (sizes[row_id] or 0) > BATCH_BYTES:
            ctx.check_deadline()
            yield column.read(group, schema)
            group, size = [], 0
        group.append(row_id)
        size += sizes[row_id] or 0
    ctx.check_deadline()
    yield column.read(group, schema)


@operation(needs=on_table(Privilege.READ, enforces_policies=True), changes=False, query=True)
def read_table_blob(ctx: Context, request: models.ReadTableBlobRequest) -> BytesAnswer:
    """Return one blob, to be read in ranges.

    lancedb 0.41 names the source of a blob's descriptor besides: the table's location, the time of its version, and
    whether the row's number is its address. Raises as `fetch_table_blobs` does, InvalidInputError for another version,
    PermissionDeniedError for another source.
    """
    if request.row_id is None:
        raise InvalidInputError("Name a row by its id.")
    if request.source_uri is not None:
        _check_source(find_table(ctx, request.id).location, request.source_uri)
    column = _open_column(ctx, request)
    if request.source_commit_micros is not None:
        _check_commit(column.dataset, request.source_commit_micros)
    row_id = column.row_id_at(request.row_id) if request.row_is_address else request.row_id
    size = column.sizes([row_id])[row_id]
    version = int(column.dataset.version)
    if size is None:
        return BytesAnswer(None, lambda offset, length: b"", version)
    return BytesAnswer(size, _reader(ctx, column, row_id), version)


def _check_source(location: str, source_uri: str) -> None:
    """Raise PermissionDeniedError for a source that is not this table: nothing else is read in its name."""
    if source_uri.removeprefix(_FILE).rstrip("/") != location.removeprefix(_FILE).rstrip("/"):
        raise PermissionDeniedError(
            "The blob's source is not this table, and the server follows no other: ask the table that has it."
        )


def _check_commit(dataset: lance.LanceDataset, micros: int) -> None:
    """Raise InvalidInputError where a version is not of the time that a descriptor names: a table was made anew."""
    created = dataset.get_version()["timestamp"]
    assert isinstance(created, datetime)
    if (created.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1) != micros:
        raise InvalidInputError(
            f"Version {dataset.version} is not of the time {micros} that the blob's descriptor has: query it again."
        )


def _open_column(ctx: Context, request: models.FetchTableBlobsRequest | models.ReadTableBlobRequest) -> _BlobColumn:
    """Open the column of a request, if policies let the principal read it."""
    if not request.column:
        raise InvalidInputError("Name a column of blobs.")
    table, scope = open_with_policies(ctx, request.id, Branch.parse(request.branch), request.version)
    key = _open_column, request.column  # to look at a field takes 0.3 ms
    known: tuple[str, ...] | None = table.snapshot.known(key)
    names = known or path_names(request.column)
    if scope is not None:
        scope.check_visible(names[0], "request")
    if known is None:
        with lance_errors(table.dataset):
            if not is_blob(arrow_field(table.dataset, request.column)):
                raise InvalidInputError(f"The column '{request.column}' holds no blobs: query it for its values.")
        table.snapshot.keep(key, names)
    return _BlobColumn(table.snapshot, quote_path(names), scope)


@dataclass(frozen=True, slots=True)
class _BlobColumn:
    """A column of blobs of one version, with what policies allow of its rows; `path` is quoted."""

    snapshot: CachedVersion
    path: str
    scope: PolicyScope | None

    @property
    def dataset(self) -> lance.LanceDataset:
        return self.snapshot.dataset

    @property
    def _row_filter(self) -> str | None:
        return None if self.scope is None else self.scope.policy.filter

    def _opened(self, row_id: int) -> BlobFile | None:
        """Return the handle of a blob that was opened before: a few hundred bytes, and no open file."""
        blob: BlobFile | None = self.snapshot.known((_BlobColumn, self.path, row_id))
        return blob

    def sizes(self, row_ids: Sequence[int]) -> dict[int, int | None]:
        """Return the sizes of blobs in bytes by row id, None for nulls.

        Raises InvalidInputError for a row that is missing or hidden, PermissionDeniedError for a file elsewhere.
        """
        opened = {row_id: self._opened(row_id) for row_id in set(row_ids)}
        if self._row_filter is None and None not in opened.values():
            return {row_id: blob.size() for row_id, blob in opened.items() if blob is not None}
        descriptors = self._descriptors(list(opened))
        if (missing := next((row_id for row_id in row_ids if row_id not in descriptors), None)) is not None:
            raise InvalidInputError(f"No row of this table has the id {missing}: query it again for its row ids.")
        if any(descriptor and descriptor.get("kind") == _EXTERNAL for descriptor in descriptors.values()):
            raise PermissionDeniedError(
                "This blob is a file outside the table, which the server does not follow: read it where it is."
            )
        return {row_id: None if entry is None else int(entry["size"]) for row_id, entry in descriptors.items()}

    def row_id_at(self, address: int) -> int:
        """Return the id of the row at an address. Raises InvalidInputError where none is."""
        found = self._select(f"_rowaddr = {address}", [])[ROW_ID].to_pylist()
        if not found:
            raise InvalidInputError(f"No row of this table is at the address {address}: query it again.")
        return int(found[0])

    def _descriptors(self, row_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        """Read Lance's descriptors of visible rows by row id; None for nulls."""
        rows = self._select(f"{ROW_ID} IN ({', '.join(map(str, row_ids))})", [self.path])
        column = next(array for name, array in zip(rows.column_names, rows.columns, strict=True) if name != ROW_ID)
        return dict(zip(rows[ROW_ID].to_pylist(), column.to_pylist(), strict=True))

    def _select(self, condition: str, columns: list[str]) -> pa.Table:
        """Read columns, and the row ids, of the visible rows that meet a condition. Raises Lance's errors."""
        if self._row_filter is not None:
            condition = f"({self._row_filter}) AND ({condition})"
        options = {"columns": columns, "filter": condition, "with_row_id": True}
        with redact_errors() if self.scope else nullcontext(), lance_errors(self.dataset):
            return make_scanner(self.dataset, options).to_table()

    def open(self, row_id: int) -> BlobFile:
        """Return the handle of a blob that `sizes` has found. Its ranges may be read by several threads."""
        if (opened := self._opened(row_id)) is not None:
            return opened
        with lance_errors(self.dataset):
            (blob,) = self.dataset.take_blobs(self.path, ids=[row_id], buffer_size=0)
        assert blob is not None
        self.snapshot.keep((_BlobColumn, self.path, row_id), blob)
        return blob

    def read(self, row_ids: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
        """Read whole blobs that `sizes` has found, in this order."""
        with lance_errors(self.dataset):
            blobs = [blob for _, blob in self.dataset.read_blobs(self.path, ids=list(row_ids), preserve_order=True)]
        return pa.RecordBatch.from_arrays([pa.array(blobs, pa.large_binary())], schema=schema)
