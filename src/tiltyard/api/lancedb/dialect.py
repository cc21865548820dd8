"""Translate lancedb's remote protocol (`lancedb.connect("db://…", host_override=…)`) to and from the specification.

It calls the same operations on the same routes, with other field names, other defaults and other responses. This is the
one place that knows: of a request that speaks it (`exchange.is_lancedb_request`) `rewrite` turns the body into the
specification's model, and `convert_response` the specification's response into lancedb's.
`docs/compatibility.md` lists the differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import (
    ErrorCode,
    InvalidInputError,
    InvalidTableStateError,
    TableIndexNotFoundError,
)

from tiltyard.api.binding import Headers, Rewrite, decode_json
from tiltyard.api.deadlines import Deadline
from tiltyard.api.lancedb.databases import DATABASE_HEADER
from tiltyard.api.lancedb.query import query_request
from tiltyard.context import Context
from tiltyard.model.columns.index_types import IndexType
from tiltyard.model.operations import Handler
from tiltyard.model.paging import namespaces_scope, tables_scope
from tiltyard.model.schemas.arrow_json import from_json, to_json, to_remote_json
from tiltyard.model.spec import ARROW_STREAM, Operation, models
from tiltyard.runtime.client_arrow.reading import read_schema

VERSION_HEADER = (b"phalanx-version", b"0.6.0")
"""Declares to lancedb what this server supports: several vectors in one request, structured full text, multipart
writes, blobs, full text whose documents are the elements of lists."""

Fields = dict[str, Any]


# lancedb retries 409, and shows any 404 as a missing table, version, tag or branch: other errors of the client are 400.
_BAD_REQUEST = frozenset(
    {
        ErrorCode.NAMESPACE_ALREADY_EXISTS,
        ErrorCode.NAMESPACE_NOT_EMPTY,
        ErrorCode.TABLE_ALREADY_EXISTS,
        ErrorCode.TABLE_INDEX_ALREADY_EXISTS,
        ErrorCode.TABLE_TAG_ALREADY_EXISTS,
        ErrorCode.TABLE_COLUMN_NOT_FOUND,
        ErrorCode.INVALID_TABLE_STATE,
    }
)
_RETRIED = frozenset({409, 503})
"""What lancedb retries by itself. A request whose time ran out while it waited for others gets it, too."""


def error_status(standard: int, code: int, headers: Headers, *, late: bool = False) -> int:
    """Return the HTTP status of an error for this client; `late`: the time that it gave its request is over.

    408 and 501 are what it neither retries nor takes for a missing table. A path that only ends in a slash, and that
    has no route, is no call of lancedb.
    """
    if standard == 504 or (late and standard in _RETRIED):
        return 408
    if code == ErrorCode.UNSUPPORTED and standard in (404, 406) and DATABASE_HEADER in headers:
        return 501
    return 400 if code in _BAD_REQUEST else standard


def read_deadline(operation: Operation, handler: Handler, headers: Headers) -> Deadline | None:
    """Return the deadline of a request; None where its headers have none.

    Raises InvalidInputError, DeadlineExceededError (no time to start in).
    """
    text = headers.get(_TIMEOUT_HEADER)
    if text is None:
        return None
    if not (text.isdigit() and len(text) <= _MAX_TIMEOUT_DIGITS):
        raise InvalidInputError("The header x-request-timeout-ms is a whole number of milliseconds.")
    work = "query" if handler.query else "merge insert" if operation.name == _MERGE else "request"
    deadline = Deadline.start(int(text) / 1000, work)
    deadline.check_start()
    return deadline


def apply_deadline(operation: Operation, ctx: Context, request: Any, deadline: Deadline) -> Context:
    """Return the context whose operation checks the deadline; a merge retries conflicts no longer than until then."""
    if operation.name == _MERGE:
        request.timeout = f"{math.ceil(min(deadline.seconds, _DAY_SECONDS) * 1000)}ms"
    return deadline.apply_to(ctx)


_TIMEOUT_HEADER = b"x-request-timeout-ms"
_MAX_TIMEOUT_DIGITS = 18
_MERGE = "MergeInsertIntoTable"
_DAY_SECONDS = 86400.0


SUBSTITUTES: Mapping[str, str] = {"ListAllTables": "ListTables"}
"""Operations that stand for another one here: `GET /v1/table/` lists the tables of the root."""


def adjust(operation: Operation, ctx: Context, request: Any) -> None:
    """Change a bound request where this client means something else by the same field.

    Where it creates a table that may exist, it opens one that the server says to exist: lancedb 0.41 compares the
    schemas first.
    """
    if operation.name == "CreateTable":
        request.check_schema = True
    elif operation.name == "ListTables" and request.page_token:
        request.page_token = _page_token(ctx, tables_scope(tuple(request.id or ())), request.page_token)
    elif operation.name == "ListNamespaces" and request.page_token:
        request.page_token = _page_token(ctx, namespaces_scope(tuple(request.id or ())), request.page_token)


def _page_token(ctx: Context, scope: str, token: str) -> str:
    """Return a page token: `table_names` sends the last name of a page instead, `list_tables` the token it got."""
    try:
        ctx.paging.read_key(scope, token)
    except InvalidInputError:
        return ctx.paging.make_token(scope, token)
    return token


def rewrite(operation: Operation, ctx: Context, headers: Headers) -> Rewrite:
    """Return what reads the body of an operation: as the specification has it, but for `_REWRITES`."""
    change = _REWRITES.get(operation.name, _unchanged)
    media = headers.get(b"content-type", b"").decode("latin-1")
    return partial(_rewritten, change, ctx, media)


def _rewritten(change: Callable[[Context, Fields], Any], ctx: Context, media: str, body: bytes) -> Any:
    if media.startswith(ARROW_STREAM):
        return change(ctx, {"arrow": body})
    fields = decode_json(body, dict[str, Any] | None) or {}
    return change(ctx, {name: value for name, value in fields.items() if value is not None})


def _unchanged(ctx: Context, fields: Fields) -> Fields:
    return fields


def _query(ctx: Context, fields: Fields) -> models.QueryTableRequest:
    return query_request(fields)


def _explain(ctx: Context, fields: Fields) -> Fields:
    query = fields.get("query")
    flat = query if isinstance(query, dict) and "k" in query else fields
    return {"query": msgspec.to_builtins(query_request(flat)), "verbose": bool(fields.get("verbose", False))}


def _analyze(ctx: Context, fields: Fields) -> Fields:
    return {"query": msgspec.to_builtins(query_request(fields))}


def _create_index(ctx: Context, fields: Fields) -> Fields:
    """Rename `metric_type` to the specification's `distance_type`; always replace an index of the same name.

    lancedb promises its users so, and its older calls send `replace: false` by default.
    """
    renamed = {"distance_type" if name == "metric_type" else name: value for name, value in fields.items()}
    return renamed | {"replace": True}


def _rename(ctx: Context, fields: Fields) -> Fields:
    return {"new_namespace_id" if name == "new_namespace" else name: value for name, value in fields.items()}


def _add_columns(ctx: Context, fields: Fields) -> Fields:
    """Read new empty columns, which come as the schema of an Arrow stream."""
    if "arrow" not in fields:
        return fields
    try:
        schema = read_schema(fields["arrow"])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInputError(f"The body is not an Arrow schema: {error}") from error
    return {"new_columns": [], "schema": msgspec.to_builtins(to_json(schema))}


def _describe(ctx: Context, fields: Fields) -> Fields:
    """Request version and schema, which lancedb needs, and no credentials: the server reads and writes for it."""
    return {"vend_credentials": False} | fields | {"load_detailed_metadata": True}


def _create_view(ctx: Context, fields: Fields) -> Fields:
    """Read the definition of a materialized view, which is a query alone: its schema is inferred."""
    query = fields.pop("query", None)
    if not isinstance(query, str):
        raise InvalidInputError("A materialized view needs a 'query'.")
    fields.setdefault("with_no_data", False)
    return fields | {"kind": "select", "source_query": query, "output_schema": ""}


def _refresh_view(ctx: Context, fields: Fields) -> Fields:
    return {"src_version" if name == "source_version" else name: value for name, value in fields.items()}


_REWRITES: Mapping[str, Callable[[Context, Fields], Any]] = {
    "QueryTable": _query,
    "ExplainTableQueryPlan": _explain,
    "AnalyzeTableQueryPlan": _analyze,
    "CreateTableIndex": _create_index,
    "CreateTableScalarIndex": _create_index,
    "RenameTable": _rename,
    "AlterTableAddColumns": _add_columns,
    "DescribeTable": _describe,
    "CreateMaterializedView": _create_view,
    "RefreshMaterializedView": _refresh_view,
}


def success_status(operation: Operation, response: Any) -> int:
    """Return the HTTP status of a response: 202 where the client insists on it, for work that is queued."""
    is_queued = operation.name in _QUEUED and response.job_id is not None
    return 202 if is_queued else operation.status


_QUEUED = frozenset({"CreateMaterializedView", "RefreshMaterializedView"})


def convert_response(operation: Operation, response: Any) -> Any:
    """Return a response as this client reads it."""
    convert = _RESPONSES.get(operation.name)
    return convert(response) if convert else ({} if response is None else response)


def _table_description(response: models.DescribeTableResponse) -> Fields:
    if response.schema is None:
        raise InvalidTableStateError("This table is only declared: create it, or insert rows through its namespace.")
    fields: Fields = msgspec.to_builtins(response)
    return fields | {"schema": to_remote_json(from_json(response.schema))}


def _update_count(response: models.UpdateTableResponse) -> Fields:
    """Rename the count of rows: lancedb 0.41 reads both names as one field, and refuses a response with both."""
    fields: Fields = msgspec.to_builtins(response)
    return {"rows_updated" if name == "updated_rows" else name: value for name, value in fields.items()}


def _bare_tags(response: models.ListTableTagsResponse) -> Any:
    return response.tags


def _plan(response: Any) -> Any:
    return response if isinstance(response, str) else getattr(response, "plan", None) or response.analysis


def _metadata(response: Any) -> Any:
    return response if isinstance(response, dict) else response.metadata


def _index_stats(response: models.DescribeTableIndexStatsResponse) -> Any:
    """Return an index's figures: lancedb polls them until no row is unindexed, and sees a failure only as an error."""
    if response.failure:
        raise InvalidTableStateError(f"The index could not be built: {response.failure} Create it again, or drop it.")
    if response.status == "building" and not response.num_unindexed_rows:
        raise TableIndexNotFoundError("The index is being built: try again in a moment.")
    return _with_client_kind(response)


