"""Materialized views: tables that a Spark job fills, with their definition in the metadata of their schema.

The query and the code of a view are text to the server: only the job parses and runs them. A view is created without
rows, and each refresh is a transaction.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.access.authorization import authorize_namespace, authorize_table
from tiltyard.access.needs import authorize_table_creation, on_table
from tiltyard.catalog.jobs.authorization import job_validator
from tiltyard.catalog.jobs.submission import queue_job
from tiltyard.model.ids import Id, table_id
from tiltyard.model.jobs import job_result, pipeline_jobs
from tiltyard.model.modes import CreateMode
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import FILES, ROWS_AND_FILES
from tiltyard.model.schemas.arrow_compat import check_names
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import ViewDefinition, ViewKind, check_query_text, record_columns
from tiltyard.tables.lance_sql.select_queries import parse_select
from tiltyard.tables.name_conflicts import prefer_name_conflict
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.rows.arrow_input import EmptyBody
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.schema.column_declarations import without_declarations
from tiltyard.tables.schema.computed_columns import check_image
from tiltyard.tables.views.select_views import REFRESH_SELECT, infer_schema
from tiltyard.tables.views.view_columns import (
    check_kind,
    computed_fields,
    computed_text,
    has_code,
    index_text,
    runs_code,
)
from tiltyard.tables.views.view_sources import find_definer, record_view, resolve_sources, view_definer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context

REFRESH = "refresh"
_NO_CODE = (
    "The view runs code of {name}, its creator, who may not let code run there any more: let a principal create it who "
    "may."
)
MAX_REFRESH_SECONDS = 366 * 86400.0
"""The longest interval in which a view refreshes by itself."""


_KIND_ALIASES = {"scalar_udtf": ViewKind.CHUNKER}
"""Other names that the specification has for a kind."""


def _authorize_create(ctx: Context, request: models.CreateMaterializedViewRequest) -> Context:
    path = table_id(request.id)
    authorize_namespace(ctx, path.parent, Privilege.CREATE.value)
    if has_code(request):
        authorize_namespace(ctx, path.parent, Privilege.RUN_UDFS.value)
    return authorize_table_creation(ctx, path, CreateMode.CREATE, None)


CREATE_VIEW = Needs("`create` on the namespace; for a view that code computes, `run_udfs` on it too", _authorize_create)


@operation(needs=CREATE_VIEW, stores=FILES)
def create_materialized_view(
    ctx: Context, request: models.CreateMaterializedViewRequest
) -> models.CreateMaterializedViewResponse:
    """Create a view, as a table of `output_schema` without rows; with `with_no_data` false, queue its first refresh.

    `source_query` of a `query` is Spark SQL over tables of this catalog. That of a `select` is columns and a filter of
    one table, which the server refreshes itself; its schema is inferred where `output_schema` is empty. Both name
    tables relative to the request's database. Refreshes by Spark compute the `columns` with the rows, and extend the
    `indexes`. Raises
    NamespaceNotFoundError, TableAlreadyExistsError, InvalidInputError (a kind, a schema, a UDTF, a column or an index
    that cannot be), TableColumnNotFoundError (in SQL of a column),
    UnsupportedOperationError (code of clients is switched off, or no such job is installed).
    """
    path = table_id(request.id)
    with prefer_name_conflict(ctx, path):
        kind = _kind(request.kind)
        check_kind(kind, request)
        if has_code(request):
            _check_udfs_enabled(ctx)
        spec = _udtf(ctx, kind, request.udtf_spec)
        if not request.source_query.strip():
            raise InvalidInputError("A view needs a 'source_query'.")
        check_query_text(request.source_query)
        database = str(ctx.database) if ctx.database else ""
        seconds = _refresh_seconds(request.auto_refresh_interval_seconds)
        definition = ViewDefinition(kind, request.source_query, spec, bool(request.auto_refresh), database, seconds)
        schema = (
            _select_schema(ctx, path, request, definition)
            if kind is ViewKind.SELECT
            else _schema(request.output_schema)
        )
        recorded = record_columns(schema)
        schema = computed_fields(ctx, without_declarations(schema) or schema, request.columns or ())
        definition = replace(
            definition,
            computed=computed_text(schema, [entry.name for entry in request.columns or ()]),
            indexes=index_text(schema, request.indexes or ()),
        )
        schema = schema.with_metadata({**(schema.metadata or {}), **definition.metadata(), **recorded})
        sources: Mapping[str, str] = {}
        if has_refresh := request.with_no_data is False:
            _check_installed(kind)
            sources = resolve_sources(ctx, path, definition, view_definer(ctx.principal))
    created = create_table(ctx, models.CreateTableRequest(id=list(path)), EmptyBody(schema))
    ctx = msgspec.structs.replace(ctx, mounted=None)  # what was looked up below a mount was that there is no such table
    record_view(ctx, path, definition)
    if definition.auto_refresh:
        ctx.store.note_changes([ctx.look_up_table(path).id])  # upkeep looks at it, and refreshes it
    arguments = {"sources": sources, "definition": definition.digest}
    ctx = msgspec.structs.replace(ctx, resolved=None)
    job_id = _queue_refresh(ctx, path, kind, arguments) if has_refresh else None
    return models.CreateMaterializedViewResponse(version=created.version or 1, job_id=job_id)


@operation(needs=on_table(Privilege.WRITE), stores=ROWS_AND_FILES)
def refresh_materialized_view(
    ctx: Context, request: models.RefreshMaterializedViewRequest
) -> models.RefreshMaterializedViewResponse:
    """Queue the job that brings a view up to date: incrementally where its query allows it.

    The caller, and the principal who created the view, must be allowed to read all that its query reads. Sizes and
    concurrencies are hints for another engine. Raises InvalidInputError (a table that is no view, a query that is
    none, a limit on a view that is no chunker), InvalidTableStateError (its definition was changed),
    TableNotFoundError, PermissionDeniedError, UnsupportedOperationError (no such job is installed, or code is switched
    off).
    """
    options = {
        "full": request.full or None,
        "source_version": request.src_version,
        "rows_per_fragment": request.max_rows_per_fragment,
        "output_limit": request.output_limit,
    }
    arguments = {name: value for name, value in options.items() if value is not None}
    path = table_id(request.id)
    kind, checked = _checked_refresh(ctx, path, arguments)
    _check_installed(kind)
    return models.RefreshMaterializedViewResponse(job_id=_queue_refresh(ctx, path, kind, checked))


@job_validator(REFRESH)
def check_refresh(ctx: Context, path: Id, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a refresh by Spark, with its source tables. Raises as `refresh_materialized_view`."""
    kind, checked = _checked_refresh(ctx, path, arguments)
    if kind is ViewKind.SELECT:
        raise InvalidInputError(f"The view '{path}' is refreshed by the server itself: call RefreshMaterializedView.")
    return checked


