"""Storage by namespace: the bytes of tables, as far as they can be measured in a moment, as a treemap."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.console.browse.find import SEPARATOR
from tiltyard.console.monitor.server import check_reader
from tiltyard.console.page import Page, PageRequest
from tiltyard.model.ids import Id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tiltyard.console.page_calls import PageCalls

SECONDS = 1.5
MORE_SECONDS = 15.0
"""How long a reader may have tables measured who wants more of them."""
TABLES_AT_ONCE = 100
MAX_PARTS = 24
"""Namespaces that the map has; smaller ones are one part together."""
WIDTH, HEIGHT = 960.0, 300.0
COLORS = 7


@dataclass(frozen=True, slots=True)
class MapArea:
    """A namespace in the map: bytes and tables; `path` is None for all that are too small for a part of their own."""

    path: Id | None
    size: int
    tables: int


@dataclass(frozen=True, slots=True)
class Box:
    """Where a part lies, in units of the drawing."""

    part: MapArea
    x: float
    y: float
    width: float
    height: float
    color: int


@dataclass(slots=True)
class Measured:
    """What was measured: bytes and tables by namespace; tables that could not be opened; whether it is all."""

    sizes: defaultdict[Id, int]
    tables: defaultdict[Id, int]
    skipped: int = 0
    is_complete: bool = False


def show(page: PageRequest) -> Page:
    """Show the map. Raises PermissionDeniedError, InvalidInputError."""
    check_reader(page)
    wants_more = page.text("more") != ""
    measured = measure(page.calls, MORE_SECONDS if wants_more else SECONDS)
    parts = make_parts(measured)
    values = {
        "boxes": make_boxes(parts, WIDTH, HEIGHT),
        "parts": parts,
        "total": sum(part.size for part in parts),
        "tables": sum(part.tables for part in parts),
        "skipped": measured.skipped,
        "is_complete": measured.is_complete,
        "wants_more": wants_more,
        "width": WIDTH,
        "height": HEIGHT,
    }
    return Page("server_storage.html", values, fragment=True)


def measure(calls: PageCalls, seconds: float) -> Measured:
    """Add up the bytes of tables that the reader sees, until the time is over. Mounted catalogs are left out."""
    measured = Measured(defaultdict(int), defaultdict(int))
    deadline = time.monotonic() + seconds
    for listed in calls.pages("ListAllTables", limit=TABLES_AT_ONCE, delimiter=SEPARATOR):
        for name in listed.tables:
            path = Id(name.split(SEPARATOR))
            try:
                size = calls.call("GetTableStats", id=list(path)).total_bytes
            except LanceNamespaceError:
                measured.skipped += 1  # a view, a table without data yet, or one that cannot be opened
            else:
                measured.sizes[path.parent] += size
                measured.tables[path.parent] += 1
            if time.monotonic() > deadline:
                return measured
    measured.is_complete = True
    return measured


def make_parts(measured: Measured) -> list[MapArea]:
    """Return the namespaces by size, the largest first; those beyond MAX_PARTS are one part."""
    parts = [MapArea(path, size, measured.tables[path]) for path, size in measured.sizes.items()]
    parts.sort(key=lambda part: (-part.size, part.path or ()))
    if len(parts) <= MAX_PARTS:
        return parts
    rest = parts[MAX_PARTS - 1 :]
    others = MapArea(None, sum(part.size for part in rest), sum(part.tables for part in rest))
    return [*parts[: MAX_PARTS - 1], others]


def make_boxes(parts: Sequence[MapArea], width: float, height: float) -> list[Box]:
    """Lay parts out in a rectangle, each with its share of the area, as square as rows allow (a squarified treemap).

    Parts without bytes have no box.
    """
    left = [part for part in parts if part.size > 0]
    total = sum(part.size for part in left)
    boxes: list[Box] = []
    x = y = 0.0
    while left:
        scale = (width - x) * (height - y) / total
        is_upright = width - x >= height - y
        side = height - y if is_upright else width - x
        row = _row(left, side, scale)
        depth = sum(part.size for part in row) * scale / side
        offset = 0.0
        for part in row:
            length = part.size * scale / depth
            place = (x, y + offset, depth, length) if is_upright else (x + offset, y, length, depth)
            boxes.append(Box(part, *place, color=len(boxes) % COLORS))
            offset += length
        x, y = (x + depth, y) if is_upright else (x, y + depth)
        total -= sum(part.size for part in row)
        left = left[len(row) :]
    return boxes


def _row(parts: Sequence[MapArea], side: float, scale: float) -> Sequence[MapArea]:
    """Return the parts of the next row: as many as make its worst box no longer than with fewer."""
    best = _worst(parts[:1], side, scale)
    for number in range(2, len(parts) + 1):
        worst = _worst(parts[:number], side, scale)
        if worst > best:
            return parts[: number - 1]
        best = worst
    return parts


def _worst(row: Iterable[MapArea], side: float, scale: float) -> float:
    areas = [part.size * scale for part in row]
    depth = sum(areas) / side
    return max(max(depth * depth / area, area / (depth * depth)) for area in areas)
