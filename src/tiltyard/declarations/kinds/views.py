"""Views: plain ones, and materialized ones with what their refreshes compute and index."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.declarations.kind import Kind, Target, id_of
from tiltyard.declarations.kinds.columns import Column, column_content, parse_columns, read_columns, to_field
from tiltyard.declarations.kinds.indexes import Index, parse_indexes
from tiltyard.declarations.kinds.tables import is_table
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schedules import format_refresh, parse_refresh
from tiltyard.model.schemas.arrow_json import from_json
from tiltyard.model.text.typed_ids import format_id
from tiltyard.model.text.yaml_text import ContentError, convert_content
from tiltyard.model.views.definitions import ViewDefinition, ViewKind, parse_sources, plain_view_sources, query_columns
from tiltyard.model.views.plain_views import PlainView

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent

_IN_DATABASE = "Its query names tables within the namespace of another request: create it with names from the root on."
_BY_CODE = "Code computes it, which a file cannot have."


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A view, by its query. A `materialized` one is a `query` of Spark or a `select` of the server itself.

    A `query` has the `columns` that it makes. Refreshes compute `computed` columns by SQL, and extend the `indexes`.
    """

    sql: str
    materialized: ViewKind | None = None
    columns: dict[str, Any] | None = None
    refresh: str | None = None
    computed: dict[str, str] = {}
    indexes: dict[str, Any] = {}


class Views(Kind[View]):
    """Views, created after those that they read. A view that differs is created again."""

    section = "views"
    noun = "view"
    declaration = View
    securable = "table"
    is_deleted_first = True
    replaced_by = frozenset(View.__struct_fields__)

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, View]:
        """Return the id and the view. Raises ContentError."""
        name, view = super().parse(name, content, path)
        kind = view.materialized
        if kind in (ViewKind.UDTF, ViewKind.CHUNKER):
            raise ContentError(
                (*path, "materialized"), "a view in a file is a 'query' or a 'select': no code is in it."
            )
        if kind is None and (view.columns or view.refresh or view.computed or view.indexes):
            raise ContentError(path, "only a materialized view has columns, a refresh, computed columns and indexes.")
        if (kind is ViewKind.QUERY) != (view.columns is not None):
            raise ContentError(path, "a materialized 'query' has 'columns', the types that it makes; others have none.")
        if view.refresh is not None:
            try:
                refresh = format_refresh(parse_refresh(view.refresh))
            except InvalidInputError as error:
                raise ContentError((*path, "refresh"), str(error)) from error
            view = msgspec.structs.replace(view, refresh=refresh)
        columns = None if view.columns is None else parse_columns(view.columns, (*path, "columns"))
        indexes = parse_indexes(view.indexes, (*path, "indexes"))
        return name, msgspec.structs.replace(
            view,
            columns=None if columns is None else {each: column_content(column) for each, column in columns.items()},
            indexes={each: msgspec.to_builtins(index) for each, index in sorted(indexes.items())},
        )

    def read(self, catalog: CatalogContent) -> dict[str, View]:
        """Return the views whose queries are all that makes their rows."""
        found = {}
        for name, description in catalog.tables.items():
            if not is_table(description):
                try:
                    found[name] = _read_view(description)
                except RefusedError as error:
                    catalog.leave_out(self.section, name, str(error))
        return found

    def order(self, declared: Mapping[str, View]) -> Sequence[str]:
        """Return views after those that they read, else by name."""
        reads = {name: {each for each in _sources(view) if each in declared} for name, view in declared.items()}
        sorter = TopologicalSorter({name: sorted(reads[name] - {name}) for name in sorted(reads)})
        try:
            return list(sorter.static_order())
        except CycleError:
            return sorted(declared)  # the server says which table is missing

    def create(self, target: Target, name: str, declared: View) -> None:
        """Create a view; the rows of a materialized one come with its first refresh."""
        view = id_of(name)
        if declared.materialized is None:
            target.calls.call("CreateView", id=view, query=declared.sql)
            return
        seconds = None if declared.refresh is None else parse_refresh(declared.refresh)
        target.calls.call(
            "CreateMaterializedView",
            id=view,
            kind=declared.materialized,
            source_query=declared.sql,
            output_schema=_schema_text(declared),
            with_no_data=True,
            auto_refresh=None if seconds is None else True,
            auto_refresh_interval_seconds=seconds,
            columns=[{"name": each, "computed": sql} for each, sql in declared.computed.items()] or None,
            indexes=[_index_fields(each, index) for each, index in declared.indexes.items()] or None,
        )

    def delete(self, target: Target, name: str, declared: View) -> None:
        """Drop a view; what it reads stays."""
        operation = "DropView" if declared.materialized is None else "DropMaterializedView"
        target.calls.call(operation, id=id_of(name))


def _read_view(description: Mapping[str, Any]) -> View:
    """Return the declaration of a view. Raises RefusedError for one that a file cannot have."""
    plain = PlainView.from_properties(description.get("properties") or {})
    if plain is not None:
        if plain.database:
            raise RefusedError(_IN_DATABASE)
        return View(plain.query)
    metadata = {key.encode(): text.encode() for key, text in (description.get("metadata") or {}).items()}
    definition = ViewDefinition.from_metadata(metadata)
    if definition is None:
        raise RefusedError("Its definition cannot be read.")
    if definition.database:
        raise RefusedError(_IN_DATABASE)
    columns = dict(read_columns(description["schema"]))
    computed = {name: columns.get(name) for name in definition.computed_columns}
    if definition.kind in (ViewKind.UDTF, ViewKind.CHUNKER) or None in computed.values() or None in columns.values():
        raise RefusedError(_BY_CODE)
    schema = from_json(description["schema"]).with_metadata(metadata)
    made = {name: column for name in query_columns(schema) if (column := columns[name]) is not None}
    return View(
        definition.query,
        definition.kind,
        {name: column_content(column) for name, column in made.items()} if definition.kind is ViewKind.QUERY else None,
        format_refresh(definition.refresh_seconds) if definition.auto_refresh else None,
        {name: str(column.computed) for name, column in computed.items() if column is not None},
        dict(sorted(map(_read_index, definition.index_requests))),
    )


def _read_index(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {key: value for key, value in fields.items() if key not in ("name", "column", "index_type")}
    index = Index(fields["column"], fields["index_type"], options)
    return fields["name"], msgspec.to_builtins(index)


def _index_fields(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    index: Index = convert_content(content, Index, ())
    return {"name": name, "column": index.column, "index_type": index.type, **index.options}


def _schema_text(view: View) -> str:
    """Return the schema of a view's query as CreateMaterializedView takes it; "" for one that the server infers."""
    if view.columns is None:
        return ""
    columns = {name: _column(content) for name, content in view.columns.items()}
    schema = pa.schema([to_field(name, column) for name, column in columns.items()])
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _column(content: Any) -> Column:
    column: Column = Column(type=content) if isinstance(content, str) else convert_content(content, Column, ())
    return column


def _sources(view: View) -> set[str]:
    """Return the tables that a view reads, as far as its SQL is understood here: they are created before it."""
    try:
        if view.materialized is ViewKind.QUERY:
            return {format_id(name.split("$")) for name in parse_sources(view.sql)}
        return {format_id(path) for path in plain_view_sources(view.sql)}
    except InvalidInputError:
        return set()
