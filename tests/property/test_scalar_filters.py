"""The rows that a filter selects by values in memory are those that Lance finds; other filters are left to Lance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import lance
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.scalar_filters import filters, tables
from tiltyard.storage.vector_cache.fragments import read_fragments
from tiltyard.storage.vector_cache.scalar_values import columns_of, evaluate, read_page
from tiltyard.tables.query.scalar_filters import filtered_columns, parse_scalar_filter


def rows_in_memory(dataset: lance.LanceDataset, expression: str) -> list[int] | None:
    """Return the ids of the rows that a filter selects by values in memory; None where Lance has to."""
    selected = parse_scalar_filter(expression, filtered_columns(dataset))
    if selected is None:
        return None
    found = []
    for fragment in read_fragments(dataset):
        pages = {column.id: read_page(dataset, fragment, column, lambda _: None) for column in columns_of(selected)}
        true, _ = evaluate(selected, pages)
        found += [(fragment.number << 32) + int(place) for place in np.flatnonzero(true)]
    live = set(dataset.to_table(columns=[], with_row_id=True)["_rowid"].to_pylist())
    return sorted(live.intersection(found))


def test_filters_in_memory_select_the_rows_that_lance_finds(bounds: settings) -> None:
    counts: Counter[bool] = Counter()

    @settings(bounds)
    @given(st.lists(tables(), min_size=1, max_size=2), st.lists(filters(), min_size=40, max_size=80), st.booleans())
    def check(parts: list[pa.Table], expressions: list[str], has_deletions: bool) -> None:
        with TemporaryDirectory() as folder:
            uri = str(Path(folder) / "t")
            for part in parts:
                dataset = lance.write_dataset(part, uri, mode="append", max_rows_per_file=13)
            if has_deletions:
                dataset.delete("i8 > 2")
            for expression in expressions:
                found = rows_in_memory(dataset, expression)
                counts[found is not None] += 1
                if found is not None:
                    expected = dataset.to_table(columns=[], with_row_id=True, filter=expression)
                    assert found == sorted(expected["_rowid"].to_pylist()), expression

    check()
    assert counts[True] > counts[False] / 4, counts
