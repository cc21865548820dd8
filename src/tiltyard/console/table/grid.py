"""Rows as a grid shows them: each value as a bounded text, a sparkline, nested lines, or what loads by itself."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tiltyard.console.table.cells import SHOWN_BYTES, SNIFF_BYTES, sniff
from tiltyard.console.templates import plain
from tiltyard.console.templates import size as format_size
from tiltyard.model.schemas.python_values import python_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from tiltyard.console.page_calls import SqlAnswer
    from tiltyard.console.table.schema_tree import Column
    from tiltyard.model.operations import ArrowAnswer

ROW_ID = "_rowid"
SCORES = ("_distance", "_score", "_relevance_score")
MAX_CELL = 100
"""Characters of a text that a cell shows at once; the rest, to MAX_UNFOLDED, is folded."""
MAX_UNFOLDED = 2_000
MAX_STRING = 300
"""Characters of a text inside a nested value."""
MAX_ITEMS = 50
"""Items of a list or a map that a cell unfolds to."""
MAX_DEPTH = 6
MAX_BYTES = 64 << 20
"""Bytes of rows that one page takes into memory: where values are large, it shows fewer rows."""
MAX_CHARACTERS = 4 << 20
"""Characters of the cells of one page, beyond which it shows fewer rows."""
CELL_CHARACTERS = 50
"""Characters of a page that a cell takes besides what it shows."""
MAX_IMAGE_BYTES = 48 << 10
"""Bytes of an image that a cell has in itself, since it has no row to fetch it from."""
SPARK_POINTS, SPARK_HEIGHT = 48, 20
LAZY = frozenset({"binary", "blob"})
"""Kinds of columns whose values are fetched when their cells come into view."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One value. `kind` is null, text, number, nested, vector, bytes or lazy; `text` is short, `more` what unfolds.

    `points` are those of a vector's sparkline; `image` is the address of an image, which has all of it.
    """

    kind: str
    text: str = ""
    more: str = ""
    points: str = ""
    image: str = ""

    @property
    def characters(self) -> int:
        """About how many characters of a page it takes."""
        return len(self.text) + len(self.more) + len(self.points) + len(self.image) + CELL_CHARACTERS


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its id, the cells of the columns shown, and its scores."""

    id: int | None
    cells: Sequence[Cell]
    scores: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of a page; `is_cut` says that there are fewer than asked for, since they were too large."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    has_more: bool
    is_cut: bool = False


def read_grid(answer: ArrowAnswer | SqlAnswer, columns: Sequence[Column], most: int) -> Grid:
    """Read at most `most` rows of a response, and note whether there are more. Raises what reading raises."""
    rows: list[Row] = []
    size = characters = 0
    for batch in answer.batches:
        size += batch.nbytes
        for index in range(batch.num_rows):
            if len(rows) == most:
                return Grid(columns, rows, has_more=True)
            if characters > MAX_CHARACTERS:
                return Grid(columns, rows, has_more=True, is_cut=True)
            rows.append(_row(batch, index, columns))
            characters += sum(cell.characters for cell in rows[-1].cells)
        if size > MAX_BYTES:
            return Grid(columns, rows, has_more=True, is_cut=True)
    return Grid(columns, rows, has_more=False)


def _row(batch: pa.RecordBatch, index: int, columns: Sequence[Column]) -> Row:
    names = set(batch.schema.names)
    cells = [
        _cell(batch[column.name], index, column)
        if column.name in names
        else Cell("lazy" if column.kind in LAZY else "null")
        for column in columns
    ]
    scores = [
        (name.strip("_"), value)
        for name in SCORES
        if name in names and (value := batch[name][index].as_py()) is not None
    ]
    return Row(batch[ROW_ID][index].as_py() if ROW_ID in names else None, cells, scores)


def _cell(values: pa.Array, index: int, column: Column) -> Cell:
    scalar = values[index]
    if not scalar.is_valid:
        return Cell("null")
    if column.kind == "vector":
        return _vector_cell(scalar)
    value = python_value(values, index)
    if isinstance(value, bool):
        return Cell("text", "true" if value else "false")
    if isinstance(value, int | float):
        return Cell("number", f"{value:.6g}" if isinstance(value, float) else str(value))
    if isinstance(value, bytes):
        return _bytes_cell(value)
    if isinstance(value, dict | list):
        return Cell(
            "nested", _summary(value), plain(json.dumps(bounded(value), indent=1, ensure_ascii=False), MAX_UNFOLDED)
        )
    return _text_cell(value if isinstance(value, str) else str(value))


