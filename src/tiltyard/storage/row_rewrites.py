"""Write what a delete or an update changes in a table's rows, and return Lance's transaction of it, not committed.

pylance gives the transaction of a merge without committing it, and none of these. Here it is made of the parts that it
has: a scan for the rows, new fragments, and deletion files. What that cannot do exactly as Lance does is left to Lance.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import RowIdSequence
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.change_feed.deletions import write_deletions
from tiltyard.change_feed.table_history import field_ids
from tiltyard.model.columns.blob_columns import is_stored_as_read
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.storage.errors import translate_error
from tiltyard.storage.writing import discard, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lance.fragment import FragmentMetadata
    from numpy.typing import NDArray

    from tiltyard.storage.storage import Storage

log = logging.getLogger("tiltyard.storage")

MAX_ROWS = 1 << 20
"""Rows of a change, whose numbers are held in memory: more of them are left to Lance."""
_ADDRESS, _ID = "_rowaddr", "_rowid"


class _LeftToLanceError(Exception):
    """A change that these parts do not do as Lance does."""


def delete_rows(dataset: lance.LanceDataset, predicate: str) -> tuple[lance.Transaction, int] | None:
    """Write the deletion files of a delete; return its transaction, and how many rows match.

    None where Lance has to do it: there are many rows, or there is an error, which its own delete then raises. Raises
    ServiceUnavailableError.
    """
    return _try(lambda: _delete_rows(dataset, predicate))


def update_rows(
    storage: Storage, base: str, dataset: lance.LanceDataset, updates: Mapping[str, str], predicate: str | None
) -> tuple[lance.Transaction, int] | None:
    """Write the new rows and the deletion files of an update; return its transaction, and how many rows match.

    `updates` are SQL expressions by column, `base` is the table's location. None as for `delete_rows`, and where a
    column's values are stored in another form than they are read in. Raises ServiceUnavailableError.
    """
    return _try(lambda: _update_rows(storage, base, dataset, updates, predicate))


def _try(work: Callable[[], tuple[lance.Transaction, int]]) -> tuple[lance.Transaction, int] | None:
    try:
        return work()
    except Exception as error:  # whatever it is, Lance's own change comes next, and says it
        translated = translate_error(error)
        if isinstance(translated, ServiceUnavailableError):
            raise
        log.info("a change of rows is left to Lance: %s", error)
        return None


def _delete_rows(dataset: lance.LanceDataset, predicate: str) -> tuple[lance.Transaction, int]:
    scanner = dataset.scanner(columns=[], filter=predicate, with_row_address=True)
    rows = _ChangedRows()
    for batch in scanner.to_batches():
        rows.add(batch)
    updated, removed = rows.delete_from(dataset)
    return lance.Transaction(dataset.version, lance.LanceOperation.Delete(updated, removed, predicate)), rows.count


def _update_rows(
    storage: Storage, base: str, dataset: lance.LanceDataset, updates: Mapping[str, str], predicate: str | None
) -> tuple[lance.Transaction, int]:
    scanner = _scan_updated(dataset, updates, predicate)
    rows = _ChangedRows()
    batches = rows.collect(scanner.to_batches(), dataset.schema)
    first = next(batches, None)
    new: list[FragmentMetadata] = []
    if first is not None:
        reader = pa.RecordBatchReader.from_batches(dataset.schema, _chain(first, batches))
        new = write_rows(storage, reader, dataset, base)
    try:
        updated, removed = rows.delete_from(dataset)
        if dataset.has_stable_row_ids:
            new = rows.with_ids(new)
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed,
            updated_fragments=updated,
            new_fragments=new,
            fields_for_preserving_frag_bitmap=[
                number for name in updates for number in sorted(field_ids(dataset, name))
            ],
            update_mode="rewrite_rows",
        )
        return lance.Transaction(dataset.version, operation), rows.count
    except BaseException:
        discard(storage, base, new)
        raise


def _chain(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _scan_updated(dataset: lance.LanceDataset, updates: Mapping[str, str], predicate: str | None) -> lance.LanceScanner:
    """Return a scan of the rows that match, with their new values."""
    schema: pa.Schema = dataset.schema
    if not set(updates) <= set(schema.names) or not all(map(_is_plain, schema)):
        raise _LeftToLanceError("not all columns can be computed here")
    columns = {name: updates.get(name, quote_path((name,))) for name in schema.names}
    scanner = _scanner(dataset, columns, predicate)
    types = {field.name: field.type for field in scanner.projected_schema}
    others = [name for name in updates if types[name] != schema.field(name).type]
    if not others:
        return scanner
    casts = {name: _cast(columns[name], schema.field(name).type) for name in others}
    return _scanner(dataset, columns | casts, predicate)


def _scanner(dataset: lance.LanceDataset, columns: dict[str, str], predicate: str | None) -> lance.LanceScanner:
    return dataset.scanner(
        columns=columns, filter=predicate, with_row_address=True, with_row_id=dataset.has_stable_row_ids
    )


_CASTS = {
    pa.bool_(): "Boolean",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint8(): "UInt8",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.string(): "Utf8",
    pa.large_string(): "LargeUtf8",
}
"""What DataFusion calls the types that values are cast to."""


def _cast(expression: str, target: pa.DataType) -> str:
    """Return an expression, which was checked to be one, cast to a column's type as Lance's update casts it."""
    if target not in _CASTS:
        raise _LeftToLanceError(f"a value cannot be cast to {target} here")
    return f"arrow_cast(({expression}), '{_CASTS[target]}')"


def _is_plain(field: pa.Field) -> bool:
    """Return whether a field's values are stored as they are read."""
    kind = field.type
    if not is_stored_as_read(field) or pa.types.is_dictionary(kind):
        return False
    return all(_is_plain(kind.field(at)) for at in range(kind.num_fields))


