"""Materialized views: tables that a job of the pipeline fills, with what they are filled from in their schema.

The query and the code of a view are text to the server: the job reads them. A view is created without rows, and each
refresh is a transaction.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.access import Privilege
from tiltyard.access.create_checks import check_table
from tiltyard.access.needs import on_table
from tiltyard.access.visibility import seen_namespace, seen_table
from tiltyard.catalog.job_admission import job_check
from tiltyard.catalog.jobs import queue_job
from tiltyard.model.arrow_compat import check_names
from tiltyard.model.ids import display, table_id
from tiltyard.model.jobs import pipeline_jobs
from tiltyard.model.modes import CreateMode
from tiltyard.model.operations import Needs, operation
from tiltyard.model.spec import models
from tiltyard.model.view_definitions import ViewDefinition, ViewKind, check_query_text
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.name_conflicts import prefer_name_conflict
from tiltyard.tables.schema.computed_columns import check_image
from tiltyard.tables.schema.view_sources import check_definition, readable_sources, remember_view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.model.ids import Id

REFRESH = "refresh"


_ALSO = {"scalar_udtf": ViewKind.CHUNKER}
"""Another name that the specification gives a kind."""


@dataclass(frozen=True, slots=True)
class NoRows:
    """An Arrow body of a schema and no rows."""

    schema: pa.Schema
    size: int = 0
    failure: None = None

    def reader(self) -> pa.RecordBatchReader:
        """No batches."""
        return pa.RecordBatchReader.from_batches(self.schema, [])


def _admit(ctx: Context, request: models.CreateMaterializedViewRequest) -> Context:
    path = table_id(request.id)
    seen_namespace(ctx, path[:-1], Privilege.CREATE.value)
    if request.udtf_spec is not None:
        seen_namespace(ctx, path[:-1], Privilege.RUN_UDFS.value)
    return check_table(ctx, path, CreateMode.CREATE, None)


CREATE_VIEW = Needs("`create` on the namespace; for a view that code computes, `run_udfs` on it too", _admit)


@operation(needs=CREATE_VIEW)
def create_materialized_view(
    ctx: Context, request: models.CreateMaterializedViewRequest
) -> models.CreateMaterializedViewResponse:
    """Create a view, as a table of `output_schema` without rows; with `with_no_data` false, queue its first refresh.

    `source_query` of a `query` is Spark SQL over tables of this catalog. Raises NamespaceNotFoundError,
    TableAlreadyExistsError, InvalidInputError (a kind, a schema or a UDTF that cannot be), UnsupportedOperationError
    (code of clients is switched off, or no such job is installed).
    """
    path = table_id(request.id)
    with prefer_name_conflict(ctx, path):
        kind = _kind(request.kind)
        spec = _udtf(ctx, kind, request.udtf_spec)
        if not request.source_query.strip():
            raise InvalidInputError("A view needs a 'source_query'.")
        check_query_text(request.source_query)
        definition = ViewDefinition(kind, request.source_query, spec, bool(request.auto_refresh))
        schema = _schema(request.output_schema)
        schema = schema.with_metadata({**(schema.metadata or {}), **definition.metadata()})
        sources: Mapping[str, str] = {}
        if filled := request.with_no_data is False:
            _check_installed()
            sources = readable_sources(ctx, path, definition.query, ctx.principal)
    made = create_table(ctx, models.CreateTableRequest(id=list(path)), NoRows(schema))
    remember_view(ctx, path, definition)
    given = {"sources": sources, "definition": definition.digest}
    job_id = _queued(msgspec.structs.replace(ctx, resolved=None), path, given) if filled else None
    return models.CreateMaterializedViewResponse(version=made.version or 1, job_id=job_id)


@operation(needs=on_table(Privilege.WRITE))
def refresh_materialized_view(
    ctx: Context, request: models.RefreshMaterializedViewRequest
) -> models.RefreshMaterializedViewResponse:
    """Queue the job that brings a view up to date: incrementally where its query allows it.

    Whoever asks, and whoever made the view, must be allowed to read all that its query reads. Sizes and concurrencies
    are hints for another engine. Raises InvalidInputError (a table that is no view, a query that is none, a limit on a
    view that is no chunker), InvalidTableStateError (its definition was changed), TableNotFoundError,
    PermissionDeniedError, UnsupportedOperationError (no such job is installed, or code is switched off).
    """
    _check_installed()
    options = {
        "source_version": request.src_version,
        "rows_per_fragment": request.max_rows_per_fragment,
        "output_limit": request.output_limit,
    }
    given = {name: value for name, value in options.items() if value is not None}
    path = table_id(request.id)
    return models.RefreshMaterializedViewResponse(job_id=_queued(ctx, path, check_refresh(ctx, path, given)))


@job_check(REFRESH)
def check_refresh(ctx: Context, path: Id, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a refresh, with what it may read for whoever asks. Raises as `refresh_materialized_view`."""
    table = open_for_reading(ctx, path)
    definition = ViewDefinition.of(table.dataset.schema.metadata)
    if definition is None:
        raise InvalidInputError(f"The table '{display(path)}' is no materialized view.")
    if arguments.get("output_limit") is not None and definition.kind is not ViewKind.CHUNKER:
        raise InvalidInputError(f"Only a chunker's view has an output_limit, and this one is a {definition.kind}.")
    if definition.kind is not ViewKind.QUERY:
        _check_code(ctx)
        if not ctx.principal.administrator:
            seen_table(ctx, path, Privilege.RUN_UDFS.value)
    definer = check_definition(ctx, table.record, definition)
    sources = readable_sources(ctx, path, definition.query, definer)
    return {**arguments, "sources": sources, "definition": definition.digest}


