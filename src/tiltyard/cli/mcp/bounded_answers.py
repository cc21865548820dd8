"""Answers for assistants: JSON that stays small, whatever the rows hold, and says what was left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.cli.output.cells import format_size
from tiltyard.cli.output.formats import batch_records

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ANSWER_BYTES = 100_000
MAX_TEXT = 4_000
"""Characters of one text."""
MAX_ITEMS = 100
"""Items of a list within a row."""
MAX_NUMBERS = 16
"""Numbers of a list within a row: a vector is known by its first ones."""
MAX_DEPTH = 16


def read_bounded(rows: pa.RecordBatchReader) -> dict[str, Any]:
    """Return the first rows whose JSON fits an answer, and whether there are more. Raises what reading raises."""
    kept, size, has_more = list[Any](), 0, False
    for record in (record for batch in rows for record in batch_records(batch)):
        row = shorten(record)
        size += len(encode(row))
        if size > MAX_ANSWER_BYTES:
            has_more = True
            break
        kept.append(row)
    answer: dict[str, Any] = {"rows": kept}
    if has_more:
        answer["left_out"] = (
            f"Rows after the first {len(kept)} do not fit an answer of {MAX_ANSWER_BYTES} bytes: name fewer columns, "
            "or read fewer rows at once."
        )
    return answer


def take_bounded(records: Iterable[Mapping[str, Any]], limit: int) -> tuple[list[Any], bool]:
    """Return the first records, at most `limit` and as many as fit half an answer, and whether there are more."""
    kept, size = list[Any](), 0
    for record in records:
        short = shorten(record)
        size += len(encode(short))
        if len(kept) == limit or size > MAX_ANSWER_BYTES // 2:
            return kept, True
        kept.append(short)
    return kept, False


def shorten(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it, with long texts and lists cut; what was cut is said in the value."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}… ({len(value)} characters)"
        case bytes():
            return f"<{format_size(len(value))}>"
        case list() | tuple():
            if depth == MAX_DEPTH:
                return "…"
            is_numeric = all(isinstance(item, int | float) for item in value)
            most = MAX_NUMBERS if is_numeric else MAX_ITEMS
            items = [shorten(item, depth + 1) for item in value[:most]]
            return items if len(value) <= most else [*items, f"… {len(value)} in all"]
        case Mapping():
            if depth == MAX_DEPTH:
                return "…"
            return {str(name)[:MAX_TEXT]: shorten(inner, depth + 1) for name, inner in [*value.items()][:1000]}
    return str(value)[:MAX_TEXT]


def encode(value: Any) -> bytes:
    """Encode a value as JSON."""
    return msgspec.json.encode(value)
