"""The tools of `tiltyard mcp`: functions of a catalog and of arguments that are checked. None of them changes anything.

A tool's arguments are a struct: its fields are the tool's schema, and bound what a call may cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from tiltyard.cli.mcp.bounded_answers import read_bounded, take_bounded
from tiltyard.cli.session.failures import CommandError
from tiltyard.cli.session.ids import TypedId, format_id, parse_typed_id

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

MAX_ENTRIES, MAX_ROWS, MAX_COLUMNS = 1000, 1000, 500
_MAX_NAME_LENGTH, _MAX_SQL_LENGTH, _MAX_VECTOR_NUMBERS = 2000, 20_000, 20_000

Id = Annotated[str, Meta(max_length=_MAX_NAME_LENGTH)]
TableId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=_MAX_NAME_LENGTH,
        description="Id of a table: namespace.table. A name with a dot: quoted",
    ),
]
Filter = Annotated[
    str, Meta(max_length=_MAX_SQL_LENGTH, description="SQL filter of rows, as: year < 1960 AND title != ''")
]
Columns = Annotated[
    list[Annotated[str, Meta(max_length=_MAX_NAME_LENGTH)]],
    Meta(max_length=MAX_COLUMNS, description="Names of columns; by default all but vectors"),
]
Limit = Annotated[int, Meta(ge=1, le=MAX_ROWS, description="How many rows at most")]
Version = Annotated[
    str, Meta(max_length=_MAX_NAME_LENGTH, description="Number of a version, or a tag; by default the newest version")
]
Branch = Annotated[str, Meta(max_length=_MAX_NAME_LENGTH, description="A branch instead of main")]


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    """List the namespaces and tables in a namespace of the catalog, the root by default."""

    namespace: Annotated[Id, Meta(description="Id of a namespace; '.' is the root")] = "."
    limit: Annotated[int, Meta(ge=1, le=MAX_ENTRIES, description="How many entries at most")] = 100
    after: Annotated[Id, Meta(description="An id: only entries after it, as `left_out` of an answer says")] = ""


class DescribeArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Describe a table (columns with types, rows, versions, indexes, tags, properties), or a namespace."""

    id: Annotated[Id, Meta(description="Id of a table or a namespace")]
    version: Version | None = None
    branch: Branch | None = None


class SearchArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Search a table: by text (it needs a full-text index), by a vector, like another row, or by text and vector."""

    table: TableId
    text: Annotated[str, Meta(min_length=1, max_length=_MAX_SQL_LENGTH, description="Words to search for")] | None = (
        None
    )
    vector: Annotated[list[float], Meta(min_length=1, max_length=_MAX_VECTOR_NUMBERS)] | None = None
    like: Annotated[Filter, Meta(description="Filter of one row, whose vector is searched for")] | None = None
    vector_column: Annotated[Id, Meta(description="Column of vectors, where there are several")] | None = None
    text_columns: Columns = []
    where: Filter | None = None
    columns: Columns = []
    limit: Limit = 10
    version: Version | None = None
    branch: Branch | None = None


class QueryArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Read rows of a table: those that a filter selects, in the order of a column."""

    table: TableId
    where: Filter | None = None
    columns: Columns = []
    order_by: Annotated[Id, Meta(description="Column to order by; NAME:desc for the largest first")] | None = None
    limit: Limit = 20
    version: Version | None = None
    branch: Branch | None = None


class CountArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Count the rows of a table, or those that a filter selects."""

    table: TableId
    where: Filter | None = None
    version: Version | None = None
    branch: Branch | None = None


class SqlArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Run a SELECT over tables of the catalog. A table in a nested namespace: "library$fiction".books."""

    query: Annotated[str, Meta(min_length=1, max_length=_MAX_SQL_LENGTH, description="One SELECT statement")]


@dataclass(frozen=True, slots=True)
class ReadOnlyTool:
    """A tool: its name, the struct of its arguments (whose docstring describes it), and its function."""

    name: str
    arguments: type[msgspec.Struct]
    run: Callable[[Caller, Any], dict[str, Any]]

    @property
    def description(self) -> str:
        """What an assistant is told of it."""
        return (self.arguments.__doc__ or "").strip()

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its arguments."""
        _, components = msgspec.json.schema_components((self.arguments,))
        return {"type": "object", **components[self.arguments.__name__]}

    def call(self, catalog: Caller, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments and run the tool. Raises CommandError with a sentence for whatever it refuses."""
        import pyarrow as pa
        from lance_namespace.errors import LanceNamespaceError, NamespaceNotFoundError, TableNotFoundError

        from tiltyard.cli.session.catalog import describe_missing

        try:
            checked = msgspec.convert(arguments, self.arguments)
        except msgspec.ValidationError as error:
            raise CommandError(f"{self.name}: {error}.") from error
        try:
            return self.run(catalog, checked)
        except (TableNotFoundError, NamespaceNotFoundError) as error:
            missing = getattr(checked, "table", None) or getattr(checked, "id", None)
            message = describe_missing(catalog, _parse(missing)) if missing else None
            raise CommandError(message or str(error)) from error
        except (LanceNamespaceError, pa.ArrowException, OSError) as error:
            raise CommandError(str(error).strip()) from error


