"""Read the transactions that made a table's versions: for the server, the catalog in process and the pipeline.

pylance 14.0.2 raises TypeError for the commit of a compaction that remapped an index, in `read_transaction` as in
`get_transactions`: its Rust side makes a `LanceOperation.RewrittenIndex` of the two ids alone, and the dataclass wants
three fields more. Importing this module gives those three a default. Nothing in Tiltyard reads them, and no commit
is made of a transaction that was read. A test says which versions of pylance need it.

Transactions are read one by one, newest first: `get_transactions` takes ten times as long for each, and fails as a
whole where one of them cannot be read. pylance borrows a dataset mutably for either: another thread that uses it at
that moment gets a RuntimeError, so a handle of its own is read, since datasets are shared between requests.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from lance import LanceOperation

if TYPE_CHECKING:
    import lance
    from lance.dataset import Transaction
    from lance.fragment import FragmentMetadata
    from numpy.typing import NDArray

_FRAGMENT_SHIFT = np.uint64(32)
_OFFSET_BITS = np.uint64(0xFFFF_FFFF)
_PASSED_BY_RUST = 3
"""Arguments that pylance gives a RewrittenIndex: itself and the two ids."""


def _default_missing_fields() -> None:
    """Let a RewrittenIndex be made of its two ids; does nothing where pylance has defaults itself."""
    constructor: Any = LanceOperation.RewrittenIndex.__init__
    if constructor.__defaults__ is None:
        constructor.__defaults__ = (None,) * (constructor.__code__.co_argcount - _PASSED_BY_RUST)


_default_missing_fields()


def read_transaction(dataset: lance.LanceDataset, version: int) -> Transaction | None:
    """Return the transaction that made a version of the dataset's branch.

    None where the version was cleaned up, or its transaction is not kept.
    """
    try:
        return _read(dataset, version)
    except _GoneError:
        return None


def read_transactions(dataset: lance.LanceDataset, since: int = 0) -> Iterator[tuple[int, Transaction]]:
    """Yield versions after `since` with their transactions, newest first, back to the first that was cleaned up.

    Versions without a transaction are left out.
    """
    for version in range(int(dataset.version), max(0, since), -1):
        try:
            transaction = _read(dataset, version)
        except _GoneError:
            return
        if transaction is not None:
            yield version, transaction


class _GoneError(Exception):
    """The version is not there any more."""


def _read(dataset: lance.LanceDataset, version: int) -> Transaction | None:
    try:
        return copy.copy(dataset).read_transaction(version)
    except (OSError, ValueError) as error:
        if not _is_missing(error):
            raise
        raise _GoneError from error


def open_version(dataset: lance.LanceDataset, version: int | tuple[str, int]) -> lance.LanceDataset | None:
    """Open another version of a table (with a branch: of that one); None where it was cleaned up."""
    try:
        return dataset.checkout_version(version)
    except (OSError, ValueError) as error:
        if not _is_missing(error):
            raise
        return None


def _is_missing(error: Exception) -> bool:
    """Return whether Lance says that there is no such version: it raises OSError or ValueError for it."""
    return "not found" in str(error).lower()


def fragments_by_id(dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
    """Return the fragments of a version, by id."""
    return {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}


def get_fragment(dataset: lance.LanceDataset, number: int) -> lance.LanceFragment:
    """Return a fragment that exists."""
    fragment = dataset.get_fragment(number)
    assert fragment is not None
    return fragment


def split_by_fragment(
    addresses: NDArray[np.uint64],
) -> tuple[list[int], list[NDArray[np.uint64]], NDArray[np.intp]]:
    """Split sorted addresses of rows: the fragments' numbers, the rows' offsets in each, and where each starts."""
    numbers, starts = np.unique(addresses >> _FRAGMENT_SHIFT, return_index=True)
    offsets = np.split(addresses & _OFFSET_BITS, starts[1:]) if len(starts) else []
    return numbers.tolist(), offsets, starts


def field_ids(dataset: lance.LanceDataset, column: str) -> frozenset[int]:
    """Return the ids of a column's field and its descendants; empty for a missing column."""
    return frozenset(
        number for field in dataset.lance_schema.fields() if field.name() == column for number in ids_of_field(field)
    )


def field_ids_by_column(dataset: lance.LanceDataset) -> dict[str, frozenset[int]]:
    """Return the ids of each column's field and of its descendants, by the columns' names, in their order."""
    return {field.name(): frozenset(ids_of_field(field)) for field in dataset.lance_schema.fields()}


def files_by_field(fragment: FragmentMetadata, fields: Collection[int]) -> dict[int, str]:
    """Return the path of the file that holds each of these fields."""
    return {number: str(file.path) for file in fragment.files for number in file.fields if number in fields}


def ids_of_field(field: Any) -> list[int]:
    """Return the ids of a field of Lance's and of its descendants."""
    return [field.id(), *(number for child in field.children() for number in ids_of_field(child))]


def is_same_fragment(left: FragmentMetadata, right: FragmentMetadata) -> bool:
    """Return whether two fragments of one id have the same content: the same files and overlays, and deleted rows."""
    return left.files == right.files and left.deletion_file == right.deletion_file and left.overlays == right.overlays