def _bytes_cell(value: bytes) -> Cell:
    """Return bytes as an image, where they are a small one, else as the first of them."""
    media = sniff(value[:SNIFF_BYTES])
    name = f"{media.type if media is not None else 'bytes'}, {format_size(len(value))}"
    if media is not None and media.element == "img" and len(value) <= MAX_IMAGE_BYTES:
        return Cell("bytes", name, image=f"data:{media.type};base64,{base64.b64encode(value).decode()}")
    shown = value[:SHOWN_BYTES].hex(" ")
    return Cell("bytes", name, f"{shown} …" if len(value) > SHOWN_BYTES else shown)


def _text_cell(text: str) -> Cell:
    if len(text) <= MAX_CELL:
        return Cell("text", plain(text, MAX_CELL))
    return Cell("text", plain(text, MAX_CELL), f"{plain(text, MAX_UNFOLDED)}\n({len(text):,} characters)")


def _summary(value: dict[str, Any] | list[Any]) -> str:
    if isinstance(value, dict):
        return plain("{" + ", ".join(list(value)[:4]) + (", …}" if len(value) > 4 else "}"), 80)
    return f"{len(value):,} item{'' if len(value) == 1 else 's'}"


def bounded(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON takes it, cut in depth, length and texts."""
    if isinstance(value, dict):
        if depth >= MAX_DEPTH:
            return "…"
        return {str(name): bounded(inner, depth + 1) for name, inner in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list | tuple):
        if depth >= MAX_DEPTH:
            return "…"
        items = [bounded(inner, depth + 1) for inner in value[:MAX_ITEMS]]
        return [*items, f"… {len(value) - MAX_ITEMS:,} more"] if len(value) > MAX_ITEMS else items
    if isinstance(value, bytes):
        return f"{len(value):,} bytes" + (f": {base64.b64encode(value[:24]).decode()}" if value else "")
    if isinstance(value, str):
        return value[:MAX_STRING]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, int | float | None) else str(value)[:MAX_STRING]


def _vector_cell(scalar: pa.Scalar) -> Cell:
    """Return a vector as a sparkline: the means of up to SPARK_POINTS stretches of it."""
    values = scalar.values.to_numpy(zero_copy_only=False).astype(np.float64)
    numbers = ", ".join(f"{value:.4g}" for value in values[:MAX_ITEMS])
    more = f"{len(values):,} dimensions\n{numbers}{', …' if len(values) > MAX_ITEMS else ''}"
    finite = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    return Cell("vector", f"{len(values):,} dimensions", more, sparkline(finite))


def sparkline(values: np.ndarray[Any, Any]) -> str:
    """Return the points of an SVG polyline, 0 to 2·SPARK_POINTS wide and SPARK_HEIGHT high."""
    if not len(values):
        return ""
    parts = np.array_split(values, min(SPARK_POINTS, len(values)))
    means = np.array([part.mean() for part in parts])
    low, high = float(means.min()), float(means.max())
    scale = (SPARK_HEIGHT - 2) / (high - low) if high > low else 0.0
    step = 2 * SPARK_POINTS / max(1, len(means) - 1)
    heights = SPARK_HEIGHT - 1 - (means - low) * scale
    return " ".join(f"{index * step:.0f},{height:.0f}" for index, height in enumerate(heights))


def shown_columns(columns: Sequence[Column], chosen: Iterable[str]) -> list[Column]:
    """Return the columns of these names, in the table's order; all without any."""
    names = set(chosen)
    return [column for column in columns if not names or column.name in names]


def fetched_names(columns: Sequence[Column], hidden: Iterable[str]) -> list[str]:
    """Return the columns that a query reads at once: not hidden ones, nor those whose cells load by themselves."""
    return [column.name for column in columns if column.kind not in LAZY and column.name not in hidden]