def list_entries(catalog: Caller, arguments: ListArguments) -> dict[str, Any]:
    """List what is in a namespace, namespaces first, each kind by name."""
    namespace = _parse(arguments.namespace)
    entries = _entries_of(catalog, namespace)
    if arguments.after and not any(entry["id"] == arguments.after for entry in entries):  # takes them up to that one
        raise CommandError(f"There is no {arguments.after} in {namespace}, after which to go on.")
    kept, has_more = take_bounded(entries, arguments.limit)
    answer: dict[str, Any] = {"namespace": str(namespace), "entries": kept}
    return {**answer, "left_out": f"There are more: call again with after={kept[-1]['id']}"} if has_more else answer


def _entries_of(catalog: Caller, namespace: TypedId) -> Iterator[dict[str, str]]:
    from tiltyard.cli.session.catalog import list_namespaces, list_tables

    for kind, names in ("namespace", list_namespaces), ("table", list_tables):
        for name in names(catalog, namespace):
            yield {"id": format_id((*namespace, name)), "kind": kind}


def describe(catalog: Caller, arguments: DescribeArguments) -> dict[str, Any]:
    """Describe a table with its columns, or a namespace."""
    from tiltyard.cli.browsing.description import describe_object, schema_records, visible_schema

    object_id = _parse(arguments.id)
    described, _ = take_bounded([describe_object(catalog, object_id, is_readable=False)], 1)
    answer: dict[str, Any] = described[0] if described else {"id": str(object_id), "left_out": "It is too large."}
    if answer.get("kind") == "namespace":
        return answer
    schema = visible_schema(catalog, object_id, arguments.version, arguments.branch)
    answer["columns"], has_more = take_bounded(schema_records(schema), MAX_COLUMNS)
    return {**answer, "left_out": "Not all columns fit."} if has_more else answer


def search(catalog: Caller, arguments: SearchArguments) -> dict[str, Any]:
    """Search by text, by vector, or by both. Raises CommandError without either."""
    from tiltyard.calls.searches import SearchOptions, find_rows

    fields = msgspec.structs.asdict(arguments)
    table = _parse(fields.pop("table"))
    if arguments.text is None and arguments.vector is None and arguments.like is None:
        raise CommandError("search needs a text, a vector, or a filter `like` of one row.")
    if arguments.vector is not None and arguments.like is not None:
        raise CommandError("vector and like are both the vector: leave one out.")
    return read_bounded(find_rows(catalog, table, SearchOptions(**fields)))


def query(catalog: Caller, arguments: QueryArguments) -> dict[str, Any]:
    """Read rows."""
    from tiltyard.calls.searches import is_vector, resolve_version
    from tiltyard.cli.browsing.description import readable_columns
    from tiltyard.cli.browsing.rows import parse_order

    table, branch = _parse(arguments.table), arguments.branch
    names = arguments.columns or [
        field.name for field in readable_columns(catalog, table, arguments.version, branch) if not is_vector(field.type)
    ]
    rows = catalog.read(
        "QueryTable",
        id=list(table),
        k=arguments.limit,
        vector={"single_vector": []},
        columns={"column_names": names},
        filter=arguments.where,
        order_by=[parse_order(arguments.order_by)] if arguments.order_by else None,
        version=resolve_version(catalog, table, arguments.version),
        branch=branch,
    )
    return read_bounded(rows)


def count(catalog: Caller, arguments: CountArguments) -> dict[str, Any]:
    """Count rows."""
    from tiltyard.calls.searches import resolve_version

    table = _parse(arguments.table)
    version = resolve_version(catalog, table, arguments.version)
    number = catalog.call(
        "CountTableRows", id=list(table), predicate=arguments.where, version=version, branch=arguments.branch
    )
    return {"table": str(table), "count": number}


def _parse(text: str) -> TypedId:
    """Parse an id. Raises CommandError."""
    try:
        return parse_typed_id(text)
    except ValueError as error:
        raise CommandError(str(error)) from error


TOOLS = (
    ReadOnlyTool("list", ListArguments, list_entries),
    ReadOnlyTool("describe", DescribeArguments, describe),
    ReadOnlyTool("search", SearchArguments, search),
    ReadOnlyTool("query", QueryArguments, query),
    ReadOnlyTool("count", CountArguments, count),
)


def sql_tool(sql_server: str | None) -> ReadOnlyTool:
    """Return the tool for SQL, which is served at an address; None is the default one."""

    def run(catalog: Caller, arguments: SqlArguments) -> dict[str, Any]:
        return read_bounded(catalog.query_sql(arguments.query, sql_server))

    return ReadOnlyTool("sql", SqlArguments, run)
