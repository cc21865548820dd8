"""Forms of a new namespace, and of a new table with its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.console.access.forms import required_text, showing_problems
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link
from tiltyard.console.upload.page import MAX_TYPE_CHARACTERS, TYPES
from tiltyard.console.upload.target import check_creates
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import parse_type

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_COLUMNS, MORE_COLUMNS = 3, 5
"""Lines for columns that the form begins with, and that are added to it."""
MAX_COLUMNS = 200
"""Columns of a table that the form makes: each has four fields."""
COMMENT = "comment"
"""The property of a table, and the metadata of a column, that says what it holds."""
SUGGESTED_TYPES = (*TYPES[:-1], "vector(384)")


@dataclass(frozen=True, slots=True)
class ColumnLine:
    """A line of the form, as it was entered."""

    name: str = ""
    type: str = ""
    nullable: bool = True
    comment: str = ""

    def field(self) -> pa.Field:
        """Return the column. Raises InvalidInputError."""
        if not self.name or not self.type:
            raise InvalidInputError(f"The column '{(self.name or self.type)[:60]}' needs a name and a type.")
        try:
            kind = parse_type(self.type[:MAX_TYPE_CHARACTERS])
        except RefusedError as error:
            raise InvalidInputError(f"{self.name[:60]}: {error}") from error
        return pa.field(self.name, kind, self.nullable, {COMMENT: self.comment} if self.comment else None)


def show_table(page: PageRequest) -> Page:
    """Show the form of a new table. Raises what creating one in the namespace raises."""
    check_creates(page.calls, page.path)
    first = (ColumnLine("id", "int64", nullable=False), *(ColumnLine() for _ in range(FIRST_COLUMNS - 1)))
    return _table_form(page, first)


@showing_problems(lambda page, problem, status: _table_form(page, _lines(page), problem, status))
def create_table(page: PageRequest) -> Page | Redirect:
    """Create the table of the form; show it again with more lines, or with why it cannot be."""
    lines = _lines(page)
    if page.text("action") == "more":
        return _table_form(page, [*lines, *(ColumnLine() for _ in range(MORE_COLUMNS))][:MAX_COLUMNS])
    path = [*page.path, required_text(page, "name", "a name for the table")]
    fields = [line.field() for line in lines if line.name or line.type or line.comment]
    if not fields:
        raise InvalidInputError("Enter at least one column, with its name and its type.")
    comment = page.text(COMMENT)
    properties = {COMMENT: comment} if comment else None
    rows = pa.schema(fields).empty_table().to_reader()
    page.calls.write("CreateTable", rows, id=path, mode="create", properties=properties)
    return Redirect(link("table", path))


def _lines(page: PageRequest) -> list[ColumnLine]:
    names, types, comments = (page.form.get(f"column-{field}", []) for field in ("name", "type", "comment"))
    nullable = set(page.form.get("column-nullable", ()))
    lines = zip(names, types, comments, strict=False)
    return [
        ColumnLine(name.strip(), kind.strip(), str(number) in nullable, comment.strip())
        for number, (name, kind, comment) in enumerate(lines)
    ][:MAX_COLUMNS]


def _table_form(page: PageRequest, lines: Sequence[ColumnLine], problem: str = "", status: int = 200) -> Page:
    values = {
        "lines": lines,
        "types": SUGGESTED_TYPES,
        "most": MAX_COLUMNS,
        "name": page.text("name"),
        "comment": page.text(COMMENT),
        "problem": problem,
        "section": "",
    }
    return Page("create_table.html", values, status)


def show_namespace(page: PageRequest) -> Page:
    """Show the form of a new namespace. Raises what creating one raises."""
    check_creates_namespace(page)
    return _namespace_form(page)


def check_creates_namespace(page: PageRequest) -> None:
    """Check that a namespace may be created in that of the page. Raises what creating one raises."""
    page.calls.authorize("CreateNamespace", id=[*page.path, "namespace"])


def _namespace_form(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    values: dict[str, Any] = {name: page.text(name) for name in ("name", "properties")}
    return Page("create_namespace.html", values | {"problem": problem, "section": ""}, status)


@showing_problems(_namespace_form)
def create_namespace(page: PageRequest) -> Redirect:
    """Create the namespace of the form; show it again with why it cannot be."""
    path = [*page.path, required_text(page, "name", "a name for the namespace")]
    page.calls.call("CreateNamespace", id=path, mode="create", properties=read_properties(page) or None)
    return Redirect(link("namespace", path))


def read_properties(page: PageRequest) -> dict[str, str]:
    """Return the properties of a form, one NAME=VALUE a line. Raises InvalidInputError."""
    properties: dict[str, str] = {}
    for line in page.text("properties").splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and not (equals and name.strip()):
            raise InvalidInputError(f"Properties are one NAME=VALUE a line, not '{line[:60]}'.")
        if line.strip():
            properties[name.strip()] = value.strip()
    return properties
