"""What the fields of a job's form let choose from: tables of the catalog, columns, branches and tags of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.console.table.schema_tree import read_columns
from tiltyard.model.columns.index_types import IndexType
from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from tiltyard.console.page_calls import PageCalls
    from tiltyard.console.table.schema_tree import Column

MAX_TABLES = 500
"""Tables that a field lists; where there are more, it takes what is entered, too."""
MAX_REFS = 200


@dataclass(frozen=True, slots=True)
class Choices:
    """Values with what is said of each, "" for nothing; `are_all` where no other one may be entered."""

    values: Sequence[tuple[str, str]]
    are_all: bool = True


def read_choices(calls: PageCalls, named: AbstractSet[str], table: str) -> Mapping[str, Choices]:
    """Return what can be chosen of what a form's parameters name; nothing for what its reader cannot list.

    Columns, branches and tags are those of `table`, which may be no table yet.
    """
    choices: dict[str, Choices] = {}
    if named & {"table", "new table"}:
        choices |= _tables(calls)
    if "index type" in named:
        choices["index type"] = Choices([(kind.value, "") for kind in IndexType])
    try:
        id_ = list(parse_id(table)) if table else []
    except InvalidInputError:  # what was entered is no name: sending the form says so
        id_ = []
    if id_ and named & {"column", "new column", "columns"}:
        choices |= _columns(calls, id_)
    for name, operation, field in (("branch", "ListTableBranches", "branches"), ("tag", "ListTableTags", "tags")):
        found = calls.attempt(operation, id=id_, limit=MAX_REFS) if id_ and name in named else None
        if found is not None:
            refs = [(ref, "") for ref in sorted(getattr(found, field))]
            choices[name] = Choices(refs, are_all=not found.page_token)
    return choices


def _tables(calls: PageCalls) -> dict[str, Choices]:
    listed = calls.attempt("ListAllTables", limit=MAX_TABLES, delimiter=DEFAULT_DELIMITER)
    if listed is None:
        return {}
    names = [(name, "") for name in listed.tables]
    return {"table": Choices(names, are_all=not listed.page_token), "new table": Choices(names, are_all=False)}


def _columns(calls: PageCalls, id_: list[str]) -> dict[str, Choices]:
    described = calls.attempt("DescribeTable", id=id_, load_detailed_metadata=True, check_declared=True)
    if described is None or described.schema is None:
        return {}
    columns = read_columns(described.schema)
    paths = list(_described(columns, with_fields=True))
    return {
        "column": Choices(paths),
        "new column": Choices(paths, are_all=False),
        "columns": Choices(list(_described(columns, with_fields=False))),
    }


def _described(columns: Sequence[Column], *, with_fields: bool) -> Iterator[tuple[str, str]]:
    """Yield paths of columns with their types, and what computes them."""
    for column in columns:
        by = f", computed by {column.computed.name}" if column.computed is not None else ""
        yield column.path, f"{column.type}{by}"
        if with_fields and column.type == "struct":
            yield from _described(column.children, with_fields=True)