class _ChangedRows:
    """The rows that a change takes from where they are: their addresses, and their stable ids if the table has them."""

    def __init__(self) -> None:
        self._addresses: list[NDArray[np.uint64]] = []
        self._ids: list[NDArray[np.uint64]] = []
        self.count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a scanned batch. Raises _LeftToLanceError if there are too many."""
        self.count += batch.num_rows
        if self.count > MAX_ROWS:
            raise _LeftToLanceError(f"it changes more than {MAX_ROWS} rows")
        names = batch.schema.names
        self._addresses.append(batch[_ADDRESS].to_numpy())
        if _ID in names:
            self._ids.append(batch[_ID].to_numpy())

    def collect(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Add the rows of each batch; yield it with the columns of the table alone."""
        for batch in batches:
            if not batch.num_rows:
                continue
            self.add(batch)
            for field in schema:
                if not field.nullable and batch[field.name].null_count:
                    raise _LeftToLanceError(f"a value of {field.name} is null")
            yield pa.RecordBatch.from_arrays([batch[name] for name in schema.names], schema=schema)

    def delete_from(self, dataset: lance.LanceDataset) -> tuple[list[FragmentMetadata], list[int]]:
        """Write the deletion files; return the fragments with theirs, and the ids of fragments that lost all rows."""
        return write_deletions(dataset, np.concatenate(self._addresses)) if self.count else ([], [])

    def with_ids(self, fragments: Sequence[FragmentMetadata]) -> list[FragmentMetadata]:
        """Return written fragments with the stable ids that their rows had before."""
        if not fragments:
            return []
        ids = np.concatenate(self._ids)
        ends = np.cumsum([fragment.physical_rows for fragment in fragments])
        if ends[-1] != len(ids):
            raise _LeftToLanceError("not all rows were written")
        parts = np.split(ids, ends[:-1])
        return [
            replace(fragment, row_id_meta=RowIdSequence(pa.array(part)).to_inline_metadata())
            for fragment, part in zip(fragments, parts, strict=True)
        ]
