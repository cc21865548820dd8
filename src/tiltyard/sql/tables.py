"""The tables that one query can name: each is authorized when it is looked up, and read as its reader may see it.

A table's namespace is its schema, nested namespaces joined by "$": `films`, `sales.films`, `"sales$eu".films`. A name
without a schema is in the query's default namespace; the schema `public` is the root. All are within the database that
the client has connected to, which is the root of the catalog, or a namespace of it. Each table is one snapshot for
the whole query, however often it is named.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import msgspec
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import effective_policy_of
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.ids import Id, parse_id
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import PlainView
from tiltyard.sql.information_schema import INFORMATION_SCHEMA, InformationSchema
from tiltyard.sql.read_grounds import ReadGrounds, authorize_reading, grounds_of
from tiltyard.sql.reading import RowsOnDemand, has_json, json_table, readable_schema, restricted_source, to_table
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.policy_enforcement import policy_scope_of_latest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from datafusion import SessionContext

    from tiltyard.context import Context

CATALOG = "tiltyard"
PUBLIC = "public"
DEFAULT_SCHEMA = "\x01default"
"""The schema of names without one. No namespace has such a name."""
_DELIMITER = "$"
MAX_TABLES = 100
"""Tables, and versions of tables, that one query may open."""


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table as a query names it: its id, and its branch and version or its tag where it does not read the latest."""

    path: Id
    branch: Branch = MAIN
    version: int | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class ViewRef:
    """A view that a query names: its id, and its definition."""

    path: Id
    view: PlainView


def namespace_of_schema(schema: str, database: Id) -> Id:
    """Return the namespace within a database that is a schema. Raises InvalidInputError for a name that none has."""
    return Id((*database, *(() if schema == PUBLIC else parse_id(schema, _DELIMITER))))


