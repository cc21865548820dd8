"""Any changes in any batches, with failures between them, leave the rows that a dictionary would have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.streams import target as stream_target
from tiltyard.pipeline.streams.batches import SEQUENCE, StreamBatch
from tiltyard.pipeline.streams.target import StreamOptions, StreamTable
from tiltyard.runtime.failpoints import FaultError, Point

Change = tuple[int, int | None]
"""A key and its new value, None to delete it."""

_numbers = itertools.count(1)
CHANGES = st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 99)), min_size=1, max_size=30)
FAULTS = st.lists(st.sampled_from([None, None, Point.BEFORE_RECORD, Point.AFTER_FINALIZE]), max_size=12)


def batch_of(changes: Sequence[Change], start: int, end: int) -> StreamBatch:
    """Return the changes from one position to another as a batch."""
    numbered = list(enumerate(changes))[start:end]

    def rows(columns: Mapping[str, list[int]]) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pydict(dict(columns))] if columns[SEQUENCE] else []

    upserts = [(number, key, value) for number, (key, value) in numbered if value is not None]
    deletes = [(number, key) for number, (key, value) in numbered if value is None]
    return StreamBatch(
        rows({name: [row[at] for row in upserts] for at, name in ((1, "id"), (2, "v"), (0, SEQUENCE))}),
        {"0": end},
        str,
        rows({name: [row[at] for row in deletes] for at, name in ((1, "id"), (0, SEQUENCE))}),
    )


def fail_at(faults: Iterator[Point | None]) -> Callable[[Point], None]:
    """Return what raises at the points of the faults: one for each batch, None for a batch without."""
    fault: Point | None = None

    def reach(point: Point) -> None:
        nonlocal fault
        if point is Point.BEFORE_RECORD:
            fault = next(faults, None)
        if point is fault:
            raise FaultError(point)

    return reach


def follow(films: Table, changes: Sequence[Change], size: int, on: tuple[str, ...]) -> None:
    """Apply what the table does not have yet, as a process that starts does."""
    target = StreamTable(LocalRun(), films, StreamOptions("model", on))
    position = (target.open() or {}).get("0", 0)
    while position < len(changes):
        end = min(len(changes), position + size)
        target.apply(batch_of(changes, position, end))
        position = end
    target.record_position(target.position, ends=True)


@pytest.mark.extended
@settings(max_examples=15, deadline=None)
@given(changes=CHANGES, faults=FAULTS, size=st.integers(1, 7), by_key=st.booleans())
def test_a_stream_equals_a_model(
    catalog: CatalogConnection, changes: list[Change], faults: list[Point | None], size: int, by_key: bool
) -> None:
    films = table(catalog, f"model_{next(_numbers)}")
    changes = [(0, 0), *(change for change in changes if by_key or change[1] is not None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_target, "reach", fail_at(iter(faults)))
        patch.setattr(stream_target, "FRAGMENTS_TO_COMPACT", 3)
        for attempt in itertools.count():
            try:
                follow(films, changes, size + attempt % 3, ("id",) if by_key else ())
                break
            except FaultError:
                continue
    found = films.dataset().to_table()
    rows = list(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
    if by_key:
        last = dict(changes)
        assert sorted(rows) == sorted((key, value) for key, value in last.items() if value is not None)
    else:
        assert sorted(rows) == sorted(changes)
