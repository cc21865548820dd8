"""The page of a table's map: a bounded sample of its vectors, projected and coloured, and the row of one point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from lance_namespace.errors import InvalidInputError

from tiltyard.console.map.points import (
    Coloring,
    LegendEntry,
    color_by,
    has_umap,
    neighbour_embedding,
    principal_components,
    to_grid,
)
from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.grid import LAZY, ROW_ID, read_grid
from tiltyard.console.table.heads import pin, read_head
from tiltyard.console.table.rows import MAX_FILTER
from tiltyard.console.table.schema_tree import vector_columns
from tiltyard.model.schemas.python_values import python_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from tiltyard.console.table.heads import TableHead
    from tiltyard.console.table.schema_tree import Column

SAMPLE = 2_000
"""The most points of a map."""
MAX_NUMBERS = 4_000_000
"""Numbers of all its vectors: of long ones there are fewer points."""
MIN_SAMPLE = 50
MAX_STEP = 5_000
"""Rows from one that is taken to the next: of more than SAMPLE · MAX_STEP rows, a map has the first ones."""
MIN_POINTS = 3
SHOWN_COLUMNS = 12
"""Columns that are shown of the row of one point."""
COLORED = frozenset({"text", "number", "other"})
METHODS = {"pca": "principal components", "umap": "UMAP"}


@dataclass(frozen=True, slots=True)
class MapSample:
    """Rows with a usable vector: their ids, vectors of shape (n, d), and values to colour by; `left_out` have none."""

    ids: Sequence[int]
    vectors: npt.NDArray[np.float32]
    values: Sequence[Any]
    left_out: int


def show(page: PageRequest) -> Page:
    """Show the page of a map, which loads its points. Raises what describing the table raises, InvalidInputError."""
    head = read_head(page)
    vectors, colors = _choices(head)
    chosen = _named(vectors, page.text("column"), "vectors")
    color = _named(colors, page.text("color"), "colours", default="") if page.text("color") else None
    values = head.values(page, "map") | {
        "vectors": [column.path for column in vectors],
        "colors": [column.path for column in colors],
        "chosen": chosen.path if chosen is not None else "",
        "color": color.path if color is not None else "",
        "filter": page.text("filter"),
        "method": _method(page),
        "methods": METHODS if has_umap() else {},
        "pinned": pin(head),
        "is_view": head.is_view,
        "hides_vectors": bool(vector_columns(head.columns)) and not vectors,
        "sample": SAMPLE,
    }
    return Page("map.html", values)


def _choices(head: TableHead) -> tuple[list[Column], list[Column]]:
    """Return the columns that a map can be of, and those that it can be coloured by."""
    seen = [column for column in head.columns if column.name not in head.hidden]
    return vector_columns(seen), [column for column in seen if column.kind in COLORED]


def _named(columns: Sequence[Column], path: str, what: str, default: str | None = None) -> Column | None:
    """Return the column of this path, the first one without a path. Raises InvalidInputError."""
    if not path:
        return columns[0] if columns and default is None else None
    found = next((column for column in columns if column.path == path), None)
    if found is None:
        raise InvalidInputError(f"'{path[:60]}' is no column that has {what} for you: choose another one.")
    return found


def _method(page: PageRequest) -> str:
    method = page.text("method", "pca")
    if method not in METHODS:
        raise InvalidInputError(f"The method is one of {', '.join(METHODS)}, not '{method[:40]}'.")
    if method == "umap" and not has_umap():
        raise InvalidInputError("UMAP is not installed with this server: pip install umap-learn there.")
    return method


def show_points(page: PageRequest) -> Page:
    """Show the points of a map. Raises InvalidInputError, HttpError 429, and what the query raises."""
    head, method = read_head(page), _method(page)
    vectors, colors = _choices(head)
    column = _named(vectors, page.text("column"), "vectors")
    if column is None or head.is_view or head.table.is_only_declared:
        raise InvalidInputError("The table has no vectors that a map could show.")
    color = _named(colors, page.text("color"), "colours") if page.text("color") else None
    condition = page.text("filter")
    if len(condition) > MAX_FILTER:
        raise InvalidInputError(f"The filter has {len(condition)} characters: {MAX_FILTER} at most.")
    total = page.calls.call(
        "CountTableRows",
        id=list(page.path),
        predicate=condition or None,
        branch=head.branch,
        version=head.version,
    )
    most = min(SAMPLE, max(MIN_SAMPLE, MAX_NUMBERS // max(1, column.dimensions)))
    # A policy that hides rows allows simple filters alone, so that its reader gets the first rows.
    step = 1 if head.has_policy else min(MAX_STEP, max(1, -(-total // most)))
    sample = _read_sample(page, head, column, color, condition, most, step)
    values: dict[str, Any] = {
        "path": page.path,
        "head": head,
        "total": total,
        "is_spread": step > 1,
        "is_beginning": total > most * step,
        "left_out": sample.left_out,
        "masked": column.name in head.masks,
        "pinned": pin(head),
        "column": column.path,
        "color": color.path if color is not None else "",
        "method": METHODS[method],
        "shares": None,
        "count": len(sample.ids),
        "keys": (),
        "data": None,
    }
    if len(sample.ids) >= MIN_POINTS:
        page.calls.check()
        values |= _project(sample, method, color)
    return Page("map_points.html", values, fragment=True)


def _project(sample: MapSample, method: str, color: Column | None) -> dict[str, Any]:
    projection = neighbour_embedding(sample.vectors) if method == "umap" else principal_components(sample.vectors)
    number = len(sample.ids)
    coloring = (
        color_by(sample.values, color.kind)
        if color is not None
        else Coloring([LegendEntry("c0", "", number)], [0] * number)
    )
    x, y = to_grid(projection.points)
    data = {
        "ids": [str(row) for row in sample.ids],  # as texts: JavaScript's numbers end at 53 bits
        "x": x,
        "y": y,
        "codes": coloring.codes,
        "colors": [key.color for key in coloring.keys],
    }
    return {"data": data, "keys": coloring.keys if color is not None else (), "shares": projection.shares}


def _read_sample(
    page: PageRequest, head: TableHead, column: Column, color: Column | None, condition: str, most: int, step: int
) -> MapSample:
    """Read rows at equal distances of their ids, up to `most`. Raises what the query raises."""
    parts = [f"({condition})"] if condition else []
    parts += [f"_rowid % {step} = 0"] if step > 1 else []
    names = dict.fromkeys([column.path, *([color.path] if color is not None else [])])
    request = {
        "id": list(page.path),
        "branch": head.branch,
        "version": head.version,
        "columns": {"column_names": list(names)},
        "filter": " AND ".join(parts) or None,
        "k": most,
        "vector": {},
        "with_row_id": True,
    }
    ids: list[int] = []
    values: list[Any] = []
    pieces: list[npt.NDArray[np.float32]] = []
    seen = 0
    with page.calls.rows(**request) as answer:
        for batch in answer.batches:
            page.calls.check()
            seen += batch.num_rows
            vectors, usable = _vectors_of(batch[column.path])
            pieces.append(vectors)
            ids += [row for row, is_usable in zip(batch[ROW_ID].to_pylist(), usable, strict=True) if is_usable]
            colored = python_values(batch[color.path]) if color is not None else [None] * batch.num_rows
            values += [value for value, is_usable in zip(colored, usable, strict=True) if is_usable]
    stacked = np.concatenate(pieces) if pieces else np.empty((0, 1), np.float32)
    return MapSample(ids, stacked, values, seen - len(ids))


def _vectors_of(array: pa.Array) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the vectors of a column that are not null and have finite numbers alone, and which rows these are of."""
    usable = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    flat = array.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    vectors = flat.reshape(int(usable.sum()), -1) if usable.any() else np.empty((0, array.type.list_size), np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    usable[usable] = finite
    return vectors[finite], usable


def show_row(page: PageRequest) -> Page:
    """Show the row of a point. Raises InvalidInputError, and what the query raises."""
    row = page.optional_integer("row")
    if row is None:
        raise InvalidInputError("Which row? Point at one.")
    head = read_head(page)
    columns = [column for column in head.columns if column.kind != "vector"][:SHOWN_COLUMNS]
    request = {
        "id": list(page.path),
        "branch": head.branch,
        "version": head.version,
        "columns": {
            "column_names": [
                column.name for column in columns if column.kind not in LAZY and column.name not in head.hidden
            ]
        },
        "filter": f"_rowid = {row}",
        "k": 1,
        "vector": {},
        "with_row_id": True,
    }
    with page.calls.rows(**request) as answer:
        grid = read_grid(answer, columns, 1)
    values = {
        "grid": grid,
        "head": head,
        "path": page.path,
        "pinned": pin(head),
        "row": row,
        "vector": next((column.path for column in _choices(head)[0]), ""),
    }
    return Page("map_row.html", values, fragment=True)
