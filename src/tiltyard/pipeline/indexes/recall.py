"""Measure the recall of index segments that are not committed, to refuse a merge that loses some.

A merge rewrites the codes of all its segments. Releases of Lance wrote wrong ones without an error where a segment had
been merged before (https://github.com/lance-format/lance/issues/7731). So the segments and the merged one answer the
same queries, over some rows of each segment, and both answers are compared with exact search.

The table is not touched: a shallow clone, which is a manifest in a folder of its own below the table's, has both.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
from lance import LanceOperation

from tiltyard.pipeline.indexes.model_files import VALUES, quoted_path

if TYPE_CHECKING:
    from lance.dataset import Index

    from tiltyard.pipeline.table_location import TableLocation

MAX_RECALL_LOSS = 0.005
"""By how much a merge may lower the recall."""
NEAREST = 10
_QUERIES = 100
_SAMPLED_ROWS = 16_384
_SAMPLED_SEGMENTS = 16
_SEARCH = {"k": NEAREST, "nprobes": 20, "refine_factor": 2}

_ADDRESS = "_rowaddr"
_BEFORE, _AFTER = "before_merge", "after_merge"


def measure_merge(
    location: TableLocation,
    dataset: lance.LanceDataset,
    column: tuple[str, str],
    segments: Sequence[Index],
    merged: Index,
) -> tuple[float, float]:
    """Return the recall of segments of a vector column, a path and its distance, and that of the merged segment.

    Each is the share of the nearest rows that is found, between 0 and 1. Raises what Lance raises.
    """
    sampled = segments[:: -(-len(segments) // _SAMPLED_SEGMENTS)]
    fragments = [min(segment.fragment_ids) for segment in sampled]
    rows = _sample(dataset, column[0], fragments)
    if rows.num_rows < NEAREST:
        return 1.0, 1.0
    uri, storage = f"{location.uri}/_indices/{uuid.uuid4()}/recall", dict(location.options) or None
    clone = dataset.shallow_clone(uri, int(dataset.version), storage)
    try:
        [base] = clone.base_paths().keys() - dataset.base_paths().keys()  # the folder of the table itself
        clone = _with_both(clone, base, fragments, sampled, merged)
        vectors = rows[VALUES].take(pa.array(range(0, rows.num_rows, -(-rows.num_rows // _QUERIES))))
        queries = [{**_SEARCH, "metric": column[1], "q": _as_query(vector)} for vector in vectors]
        exact = lance.write_dataset(rows.rename_columns([VALUES, "address"]), "memory://")
        wanted = [_find(exact, {**query, "column": VALUES, "use_index": False}, "address") for query in queries]
        condition = _condition(rows[_ADDRESS].to_numpy())
        recalls = []
        for ids in ([segment.uuid for segment in sampled], [merged.uuid]):
            options = {"index_segments": ids, "filter": condition, "prefilter": True, "fast_search": True}
            found = [_find(clone, {**query, "column": column[0]}, _ADDRESS, **options) for query in queries]
            hits = sum(len(each & nearest) for each, nearest in zip(found, wanted, strict=True))
            recalls.append(hits / sum(map(len, wanted)))
        return recalls[0], recalls[1]
    finally:
        lance.LanceDataset.drop(uri, storage, ignore_not_found=True)


def _sample(dataset: lance.LanceDataset, column: str, fragments: Sequence[int]) -> pa.Table:
    """Return vectors of the first rows of some fragments, with the addresses of their rows."""
    parts = []
    for fragment in dataset.get_fragments():
        if fragment.fragment_id in fragments:
            scanner = fragment.scanner(
                columns={VALUES: quoted_path(column, dataset.schema)},
                filter=f"{quoted_path(column, dataset.schema)} IS NOT NULL",
                limit=_SAMPLED_ROWS // len(fragments),
                with_row_address=True,
            )
            parts.append(scanner.to_table())
    return pa.concat_tables(parts).combine_chunks()


def _as_query(vector: Any) -> Any:
    """Return a vector of a column, or the vectors of a row, as a query."""
    values = vector.values
    dimensions = values.flatten() if pa.types.is_nested(values.type) else values
    return np.asarray(vector.as_py(), dimensions.type.to_pandas_dtype())


def _with_both(
    clone: lance.LanceDataset, base: int, fragments: Sequence[int], segments: Sequence[Index], merged: Index
) -> lance.LanceDataset:
    """Return the clone with the sampled fragments alone, and the segments and the merged one as two indexes.

    `base` is the id of the folder that has their files.
    """
    others = [each.fragment_id for each in clone.get_fragments() if each.fragment_id not in fragments]
    if others:
        operation = LanceOperation.Delete([], others, "false")
        clone = lance.LanceDataset.commit(clone, operation, read_version=clone.version)
    indexes = [replace(segment, name=_BEFORE, base_id=base) for segment in segments]
    indexes.append(replace(merged, name=_AFTER, base_id=base))
    return lance.LanceDataset.commit(clone, LanceOperation.CreateIndex(indexes, []), read_version=clone.version)


def _condition(addresses: Any) -> str:
    """Return the condition that a row is among those of the sample: a range of addresses for each fragment."""
    fragments = addresses >> 32
    ranges = [
        (addresses[fragments == number].min(), addresses[fragments == number].max()) for number in np.unique(fragments)
    ]
    return " OR ".join(f"({_ADDRESS} >= {first} AND {_ADDRESS} <= {last})" for first, last in ranges)


def _find(dataset: lance.LanceDataset, nearest: Mapping[str, Any], address: str, **options: Any) -> set[int]:
    """Return the addresses of the nearest rows, which a column has or Lance knows."""
    columns = ["_distance"] if address == _ADDRESS else ["_distance", address]
    scanner = dataset.scanner(columns=columns, nearest={**nearest}, with_row_address=address == _ADDRESS, **options)
    return set(scanner.to_table()[address].to_pylist())