class QueryTables:
    """The tables of one query: looks them up for its reader, and remembers which they are."""

    def __init__(self, ctx: Context, context: SessionContext, default_namespace: Id) -> None:
        self.ctx = ctx
        self._context: SessionContext | None = context
        self._default_namespace = Id((*ctx.database, *default_namespace))
        self._tables: dict[TableRef, Any] = {}
        self._view_to_plan: ViewRef | None = None
        self.paths: dict[Id, None] = {}
        """The ids of all tables that the query has named, also of those that were refused."""
        self.grounds: dict[Id, ReadGrounds] = {}
        """Why the reader may read each of them."""
        self.missing: dict[Id, LanceNamespaceError] = {}
        """Names that are no table to the reader; one of a table function may be among them."""
        self.failure: Exception | None = None
        """What reading a table has raised where DataFusion called it, and leaves no more of it than a text."""
        self.is_restricted = False
        """Whether policies restrict the reader on a table of the query."""

    def close(self) -> None:
        """Let go of the tables and the session, a cycle of references that the garbage collector cannot see."""
        self._tables.clear()
        self.failure = self._context = None

    @contextmanager
    def within(self, database: Id) -> Iterator[None]:
        """Look up names in another database: that in which a view was created, whose query is planned meanwhile."""
        before = self.ctx, self._default_namespace
        self.ctx, self._default_namespace = (
            msgspec.structs.replace(self.ctx, resolved=None, database=database),
            database,
        )
        try:
            yield
        finally:
            self.ctx, self._default_namespace = before

    def take_view_to_plan(self) -> ViewRef | None:
        """Return the view because of which the statement was not planned; None where it is another reason."""
        ref, self._view_to_plan = self._view_to_plan, None
        if ref is not None:
            self.failure = None
        return ref

    def add_view(self, ref: ViewRef, frame: Any) -> None:
        """Let a view that was planned be a table of the query."""
        self._tables[TableRef(ref.path)] = frame.into_view()

    def namespace(self, schema: str) -> Id:
        """Return the namespace that is a schema. Raises InvalidInputError for a name that no namespace has."""
        if schema == DEFAULT_SCHEMA:
            return self._default_namespace
        return namespace_of_schema(schema, self.ctx.database)

    def parse_name(self, text: str) -> Id:
        """Return the id of a table that is named in a text: `films` or `sales.films`. Raises InvalidInputError."""
        schema, dot, name = text.rpartition(".")
        namespace = self.namespace(schema) if dot else self._default_namespace
        if not name:
            raise InvalidInputError("Name a table as 'table' or 'schema.table'.")
        return Id((*namespace, name))

    def missing_error(self, name: str) -> LanceNamespaceError | None:
        """Return why a name, as DataFusion says it with its catalog and schema, is no table; None where it has none."""
        errors = [error for path, error in self.missing.items() if name.endswith(f".{path.name}")]
        return errors[-1] if errors else None

    def table(self, ref: TableRef) -> Any:
        """Return a table for DataFusion, as the reader may see it.

        Raises TableNotFoundError, NamespaceNotFoundError, PermissionDeniedError, and what opening it raises.
        """
        table = self._tables.get(ref)
        if table is None:
            if len(self._tables) >= MAX_TABLES:
                raise InvalidInputError(f"The query reads more than {MAX_TABLES} tables.")
            table = self._tables[ref] = self._open(ref)
        return table

    def authorized(self, path: Id) -> Context:
        """Return a context in which the reader may read a table. Raises as `table` does."""
        try:
            ctx = authorize_reading(self.ctx, path)
        except PermissionDeniedError:
            self.paths[path] = None
            raise
        self.paths[path] = None
        self.grounds[path] = grounds_of(ctx, path)
        return ctx

    def source(self, source: RowsOnDemand) -> Any:
        """Return a table for DataFusion of rows that a function returns."""

        def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            with self.recorded_failure():
                yield from source.read(columns)

        assert self._context is not None
        return to_table(self._context, RowsOnDemand(source.schema, read))

    @contextmanager
    def recorded_failure(self) -> Iterator[None]:
        """Remember what is raised, for the query to raise it in the place of DataFusion's text about it."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise

    def search_schema(self, ctx: Context, request: models.QueryTableRequest) -> pa.Schema:
        """Return the columns of what a search finds: those of its table, and a distance or a score."""
        score = "_score" if request.full_text_query is not None else "_distance"
        return readable_schema(ctx, Id(request.id or ())).append(pa.field(score, pa.float32()))

    def check_policies(self, ctx: Context, path: Id) -> None:
        """Note whether policies restrict the reader on a table. Raises PermissionDeniedError, as a policy may."""
        self.is_restricted |= effective_policy_of(ctx, ctx.find_table(path)) is not None

    def _open(self, ref: TableRef) -> Any:
        ctx = self.authorized(ref.path)
        view = PlainView.from_properties(ctx.find_table(ref.path).properties)
        if view is not None:
            raise self._unplanned_view(view, ref)
        opened = open_for_reading(ctx, ref.path, branch=ref.branch, version=ref.version, tag=ref.tag, by_catalog=True)
        version = opened.dataset.version if ref.tag is not None else ref.version
        scope = policy_scope_of_latest(ctx, opened.record, ref.branch, version, opened.dataset)
        if scope is None:
            if has_json(opened.dataset.schema):
                assert self._context is not None
                return json_table(self._context, opened.dataset)
            return lance.FFILanceTableProvider(opened.dataset, with_row_id=False, with_row_addr=False)
        self.is_restricted = True
        return self.source(restricted_source(ctx, ref.path, opened))

    def _unplanned_view(self, view: PlainView, ref: TableRef) -> LanceNamespaceError:
        """Ask for the plan of a view; return the error by which the statement that names it is not planned before."""
        if ref != TableRef(ref.path):
            return UnsupportedOperationError(f"{ref.path} is a view: it has no versions, no tags and no branches.")
        self._view_to_plan = ViewRef(ref.path, view)
        return UnsupportedOperationError(f"{ref.path} is a view that was not planned yet.")


class NamespaceSchema:
    """A namespace as a schema of DataFusion, for one query."""

    def __init__(self, tables: QueryTables, namespace: Id) -> None:
        self._tables = tables
        self._namespace = namespace

    @property
    def table_names(self) -> set[str]:
        """Return no names: no statement that is allowed lists them."""
        return set()

    def table(self, name: str) -> Any:
        """Return a table, or None: it may be the name of a table function, which DataFusion looks up afterwards."""
        path = Id((*self._namespace, name))
        try:
            return self._tables.table(TableRef(path))
        except (TableNotFoundError, NamespaceNotFoundError) as error:
            self._tables.missing[path] = error
            return None

    def table_exist(self, name: str) -> bool:
        return True  # `table` tells


class SessionCatalog:
    """The catalog of a session: the schemas of the query that the session runs."""

    def __init__(self) -> None:
        self.tables: QueryTables | None = None

    def schema_names(self) -> set[str]:
        """Return no names: no statement that is allowed lists them."""
        return set()

    def schema(self, name: str) -> Any:
        if self.tables is None:
            return None
        if name == INFORMATION_SCHEMA:
            return InformationSchema(self.tables.ctx, self.tables.source)
        return NamespaceSchema(self.tables, self.tables.namespace(name))