def _checked_refresh(ctx: Context, path: Id, arguments: Mapping[str, Any]) -> tuple[ViewKind, dict[str, Any]]:
    """Return the kind of a view, and the arguments of its refresh. Raises as `refresh_materialized_view`."""
    table = open_for_reading(ctx, path)
    definition = ViewDefinition.from_metadata(table.dataset.schema.metadata)
    if definition is None:
        raise InvalidInputError(f"The table '{path}' is not a materialized view.")
    if arguments.get("output_limit") is not None and definition.kind is not ViewKind.CHUNKER:
        raise InvalidInputError(f"Only a chunker's view has an output_limit, and this one is a {definition.kind}.")
    definer = find_definer(ctx, table.record, definition)
    if runs_code(definition, table.dataset.schema):
        _check_udfs_enabled(ctx)
        if not ctx.is_unchecked:
            authorize_table(ctx, path, Privilege.RUN_UDFS.value)
        coder = replace(definer, refusal=_NO_CODE)
        coder.authorize_table(coder.context(ctx), path, table.record, Privilege.RUN_UDFS.value)
    sources = resolve_sources(ctx, path, definition, definer)
    return definition.kind, {**arguments, "sources": sources, "definition": definition.digest}


_REFRESH_MODES = {"full": "rebuild", "incremental": "incremental", "unchanged": "no_op"}