def _queued(ctx: Context, path: Id, arguments: Mapping[str, Any]) -> str:
    given = {**arguments, "table": display(path)}
    record_id = find_table(ctx, path).id
    return queue_job(ctx, REFRESH, given, wanted=Privilege.WRITE, record_id=record_id, table=path).id


def _check_installed() -> None:
    if REFRESH not in pipeline_jobs():
        raise UnsupportedOperationError("This server has no job that refreshes views.")


def _check_code(ctx: Context) -> None:
    if not ctx.settings.udfs:
        raise UnsupportedOperationError(
            "Views that code of clients computes are switched off: the server's setting 'udfs' allows them."
        )


def _kind(text: str) -> ViewKind:
    wanted = text.lower()
    if wanted in _ALSO:
        return _ALSO[wanted]
    if wanted not in list(ViewKind):
        raise InvalidInputError(f"'{text}' is no kind of view: choose one of {', '.join(ViewKind)}.")
    return ViewKind(wanted)


def _udtf(ctx: Context, kind: ViewKind, spec: models.MaterializedViewUdtfEntry | None) -> str:
    """The description of a view's code, as JSON; "" for a query. Raises InvalidInputError if it is not what it says."""
    if kind is ViewKind.QUERY:
        if spec is not None:
            raise InvalidInputError("A view of kind 'query' has no udtf_spec.")
        return ""
    if spec is None:
        raise InvalidInputError(f"A view of kind '{kind}' needs a udtf_spec.")
    _check_code(ctx)
    if _kind(spec.kind) is not kind:
        raise InvalidInputError(f"The udtf_spec is of kind '{spec.kind}', and the view '{kind}'.")
    if spec.udtf_sha.lower() not in {hashlib.sha256(one).hexdigest() for one in _readings(spec.udtf)}:
        raise InvalidInputError("The udtf is not what its udtf_sha says.")
    if spec.error_handling:
        raise UnsupportedOperationError("Code that fails ends the refresh: leave 'error_handling' out.")
    _check_images(ctx, spec.manifest)
    return json.dumps({name: value for name, value in msgspec.to_builtins(spec).items() if value is not None})


def _check_images(ctx: Context, manifest: str | None) -> None:
    """Images that a manifest names are such as may be run. Raises InvalidInputError."""
    if not manifest:
        return
    try:
        told = msgspec.json.decode(manifest)
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"The manifest is no JSON: {error}.") from error
    for key, value in told.items() if isinstance(told, dict) else ():
        if key.endswith("image") and value:
            check_image(ctx, str(value))


def _readings(text: str) -> list[bytes]:
    """What a checksum of the envelope may be of: its bytes, or the text that carries them."""
    return [_decoded("udtf", text), text.encode()]


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii's is one, and so is that for what is not ASCII
        raise InvalidInputError(f"'{name}' is not base64: {error}.") from error


def _schema(text: str) -> pa.Schema:
    """An Arrow schema, from its message in base64. Raises InvalidInputError."""
    raw = _decoded("output_schema", text)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(raw))
        check_names(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInputError(f"'output_schema' is no Arrow schema: {error}.") from error
    if not schema.names:
        raise InvalidInputError("A view has at least one column.")
    return schema
