"""Materialized views: tables that a job of the pipeline fills, with what they are filled from in their schema.

The query and the code of a view are text to the server: the job reads them. A view is created without rows, and each
refresh is a transaction.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.access import Privilege
from tiltyard.access.creating import check_new_table
from tiltyard.access.needs import on_table
from tiltyard.access.seeing import seen_namespace
from tiltyard.catalog.jobs import queue_job
from tiltyard.ids import display, table_id
from tiltyard.jobs import pipeline_jobs
from tiltyard.operations import Needs, operation
from tiltyard.sound import check_names
from tiltyard.spec import models
from tiltyard.tables.create import create_table
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.virtual import VIEW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context

REFRESH = "refresh"


class ViewKind(StrEnum):
    """How a view's rows come to be."""

    QUERY = "query"
    UDTF = "udtf"
    CHUNKER = "chunker"


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
    check_new_table(ctx, path, None)
    if request.udtf_spec is not None:
        seen_namespace(ctx, path[:-1], Privilege.RUN_UDFS.value)
    return ctx


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
    kind = _kind(request.kind)
    spec = _udtf(ctx, kind, request.udtf_spec)
    if not request.source_query.strip():
        raise InvalidInputError("A view needs a 'source_query'.")
    own = {"kind": kind.value, "query": request.source_query, "udtf": spec}
    own["auto_refresh"] = "true" if request.auto_refresh else ""
    metadata = {f"{VIEW}{name}": text for name, text in own.items() if text}
    schema = _schema(request.output_schema)
    schema = schema.with_metadata({**(schema.metadata or {}), **metadata})
    filled = request.with_no_data is False
    if filled:
        _check_installed()
    made = create_table(ctx, models.CreateTableRequest(id=list(path)), NoRows(schema))
    job_id = _queued(ctx, path) if filled else None
    return models.CreateMaterializedViewResponse(version=made.version or 1, job_id=job_id)


@operation(needs=on_table(Privilege.WRITE))
def refresh_materialized_view(
    ctx: Context, request: models.RefreshMaterializedViewRequest
) -> models.RefreshMaterializedViewResponse:
    """Queue the job that brings a view up to date: incrementally where its query allows it.

    Sizes and concurrencies are hints for another engine. Raises InvalidInputError (a table that is no view, a limit on
    a view that is no chunker), UnsupportedOperationError (no such job is installed, or code is switched off).
    """
    table = open_for_reading(ctx, request.id)
    told = {key.decode(): value.decode() for key, value in (table.dataset.schema.metadata or {}).items()}
    kind = told.get(f"{VIEW}kind")
    if kind is None:
        raise InvalidInputError(f"The table '{display(table_id(request.id))}' is no materialized view.")
    if request.output_limit is not None and kind != ViewKind.CHUNKER:
        raise InvalidInputError(f"Only a chunker's view has an output_limit, and this one is a {kind}.")
    if kind != ViewKind.QUERY:
        _check_code(ctx)
    options = {
        "source_version": request.src_version,
        "rows_per_fragment": request.max_rows_per_fragment,
        "output_limit": request.output_limit,
    }
    _check_installed()
    given = {name: value for name, value in options.items() if value is not None}
    return models.RefreshMaterializedViewResponse(job_id=_queued(ctx, table_id(request.id), **given))


def _queued(ctx: Context, path: Sequence[str], **options: int) -> str:
    arguments = {"table": display(tuple(path)), **options}
    return queue_job(ctx, REFRESH, arguments, record_id=find_table(ctx, path).id, table=path).id


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
    return json.dumps(msgspec.to_builtins(spec))


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