@job_result(REFRESH)
@job_result(REFRESH_SELECT)
def refresh_result(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return what a refresh did: lancedb's word for the mode, rows, and the versions of its source and of the view."""
    sources = json.loads(properties.get("sources", "{}"))
    return {
        "mode": _REFRESH_MODES.get(properties.get("mode", ""), "rebuild"),
        "rows_written": int(properties.get("rows", 0)),
        "source_version": next(iter(sources.values()), 0),
        "version": int(properties.get("version", 0)),
    }


def _queue_refresh(ctx: Context, path: Id, kind: ViewKind, arguments: Mapping[str, Any]) -> str:
    arguments = {**arguments, "table": str(path)}
    record_id = find_table(ctx, path).id
    name = REFRESH_SELECT if kind is ViewKind.SELECT else REFRESH
    return queue_job(ctx, name, arguments, required=Privilege.WRITE, record_id=record_id, table=path).id


def _check_installed(kind: ViewKind) -> None:
    if kind is not ViewKind.SELECT and REFRESH not in pipeline_jobs():
        raise UnsupportedOperationError("This server has no job that refreshes views.")


def _check_udfs_enabled(ctx: Context) -> None:
    if not ctx.settings.udfs:
        raise UnsupportedOperationError(
            "Views that code of clients computes are switched off: the server's setting 'udfs' allows them."
        )


def _refresh_seconds(seconds: float | None) -> float:
    """Return how often a view refreshes by itself, 0 where the request leaves that open. Raises InvalidInputError."""
    if seconds is None:
        return 0.0
    if not 0 < seconds <= MAX_REFRESH_SECONDS:
        raise InvalidInputError(f"auto_refresh_interval_seconds is above 0, and {MAX_REFRESH_SECONDS:.0f} at most.")
    return seconds


def _kind(text: str) -> ViewKind:
    name = text.lower()
    if name in _KIND_ALIASES:
        return _KIND_ALIASES[name]
    if name not in list(ViewKind):
        raise InvalidInputError(f"'{text}' is not a kind of view: choose one of {', '.join(ViewKind)}.")
    return ViewKind(name)


def _udtf(ctx: Context, kind: ViewKind, spec: models.MaterializedViewUdtfEntry | None) -> str:
    """Return the description of a view's code as JSON; "" for a query. Raises InvalidInputError, also for a checksum
    that does not match.
    """
    if kind in (ViewKind.QUERY, ViewKind.SELECT):
        if spec is not None:
            raise InvalidInputError(f"A view of kind '{kind}' has no udtf_spec.")
        return ""
    if spec is None:
        raise InvalidInputError(f"A view of kind '{kind}' needs a udtf_spec.")
    _check_udfs_enabled(ctx)
    if _kind(spec.kind) is not kind:
        raise InvalidInputError(f"The udtf_spec is of kind '{spec.kind}', and the view '{kind}'.")
    if spec.udtf_sha.lower() not in {hashlib.sha256(content).hexdigest() for content in _checksum_contents(spec.udtf)}:
        raise InvalidInputError("The udtf is not what its udtf_sha says.")
    if spec.error_handling:
        raise UnsupportedOperationError("Code that fails ends the refresh: leave 'error_handling' out.")
    _check_images(ctx, spec.manifest)
    return json.dumps({name: value for name, value in msgspec.to_builtins(spec).items() if value is not None})


def _check_images(ctx: Context, manifest: str | None) -> None:
    """Check that the images that a manifest names are in the settings. Raises InvalidInputError."""
    if not manifest:
        return
    try:
        fields = msgspec.json.decode(manifest)
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"The manifest is not JSON: {error}.") from error
    for key, value in fields.items() if isinstance(fields, dict) else ():
        if key.endswith("image") and value:
            check_image(ctx, str(value))


def _checksum_contents(text: str) -> list[bytes]:
    """Return the contents that a checksum of the code may be of: its bytes, or their text in base64."""
    return [_decode_base64("udtf", text), text.encode()]


def _decode_base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one, and so is the error for text that is not ASCII
        raise InvalidInputError(f"'{name}' is not base64: {error}.") from error


def _select_schema(
    ctx: Context, path: Id, request: models.CreateMaterializedViewRequest, definition: ViewDefinition
) -> pa.Schema:
    """Return the schema of a view that the server computes, from its query; a schema that is given has to agree.

    Raises InvalidInputError, and what `resolve_sources` raises: columns of tables that the caller may not read are not
    disclosed.
    """
    resolve_sources(ctx, path, definition, view_definer(ctx.principal))
    query = parse_select(request.source_query)
    source = open_for_reading(
        msgspec.structs.replace(ctx, resolved=None, mounted=None),
        Id((*ctx.database, *query.source)),
        branch=query.branch,
        version=None if query.dedup is None else query.dedup.version,
    )
    schema = infer_schema(source.dataset, query)
    check_names(schema)
    if request.output_schema and not _schema(request.output_schema).equals(schema):
        raise InvalidInputError("'output_schema' is not that of the query: leave it empty, to have it inferred.")
    return schema


def _schema(text: str) -> pa.Schema:
    """Return an Arrow schema from its IPC message in base64. Raises InvalidInputError."""
    raw = _decode_base64("output_schema", text)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(raw))
        check_names(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInputError(f"'output_schema' is not an Arrow schema: {error}.") from error
    if not schema.names:
        raise InvalidInputError("A view has at least one column.")
    return schema
