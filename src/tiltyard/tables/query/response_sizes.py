"""Estimate how large a response is, and choose the batches in which Lance reads it: a large one is streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from tiltyard.tables.query.batch_sizes import SMALL_RESPONSE_ROWS, batch_options, estimate_ordering, fixed_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance

    from tiltyard.storage.caches.version_cache import CachedVersion

NO_LIMIT = 2**63 - 1
"""The limit of a request that has none."""
UNESTIMATED_ROWS = 10
"""Limit of rows up to which their size is not estimated."""
MAX_WHOLE_BYTES = 4 << 20
"""A response that may have more bytes is streamed in batches of bounded size."""
BATCH_BYTES = 256 << 10
MAX_BATCH_ROWS = 8192
STREAMING_OPTIONS = {
    "batch_size_bytes": 4 * BATCH_BYTES,
    "batch_readahead": 2,
    "fragment_readahead": 1,
    "io_buffer_size": 4 << 20,
}
"""Scanner options for a response that is streamed.

Lance reads several batches ahead, and reads all that the rows of a batch need, whatever its limits in bytes are: only
the number of rows in a batch bounds the memory that a slow client takes (backpressure).
"""
STREAM_BYTES = 32 << 20
"""What a streamed response holds for a client that reads slowly: Lance's pages and batches, and chunks of it."""
STREAMING_OPTION_NAMES = frozenset({*STREAMING_OPTIONS, "batch_size"})
SAMPLED_FRAGMENTS = 16
UNKNOWN_ROW_BYTES = 1024


def _row_bytes_on_disk(dataset: lance.LanceDataset) -> float:
    """Return the average bytes of a row with all its columns, from a sample of fragments."""
    fragments = dataset.get_fragments()
    sample = [fragment.metadata for fragment in fragments[:: -(-len(fragments) // SAMPLED_FRAGMENTS) or 1]]
    rows = sum(fragment.physical_rows for fragment in sample)
    size = sum(file.file_size_bytes or 0 for fragment in sample for file in fragment.files)
    return size / rows if rows and size else UNKNOWN_ROW_BYTES


def _estimate_row_bytes(snapshot: CachedVersion, columns: Any) -> float:
    """Estimate the bytes of a row of a response: exact for columns of fixed width, else those of a row on disk."""
    if isinstance(columns, list):
        schema = snapshot.dataset.schema
        widths = [_value_bytes(schema, name) for name in columns]
        fixed_widths = [width for width in widths if width is not None]
        if len(fixed_widths) == len(widths):
            return max(1.0, sum(fixed_widths))
    return snapshot.fact(_row_bytes_on_disk)


def _value_bytes(schema: pa.Schema, name: str) -> float | None:
    """Return the bytes of a value, None where they vary; what is no column is a score, or the id of a row."""
    if name in schema.names:
        return fixed_width(schema.field(name).type)
    return None if "." in name else pa.uint64().byte_width


def streaming_options(snapshot: CachedVersion, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scanner options that stream a large response; none for a small one."""
    limit = options.get("limit", NO_LIMIT)
    if limit <= UNESTIMATED_ROWS:
        return {}
    size = _estimate_row_bytes(snapshot, options.get("columns"))
    if limit <= MAX_BATCH_ROWS and limit * size <= MAX_WHOLE_BYTES:
        return {}
    return {**STREAMING_OPTIONS, "batch_size": max(1, min(MAX_BATCH_ROWS, int(BATCH_BYTES / size)))}


def estimate_streamed(snapshot: CachedVersion, columns: Any) -> int:
    """Estimate the bytes that a streamed response holds: all of it, or a window of it.

    Rows count with UNKNOWN_ROW_BYTES at least: on disk they are compressed.
    """
    row_bytes = max(UNKNOWN_ROW_BYTES, _estimate_row_bytes(snapshot, columns))
    return min(STREAM_BYTES, int(snapshot.count_rows() * row_bytes))


def bounded_options(
    snapshot: CachedVersion, options: Mapping[str, Any], max_rows: int | None
) -> tuple[dict[str, int], int]:
    """Return the scanner's batch size where Lance's default could take too much memory, and the bytes to be ordered.

    Raises InvalidInputError for expressions, and for rows to be ordered, that are too large for memory.
    """
    columns, filter_, orderings = options.get("columns"), options.get("filter"), options.get("order_by", ())
    is_small = max_rows is not None and max_rows <= SMALL_RESPONSE_ROWS and not orderings
    if is_small and filter_ is None and not _has_aliases(columns):
        return {}, 0
    expressions: dict[str, str] = {}
    if _has_aliases(columns):
        expressions = {f"expression of '{name}'": text for name, text in columns.items()}
    expression = filter_.get("expr_filter") if isinstance(filter_, dict) else filter_
    if expression is not None:
        expressions["filter"] = expression
    read_columns = () if is_small or _has_aliases(columns) else columns
    ordered_bytes = 0
    if orderings:
        expressions |= {f"order by '{order.column_name}'": order.column_name for order in orderings}
        rows = snapshot.count_rows()
        ordered_rows = rows if max_rows is None else min(rows, max_rows)
        ordered_bytes = estimate_ordering(snapshot, read_columns, expressions, ordered_rows)
    return batch_options(snapshot, read_columns, expressions), ordered_bytes


def _has_aliases(columns: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(columns, dict)
