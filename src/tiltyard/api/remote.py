"""The dialect of lancedb's remote protocol (`lancedb.connect("db://…", host_override=…)`).

It calls the same operations on the same routes, with other field names, other defaults and other answers. This is the
one place that knows: a request speaks it if it carries `x-lancedb-database`, or its path ends in a slash;
`rewrite` turns its body into the specification's model, `answer` the specification's response into what it reads.
`docs/compatibility.md` lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import ErrorCode, InvalidInputError, InvalidTableStateError

from tiltyard.api.remote_query import query_request
from tiltyard.api.requests import Headers, Rewrite, decode_json
from tiltyard.context import Context
from tiltyard.paging import namespaces_scope, tables_scope
from tiltyard.schemas import from_json, to_json, to_remote_json
from tiltyard.spec import ARROW_STREAM, Operation, models

VERSION_HEADER = (b"phalanx-version", b"0.5.0")
"""Tells lancedb what this server can: several vectors in one request, structured full text, multipart writes, blobs."""

DATABASE_HEADER = b"x-lancedb-database"

Fields = dict[str, Any]


def speaks(raw_path: bytes, headers: Headers) -> bool:
    """Whether a request is in this dialect. `/v1/table/` alone is how rest-catalog-spec.md writes ListAllTables."""
    return DATABASE_HEADER in headers or (raw_path.endswith(b"/") and raw_path.strip(b"/") != b"v1/table")


# lancedb retries 409 and shows any 404 as a missing table: what the user has to mend is 400.
_BAD_REQUEST = frozenset(
    {
        ErrorCode.NAMESPACE_ALREADY_EXISTS,
        ErrorCode.NAMESPACE_NOT_EMPTY,
        ErrorCode.TABLE_ALREADY_EXISTS,
        ErrorCode.TABLE_INDEX_ALREADY_EXISTS,
        ErrorCode.TABLE_TAG_NOT_FOUND,
        ErrorCode.TABLE_TAG_ALREADY_EXISTS,
        ErrorCode.TABLE_VERSION_NOT_FOUND,
        ErrorCode.TABLE_COLUMN_NOT_FOUND,
        ErrorCode.INVALID_TABLE_STATE,
    }
)


def status(standard: int, code: int) -> int:
    """The HTTP status of an error for this client."""
    return 400 if code in _BAD_REQUEST else standard


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


_ANSWERS: Mapping[str, Callable[[Any], Any]] = {
    "DescribeTable": _described,
    "UpdateTable": _updated,
    "ListTableTags": _bare_tags,
    "ExplainTableQueryPlan": _plan,
    "AnalyzeTableQueryPlan": _plan,
    "UpdateTableSchemaMetadata": _metadata,
}
