"""Read which rows of a fragment are deleted, at the cost of its deletion file and not of its rows; delete more of them.

pylance has no call that reads it. A deletion file is an Arrow file of row numbers, or, of many, a Roaring bitmap in the
portable format (https://github.com/RoaringBitmap/RoaringFormatSpec).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tiltyard.change_feed.table_history import get_fragment, split_by_fragment
from tiltyard.runtime.client_arrow.reading import read_table
from tiltyard.runtime.durability import (
    BITMAP_BYTES,
    MAX_ARRAY_VALUES,
    MIN_CONTAINERS_WITH_OFFSETS,
    WITH_RUNS,
    WITHOUT_RUNS,
)
from tiltyard.runtime.pool import run_together

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileSession
    from lance.fragment import FragmentMetadata
    from numpy.typing import NDArray

    Positions = NDArray[np.uint32]

_MAX_THREADS = 16
"""Deletion files that are written at the same time: each waits for one response of an object store."""


def write_deletions(
    dataset: lance.LanceDataset, addresses: NDArray[np.uint64]
) -> tuple[list[FragmentMetadata], list[int]]:
    """Write deletion files for rows by their addresses; nothing is committed.

    Returns the fragments with these files, and the ids of the fragments that have no row left.
    """
    if not len(addresses):
        return [], []
    numbers, offsets, _ = split_by_fragment(np.sort(addresses))

    def delete(rows: tuple[int, NDArray[np.uint64]]) -> FragmentMetadata | None:
        return get_fragment(dataset, rows[0]).delete_rows(rows[1].tolist())

    remaining = run_together(delete, zip(numbers, offsets, strict=True), _MAX_THREADS)
    emptied = [number for number, fragment in zip(numbers, remaining, strict=True) if fragment is None]
    return [fragment for fragment in remaining if fragment is not None], emptied


def read_deletions(dataset: lance.LanceDataset, fragment: lance.LanceFragment, branch: str | None) -> Positions:
    """Return the positions of the deleted rows of a fragment, sorted.

    Deletion files of a branch, and of a table that was cloned, lie under another folder than the table's: there the
    addresses of the remaining rows are scanned instead.
    """
    file = fragment.metadata.deletion_file
    if file is None:
        return np.empty(0, np.uint32)
    if branch is not None or file.base_id is not None:
        return _scan_deletions(dataset, fragment)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "deletions"
        session: LanceFileSession = dataset.new_file_session()  # type: ignore[no-untyped-call]  # pylance's
        session.download_file(str(fragment.deletion_file()), str(local))
        data = local.read_bytes()
    return parse_array(data) if file.file_type == "array" else parse_bitmap(data)


def _scan_deletions(dataset: lance.LanceDataset, fragment: lance.LanceFragment) -> Positions:
    addresses = dataset.scanner(columns=[], with_row_address=True, fragments=[fragment]).to_table()["_rowaddr"]
    is_deleted = np.ones(fragment.physical_rows, bool)
    is_deleted[addresses.to_numpy() & 0xFFFFFFFF] = False
    return np.flatnonzero(is_deleted).astype(np.uint32)


def parse_array(data: bytes) -> Positions:
    """Parse a deletion file of the type `array`; return the positions, sorted. Raises ValueError, pa.ArrowException.

    A client may have written it: what it becomes in memory is bounded.
    """
    rows = read_table(data, is_file=True).column(0).to_numpy()
    return np.sort(rows.astype(np.uint32))


def parse_bitmap(data: bytes) -> Positions:
    """Parse a deletion file of the type `bitmap`; return the positions, sorted. Raises ValueError."""
    cookie = _number(data, 0, "<u4")
    has_runs = cookie & 0xFFFF == WITH_RUNS
    if not has_runs and cookie != WITHOUT_RUNS:
        raise ValueError("The deletion file is no Roaring bitmap.")
    count, place = (cookie >> 16) + 1 if has_runs else _number(data, 4, "<u4"), 4 if has_runs else 8
    is_run = np.zeros(count, bool)
    if has_runs:
        flags = np.frombuffer(data, np.uint8, -(-count // 8), place)
        is_run = np.unpackbits(flags, bitorder="little")[:count].astype(bool)
        place += len(flags)
    keys = np.frombuffer(data, "<u2", 2 * count, place).reshape(count, 2).astype(np.uint32)
    place += 4 * count
    if not has_runs or count >= MIN_CONTAINERS_WITH_OFFSETS:
        place += 4 * count  # where the containers begin: they follow one another
    parts = []
    for (key, last), run in zip(keys, is_run, strict=True):
        values, place = _parse_container(data, place, int(last) + 1, is_run=bool(run))
        parts.append(values + (key << np.uint32(16)))
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def _parse_container(data: bytes, place: int, count: int, *, is_run: bool) -> tuple[Positions, int]:
    """Parse the values of one container, below 65,536; return them, and where the next one begins."""
    if is_run:
        runs = np.frombuffer(data, "<u2", 2 * _number(data, place, "<u2"), place + 2).reshape(-1, 2).astype(np.uint32)
        values = np.concatenate([np.arange(start, start + more + 1, dtype=np.uint32) for start, more in runs])
        return values, place + 2 + 4 * len(runs)
    if count <= MAX_ARRAY_VALUES:
        return np.frombuffer(data, "<u2", count, place).astype(np.uint32), place + 2 * count
    bits = np.unpackbits(np.frombuffer(data, np.uint8, BITMAP_BYTES, place), bitorder="little")
    return np.flatnonzero(bits).astype(np.uint32), place + BITMAP_BYTES


def _number(data: bytes, place: int, kind: str) -> int:
    return int(np.frombuffer(data, kind, 1, place)[0])
