"""The dialect of lancedb's remote protocol (`lancedb.connect("db://…", host_override=…)`).

It calls the same operations on the same routes, with other field names, other defaults and other answers. This is the
one place that knows: a request speaks it if it carries `x-lancedb-database`, or its path ends in a slash, and names no
delimiter `$`; `rewrite` turns its body into the specification's model, `answer` the specification's response into what
it reads.
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
from tiltyard.api.execution.query import Deadline
from tiltyard.api.lancedb.query import query_request
from tiltyard.api.request_limits import QUERIES
from tiltyard.context import Context
from tiltyard.model.paging import namespaces_scope, tables_scope
from tiltyard.model.schemas.from_json import from_json
from tiltyard.model.schemas.to_json import to_json, to_remote_json
from tiltyard.model.spec import ARROW_STREAM, Operation, models

VERSION_HEADER = (b"phalanx-version", b"0.4.0")
"""Tells lancedb what this server can: several vectors in one request, structured full text, multipart writes.

From 0.5.0 on it would ask for blobs.
"""

DATABASE_HEADER = b"x-lancedb-database"

Fields = dict[str, Any]


def speaks(raw_path: bytes, query_string: bytes, headers: Headers) -> bool:
    """Whether a request is in this dialect. `/v1/table/` alone is how rest-catalog-spec.md writes ListAllTables.

    The client of `namespace_client()` sends the headers of its connection, the database's too, and reads the
    specification's answers. It names the delimiter `$` in each request, and lancedb never does.
    """
    if query_string and any(mark in query_string for mark in _DOLLAR):
        return False
    return DATABASE_HEADER in headers or (raw_path.endswith(b"/") and raw_path.strip(b"/") != b"v1/table")


_DOLLAR = (b"delimiter=%24", b"delimiter=$")

# lancedb retries 409, and shows any 404 as a missing table, version, tag or branch: what else has to be mended is 400.
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
_IN_VAIN = frozenset({409, 503})
"""What lancedb sends again by itself, and a request gets too whose time was over while it waited for others."""


def status(standard: int, code: int, headers: Headers, *, late: bool = False) -> int:
    """The HTTP status of an error for this client; `late` says that the time of the request is over.

    408 and 501 are what it neither repeats nor takes for a missing table. A path that only ends in a slash, and that
    nothing is served at, is no call of lancedb.
    """
    if standard == 504 or (late and standard in _IN_VAIN):
        return 408
    if code == ErrorCode.UNSUPPORTED and standard in (404, 406) and DATABASE_HEADER in headers:
        return 501
    return 400 if code in _BAD_REQUEST else standard


def deadline(operation: Operation, headers: Headers) -> Deadline | None:
    """When an operation has to be done, None where the request does not say.

    Raises InvalidInputError, QueryStoppedError (no time to begin in).
    """
    text = headers.get(_TIMEOUT_HEADER)
    if text is None:
        return None
    if not (text.isdigit() and len(text) <= _LONGEST_TIMEOUT):
        raise InvalidInputError("The header x-request-timeout-ms is a whole number of milliseconds.")
    work = "query" if operation.name in QUERIES else "merge insert" if operation.name == _MERGE else "request"
    found = Deadline.in_seconds(int(text) / 1000, work)
    found.check_begin()
    return found


def limit_time(operation: Operation, ctx: Context, request: Any, limit: Deadline | None) -> Context:
    """The context in which an operation hears of its deadline; a merge waits for others no longer than until then."""
    if limit is None:
        return ctx
    if operation.name == _MERGE:
        request.timeout = f"{math.ceil(min(limit.seconds, _DAY) * 1000)}ms"
    return limit.laid_on(ctx)


_TIMEOUT_HEADER = b"x-request-timeout-ms"
_LONGEST_TIMEOUT = 18  # digits
_MERGE = "MergeInsertIntoTable"
_DAY = 86400.0


INSTEAD: Mapping[str, str] = {"ListAllTables": "ListTables"}
"""What else an operation means here: `GET /v1/table/` lists the tables of the root."""


def amend(operation: Operation, ctx: Context, request: Any) -> None:
    """Change a bound request where this client says something else by the same field."""
    if operation.name == "ListTables" and request.page_token:
        request.page_token = _page_token(ctx, tables_scope(tuple(request.id or ())), request.page_token)
    elif operation.name == "ListNamespaces" and request.page_token:
        request.page_token = _page_token(ctx, namespaces_scope(tuple(request.id or ())), request.page_token)


def _page_token(ctx: Context, scope: str, given: str) -> str:
    """`table_names` pages by the last name it has seen, `list_tables` by the token it was given."""
    try:
        ctx.paging.key(scope, given)
    except InvalidInputError:
        return ctx.paging.token(scope, given)
    return given


def rewrite(operation: Operation, ctx: Context, headers: Headers) -> Rewrite:
    """How to read the body of an operation: as the specification has it but for `_REWRITES`."""
    change = _REWRITES.get(operation.name, _same)
    media = headers.get(b"content-type", b"").decode("latin-1")
    return partial(_rewritten, change, ctx, media)


def _rewritten(change: Callable[[Context, Fields], Any], ctx: Context, media: str, body: bytes) -> Any:
    if media.startswith(ARROW_STREAM):
        return change(ctx, {"arrow": body})
    fields = decode_json(body, dict[str, Any] | None) or {}
    return change(ctx, {name: value for name, value in fields.items() if value is not None})


def _same(ctx: Context, fields: Fields) -> Fields:
    return fields


def _query(ctx: Context, fields: Fields) -> models.QueryTableRequest:
    return query_request(fields)


def _explain(ctx: Context, fields: Fields) -> Fields:
    query = fields.get("query")
    flat = query if isinstance(query, dict) and "k" in query else fields
    return {"query": msgspec.to_builtins(query_request(flat)), "verbose": bool(fields.get("verbose", False))}


def _analyze(ctx: Context, fields: Fields) -> Fields:
    built: Fields = msgspec.to_builtins(query_request(fields))
    return built


def _create_index(ctx: Context, fields: Fields) -> Fields:
    """`metric_type` is the specification's `distance_type`; an index of the same name is always replaced.

    lancedb promises its users so, and its older calls send `replace: false` without being asked.
    """
    renamed = {"distance_type" if name == "metric_type" else name: value for name, value in fields.items()}
    return renamed | {"replace": True}


def _rename(ctx: Context, fields: Fields) -> Fields:
    return {"new_namespace_id" if name == "new_namespace" else name: value for name, value in fields.items()}


def _add_columns(ctx: Context, fields: Fields) -> Fields:
    """New empty columns come as the schema of an Arrow stream."""
    if "arrow" not in fields:
        return fields
    try:
        schema = pa.ipc.open_stream(fields["arrow"]).schema
    except pa.ArrowException as error:
        raise InvalidInputError(f"The body is no Arrow schema: {error}") from error
    return {"new_columns": [], "schema": msgspec.to_builtins(to_json(schema))}


def _describe(ctx: Context, fields: Fields) -> Fields:
    """lancedb cannot do without version and schema, and has no use for credentials: the server does all the work."""
    return {"vend_credentials": False} | fields | {"load_detailed_metadata": True}


_REWRITES: Mapping[str, Callable[[Context, Fields], Any]] = {
    "QueryTable": _query,
    "ExplainTableQueryPlan": _explain,
    "AnalyzeTableQueryPlan": _analyze,
    "CreateTableIndex": _create_index,
    "CreateTableScalarIndex": _create_index,
    "RenameTable": _rename,
    "AlterTableAddColumns": _add_columns,
    "DescribeTable": _describe,
}


def answer(operation: Operation, ctx: Context, result: Any) -> Any:
    """What this client reads of a response."""
    change = _ANSWERS.get(operation.name)
    return change(result) if change else ({} if result is None else result)


def _described(result: models.DescribeTableResponse) -> Fields:
    if result.schema is None:
        raise InvalidTableStateError("This table is only declared: create it, or insert rows through its namespace.")
    fields: Fields = msgspec.to_builtins(result)
    return fields | {"schema": to_remote_json(from_json(result.schema))}


def _updated(result: models.UpdateTableResponse) -> Fields:
    fields: Fields = msgspec.to_builtins(result)
    return fields | {"rows_updated": result.updated_rows}


def _bare_tags(result: models.ListTableTagsResponse) -> Any:
    return result.tags


def _plan(result: Any) -> Any:
    return result if isinstance(result, str) else getattr(result, "plan", None) or result.analysis


def _metadata(result: Any) -> Any:
    return result if isinstance(result, dict) else result.metadata


def _index_stats(result: models.DescribeTableIndexStatsResponse) -> Any:
    """lancedb waits for an index until no row is left out, and hears of its failure only by an error."""
    if result.failure:
        raise InvalidTableStateError(f"The index could not be built: {result.failure} Order it again, or drop it.")
    if result.status == "building" and not result.num_unindexed_rows:
        raise TableIndexNotFoundError("The index is being built: ask again in a moment.")
    return result


def _no_lsm(result: models.GetTableLsmWriteSpecResponse) -> Fields:
    return {"lsm_write_spec": None}


_ANSWERS: Mapping[str, Callable[[Any], Any]] = {
    "DescribeTableIndexStats": _index_stats,
    "GetTableLsmWriteSpec": _no_lsm,
    "DescribeTable": _described,
    "UpdateTable": _updated,
    "ListTableTags": _bare_tags,
    "ExplainTableQueryPlan": _plan,
    "AnalyzeTableQueryPlan": _plan,
    "UpdateTableSchemaMetadata": _metadata,
}