_UNKNOWN_KIND = "Unknown"
"""The client's word for a kind of index that it does not know: it reads no list that has another one."""
_UNKNOWN_TO_CLIENT = frozenset({IndexType.MINHASHLSH.value})


def _with_client_kind(described: Any) -> Fields:
    """Return the description of an index, or its figures, with a kind that the client knows."""
    fields: Fields = msgspec.to_builtins(described)
    return fields | {"index_type": _UNKNOWN_KIND} if fields.get("index_type") in _UNKNOWN_TO_CLIENT else fields


def _indices(response: models.ListTableIndicesResponse) -> Fields:
    fields: Fields = msgspec.to_builtins(response)
    return fields | {"indexes": [_with_client_kind(index) for index in response.indexes]}


def _job_of_transaction(response: Any) -> Fields:
    """Return a response with the id of the job that the client can wait for."""
    fields: Fields = msgspec.to_builtins(response)
    return fields | {"job_id": response.transaction_id}


def _with_nulls(*names: str) -> Callable[[Any], Fields]:
    """Return what renders a response with null for the fields that hold nothing."""
    return lambda response: dict.fromkeys(names) | msgspec.to_builtins(response)


_RESPONSES: Mapping[str, Callable[[Any], Any]] = {
    "CreateTableIndex": _job_of_transaction,
    "CreateTableScalarIndex": _job_of_transaction,
    "DropTable": _job_of_transaction,
    "DropMaterializedView": _job_of_transaction,
    "DropView": _job_of_transaction,
    "DescribeTableIndexStats": _index_stats,
    "GetTableRteSpec": _with_nulls("rte_spec", "lsm_write_spec"),
    "GetTableRteStats": _with_nulls("rte_stats", "lsm_stats"),
    "DescribeTable": _table_description,
    "UpdateTable": _update_count,
    "ListTableIndices": _indices,
    "ListTableTags": _bare_tags,
    "ExplainTableQueryPlan": _plan,
    "AnalyzeTableQueryPlan": _plan,
    "UpdateTableSchemaMetadata": _metadata,
}
