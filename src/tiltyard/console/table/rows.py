"""The rows of a table: filtered by SQL, of some columns, in an order, page by page, at any version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.console.page import Page, PageRequest, advice_for
from tiltyard.console.table.grid import Grid, fetched_names, read_grid, shown_columns
from tiltyard.console.table.heads import TableHead, pin, read_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.console.table.schema_tree import Column

SIZES = (25, 50, 100)
MAX_FILTER = 10_000
"""Characters of a filter."""
MAX_OFFSET = 1 << 40
MAX_COLUMNS = 500
MAX_TAGS = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """What a reader chose to see. `order` is a column, with a minus in front for descending order."""

    filter: str
    columns: tuple[str, ...]
    order: str
    offset: int
    size: int

    @classmethod
    def of(cls, page: PageRequest) -> Choice:
        """Read the parameters of a page. Raises InvalidInputError."""
        text = page.text("filter")
        if len(text) > MAX_FILTER:
            raise InvalidInputError(f"The filter has {len(text)} characters: {MAX_FILTER} at most.")
        size = page.integer("size", SIZES[0], 1, SIZES[-1])
        columns = tuple(page.all_of("column")[:MAX_COLUMNS])
        return cls(text, columns, page.text("order"), page.integer("offset", 0, 0, MAX_OFFSET), size)

    def request(self, head: TableHead, path: Sequence[str], columns: Sequence[Column]) -> dict[str, Any]:
        """Return the fields of the query: one row more than a page, to know whether there is a next one."""
        name = self.order.removeprefix("-")
        order = [{"column_name": name, "ascending": not self.order.startswith("-")}] if name else None
        return {
            "id": list(path),
            "branch": head.branch,
            "version": head.version if not is_view(head) else None,
            "columns": {"column_names": fetched_names(columns, head.hidden)},
            "filter": self.filter or None,
            "order_by": order,
            "offset": self.offset or None,
            "k": self.size + 1,
            "vector": {},
            "with_row_id": None if is_view(head) else True,
        }


def is_view(head: TableHead) -> bool:
    """Whether the table is a view, whose rows have no ids and whose versions are those of its sources."""
    return head.table.location is None


def show(page: PageRequest) -> Page:
    """Show a page of rows; a filter that cannot be applied is said beside it, and loses nothing of the form."""
    head = read_head(page)
    choice = Choice.of(page)
    columns = shown_columns(head.columns, choice.columns)
    grid, problem, status = Grid(columns, (), has_more=False), None, 200
    if not head.table.is_only_declared and columns:
        try:
            with page.calls.rows(**choice.request(head, page.path, columns)) as answer:
                grid = read_grid(answer, columns, choice.size)
        except LanceNamespaceError as error:
            if error.code.name in ("PERMISSION_DENIED", "SERVICE_UNAVAILABLE", "INTERNAL"):
                raise
            problem, status = str(error), 400
    tags = page.calls.attempt("ListTableTags", id=list(page.path), limit=MAX_TAGS)
    values = head.values("rows") | {
        "grid": grid,
        "choice": choice,
        "pinned": pin(head),
        "sizes": SIZES,
        "problem": problem,
        "advice": advice_for(400, 0, is_expected=True),
        "tags": sorted(tags.tags) if tags is not None else [],
        "is_view": is_view(head),
        "next_offset": choice.offset + len(grid.rows),
    }
    return Page("rows_grid.html" if page.is_fragment else "rows.html", values, status, fragment=page.is_fragment)
