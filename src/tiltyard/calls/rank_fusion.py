"""Join what several searches of one table find by the ranks of their rows (reciprocal rank fusion)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROW_ID, SCORE, DISTANCE, RELEVANCE = "_rowid", "_score", "_distance", "_relevance_score"
RANK_CONSTANT = 60
"""What is added to each rank, as lancedb does."""
CANDIDATES = 5
"""Each search finds so many times the rows that are returned."""


def fuse_ranks(rankings: Iterable[Iterable[int]]) -> dict[int, float]:
    """Return the relevance of each row id that is in some rankings, each best first; the most relevant is first."""
    relevance: dict[int, float] = {}
    for ranking in rankings:
        for rank, row_id in enumerate(ranking):
            relevance[row_id] = relevance.get(row_id, 0.0) + 1 / (rank + 1 + RANK_CONSTANT)
    return dict(sorted(relevance.items(), key=lambda entry: -entry[1]))


def fuse(found: Sequence[pa.Table], limit: int) -> pa.Table:
    """Return the rows that the searches rank highest together, best first, with the column `_relevance_score`.

    Each of `found` are the rows of one search, best first, with the column `_rowid`; that, `_score` and `_distance` are
    left out, and the other columns are alike.
    """
    positions: dict[int, tuple[int, int]] = {}
    rows_of = [table.drop_columns([name for name in (SCORE, DISTANCE, ROW_ID) if name in table.column_names])
               for table in found]  # fmt: skip
    for number, table in enumerate(found):
        for rank, row_id in enumerate(table[ROW_ID].to_pylist()):
            positions.setdefault(row_id, (number, rank))
    scores = fuse_ranks(table[ROW_ID].to_pylist() for table in found)
    best = list(scores)[:limit]
    rows = [rows_of[number].slice(rank, 1) for number, rank in (positions[row_id] for row_id in best)]
    fused = pa.concat_tables(rows) if rows else rows_of[0].slice(0, 0)
    return fused.append_column(RELEVANCE, pa.array([scores[row_id] for row_id in best], pa.float32()))
