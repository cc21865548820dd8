"""The rows of a table: filtered by SQL or by conditions that are chosen, in an order, page by page, at any version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.table.conditions import (
    comparable_columns,
    example_filter,
    find_column,
    join_conditions,
    operators,
    value_kind,
    write_condition,
)
from tiltyard.console.table.grid import Grid, fetched_names, read_grid, shown_columns
from tiltyard.console.table.heads import TableHead, pin, read_head
from tiltyard.console.templates import link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.console.table.schema_tree import Column

SIZES = (25, 50, 100)
MAX_FILTER = 10_000
"""Characters of a filter."""
MAX_OFFSET = 1 << 40
MAX_COLUMNS = 500
MAX_TAGS = 200
COLUMN, OPERATOR, VALUE = "where", "operator", "value"
"""The fields of the form that adds a condition."""


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

    def address(self, path: Sequence[str], at: str, **changed: Any) -> str:
        """Return the address of a page of rows of this choice, with something else changed; from the first row on."""
        chosen = {"filter": self.filter, "column": self.columns, "size": self.size, "order": self.order}
        return link("rows", path, **({"at": at} | chosen | changed))

    def request(self, head: TableHead, path: Sequence[str], columns: Sequence[Column]) -> dict[str, Any]:
        """Return the fields of the query: one row more than a page, to know whether there is a next one."""
        name = self.order.removeprefix("-")
        order = [{"column_name": name, "ascending": not self.order.startswith("-")}] if name else None
        return {
            "id": list(path),
            "branch": head.branch,
            "version": head.version if not head.is_view else None,
            "columns": {"column_names": fetched_names(columns, head.hidden)},
            "filter": self.filter or None,
            "order_by": order,
            "offset": self.offset or None,
            "k": self.size + 1,
            "vector": {},
            "with_row_id": None if head.is_view else True,
        }


def show(page: PageRequest) -> Page | Redirect:
    """Show a page of rows; a filter that cannot be applied is said beside it, and loses nothing of the form."""
    head, choice = read_head(page), Choice.of(page)
    problem = None
    if page.text(OPERATOR) and not page.is_fragment:
        try:
            return Redirect(choice.address(page.path, head.ref, filter=_with_condition(page, head, choice)))
        except LanceNamespaceError as error:
            problem = page.explain(error)
    columns = shown_columns(head.columns, choice.columns)
    grid = Grid(columns, (), has_more=False)
    if not head.table.is_only_declared and columns:
        try:
            with page.calls.rows(**choice.request(head, page.path, columns)) as answer:
                grid = read_grid(answer, columns, choice.size)
        except LanceNamespaceError as error:
            problem = page.explain(error)
    tags = page.calls.attempt("ListTableTags", id=list(page.path), limit=MAX_TAGS)
    values = head.values(page, "rows") | {
        "grid": grid,
        "choice": choice,
        "pinned": pin(head),
        "sizes": SIZES,
        "problem": problem,
        "tags": sorted(tags.tags) if tags is not None else [],
        "is_view": head.is_view,
        "next_offset": choice.offset + len(grid.rows),
        "example": example_filter(grid, head.masks),
        **_condition_values(page, head),
    }
    status = problem.status if problem is not None else 200
    return Page("rows_grid.html" if page.is_fragment else "rows.html", values, status, fragment=page.is_fragment)


def _with_condition(page: PageRequest, head: TableHead, choice: Choice) -> str:
    """Return the filter with the condition of the form, if there is one. Raises InvalidInputError."""
    if not page.text("add") and not page.text(VALUE):
        return choice.filter
    column = find_column(comparable_columns(head.columns, head.hidden), page.text(COLUMN))
    return join_conditions(choice.filter, write_condition(column, page.text(OPERATOR), page.all_of(VALUE)))


def _condition_values(page: PageRequest, head: TableHead) -> dict[str, Any]:
    """Return the values of the form that adds a condition: the column that is chosen, and the operators of its type."""
    columns = comparable_columns(head.columns, head.hidden)
    chosen = next((column for column in columns if column.path == page.text(COLUMN)), columns[0] if columns else None)
    entered = {"operator": page.text(OPERATOR), "value": page.text(VALUE)}
    return {
        "compared": columns,
        "where": chosen,
        "operators": operators(chosen) if chosen is not None else (),
        "value_kind": value_kind(chosen) if chosen is not None else None,
        "entered": entered,
    }


def show_condition(page: PageRequest) -> Page:
    """Show the operators of a column, and the field for its value, once the column is chosen."""
    return Page("condition.html", _condition_values(page, read_head(page)), fragment=True)
