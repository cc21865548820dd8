"""Ids, columns and indexes as arguments of commands, completed from the catalog.

`tiltyard.model.text.typed_ids` parses ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tiltyard.model.text.typed_ids import TypedId, format_id, format_name, parse_typed_id, suggest

__all__ = [
    "COLUMN", "COLUMNS", "INDEX", "INDEX_TYPE", "TABLE", "TABLE_OF_JOB", "TABLE_OR_CATALOG_FILE", "TABLE_OR_NAMESPACE",
    "IdType", "TypedId", "format_id", "format_name", "is_catalog_file", "parse_typed_id", "suggest",
]  # fmt: skip


class IdType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """The type of an argument that is an id; the shell completes it from the catalog."""

    name = "id"

    def __init__(self, *, namespaces: bool = False) -> None:
        """`namespaces`: it may be a namespace, or the root."""
        self.takes_namespaces = namespaces

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TypedId:
        """Parse the id. Raises click.BadParameter."""
        if isinstance(value, TypedId):
            return value
        try:
            names = parse_typed_id(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not names and not self.takes_namespaces:
            self.fail("name a table.", param, ctx)
        if ctx is not None and _is_file_of_swapped(value, ctx):
            self.fail(f"{value} is a file: the file comes before the table.", param, ctx)
        return names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the ids of the catalog that begin as this one does."""
        from tiltyard.cli.session.completion import complete_id

        return complete_id(ctx, incomplete)


def _is_file_of_swapped(value: str, ctx: click.Context) -> bool:
    """Return whether this is a file where the table belongs, and what stands where the file belongs is none."""
    source = ctx.params.get("file", ctx.params.get("source"))
    return isinstance(source, str) and Path(value).is_file() and not Path(source).exists()


class TableOrCatalogFileType(IdType):
    """The type of an argument that is a table, or where no file comes after it, a file of YAML, as its text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the id, unless the text ends as files of YAML do. Raises click.BadParameter."""
        if isinstance(value, str) and is_catalog_file(value):
            return value
        return super().convert(value, param, ctx)


def is_catalog_file(text: str) -> bool:
    """Return whether a text is the name of a file of YAML."""
    return text.lower().endswith((".yaml", ".yml"))


class JobTableType(IdType):
    """The type of an argument that a job gets as text: a table's id, its names joined by the delimiter."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # type: ignore[override]
        """Parse the id. Raises click.BadParameter, also for a name with the delimiter in it."""
        from tiltyard.model.ids import DEFAULT_DELIMITER

        names = super().convert(value, param, ctx)
        if any(DEFAULT_DELIMITER in name for name in names):
            self.fail(f"{format_id(names)}: jobs take no names with {DEFAULT_DELIMITER} in them.", param, ctx)
        return DEFAULT_DELIMITER.join(names)


class NameType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """The type of names that the table of the command has (its argument `table`), completed from there."""

    name = "text"

    def __init__(self, of: str, *, is_list: bool = False) -> None:
        """`of` says of what the names are: columns, indexes, or types of an index; a list has commas between them."""
        self._of = of
        self._is_list = is_list

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names of the table that begin as this one does; of a list, the last one."""
        from tiltyard.cli.session.completion import complete_names

        before, comma, start = incomplete.rpartition(",") if self._is_list else ("", "", incomplete)
        return complete_names(ctx, self._of, start, f"{before}{comma}")


COLUMN, COLUMNS = NameType("columns"), NameType("columns", is_list=True)
INDEX, INDEX_TYPE = NameType("indexes"), NameType("index types")
TABLE = IdType()
TABLE_OR_CATALOG_FILE = TableOrCatalogFileType()
TABLE_OF_JOB = JobTableType()
TABLE_OR_NAMESPACE = IdType(namespaces=True)
