"""Apply a table's row filters and column masks to queries and changes (docs/policies.md).

A request is rewritten before it is planned: its filter is combined with the policies' and applied before any search,
its columns become the visible ones, and a request that names a masked column is refused. No message of Lance reaches a
restricted client, since Lance's messages quote values of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.access.policies import EffectivePolicy, MaskKind, policy_on
from tiltyard.access.predicates import check_filter, check_visible_expression, column_tokens, tokenize
from tiltyard.context import OpenTable
from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.schemas.nested_types import is_text
from tiltyard.model.spec import models
from tiltyard.tables.contracts.enforcement import ContractError
from tiltyard.tables.keys.errors import DuplicateKeyError
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.integer_filters import ROW_ID
from tiltyard.tables.query.plan import Search, full_text_columns

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord

_VIRTUAL_COLUMNS = frozenset({ROW_ID, "_distance", "_score"})
_POSITIONS = frozenset({"_rowoffset", "_rowaddr"})
"""Columns that disclose how many rows are before a row, hidden rows included."""


@dataclass(frozen=True, slots=True)
class PolicyScope:
    """What policies allow on one version of a table.

    `column_types` are what its columns may be compared with, by name (see `check_filter`); `masked` has the names of
    masked columns in lower case.
    """

    schema: pa.Schema
    policy: EffectivePolicy
    column_types: Mapping[str, str]
    masked: frozenset[str]

    def combine_filter(self, requested: str | None, label: str = "filter") -> str | None:
        """Combine the policies' filter with a request's. Raises InvalidInputError, PermissionDeniedError."""
        row_filter = self.policy.filter
        if requested is None:
            return row_filter
        check_expression(requested, label)
        if row_filter is None:
            return check_visible_expression(requested, label, self.column_types, self.masked)
        return f"({row_filter}) AND ({check_filter(requested, label, self.column_types, self.masked)})"

    def check_computed(self, expression: str, label: str) -> str:
        """Check an expression that is computed for visible rows only; return it. Raises as `combine_filter` does."""
        return check_visible_expression(expression, label, self.column_types, self.masked)

    def check_visible(self, name: str, label: str) -> str:
        """Check that a requested column is not masked; return it. Raises InvalidInputError, PermissionDeniedError."""
        if name.split(".", maxsplit=1)[0].strip("`").casefold() in self.masked:
            raise PermissionDeniedError(f"The {label} names a column that is masked for you: '{name}'.")
        if name not in self.schema.names and name not in _VIRTUAL_COLUMNS:
            raise InvalidInputError(f"The {label} names no whole column of this table: '{name}'.")
        return name

    @property
    def null_columns(self) -> dict[str, pa.Field]:
        """Return the columns whose values are all replaced by null."""
        masks = self.policy.masks
        return {name: self.schema.field(name) for name in masks if masks[name].kind is MaskKind.NULL}


def policy_scope(dataset: lance.LanceDataset, policy: EffectivePolicy) -> PolicyScope:
    """Return what policies allow on a version. Raises PermissionDeniedError where a policy does not fit its schema."""
    schema, policy = dataset.schema, policy_on(policy, dataset)
    maskable = [name for name in schema.names if "`" not in name]
    if missing := sorted(set(policy.masks) - set(maskable)):
        raise PermissionDeniedError(
            "A policy masks columns that the table does not have, so nothing is shown until it is set again:"
            f" {', '.join(missing)}."
        )
    masked = policy.masked_columns | _POSITIONS
    return PolicyScope(schema, policy, {ROW_ID: "number"} | _comparable_types(schema), masked)


def policy_scope_of_latest(
    ctx: Context, record: TableRecord, branch: Branch, version: int | None, dataset: lance.LanceDataset
) -> PolicyScope | None:
    """Return what policies allow the principal on an open table; None where no policy applies.

    Policies are made for the latest version of main: on a branch, or in an older version, a column may have another
    name or meaning. Raises PermissionDeniedError for those, and as `policy_scope` does.
    """
    policy = effective_policy_of(ctx, record)
    if policy is None:
        return None
    if not branch.is_main:
        raise PermissionDeniedError("Policies restrict you on this table: read and change its main branch.")
    if version is not None and not ctx.segments:  # of a sub-query, it was the latest a moment ago, which is signed
        latest = ctx.storage.datasets.open_for_reading(record.location).version
        if version != latest:
            raise PermissionDeniedError("Policies restrict you on this table: read its latest version.")
    return policy_scope(dataset, policy)


def open_with_policies(
    ctx: Context, names: Sequence[str] | None, branch: Branch, version: int | None
) -> tuple[OpenTable, PolicyScope | None]:
    """Open a table for reading, with what policies allow on it.

    Raises as `open_for_reading` and `policy_scope_of_latest` do.
    """
    table = open_for_reading(ctx, names, branch=branch, version=version, by_catalog=True)
    return table, policy_scope_of_latest(ctx, table.record, branch, version, table.dataset)


def _comparable_types(schema: Iterable[pa.Field], prefix: str = "") -> dict[str, str]:
    """Return what columns, and fields of structs by their paths, may be compared with."""
    kinds: dict[str, str] = {}
    for field in schema:
        kinds[f"{prefix}{field.name}"] = _comparable_type(field.type)
        if pa.types.is_struct(field.type):
            kinds |= _comparable_types(field.type, f"{prefix}{field.name}.")
    return kinds


def _comparable_type(type_: pa.DataType) -> str:
    types = pa.types
    if types.is_dictionary(type_) or types.is_list(type_) or types.is_large_list(type_):
        return _comparable_type(type_.value_type)
    if is_text(type_):
        return "text"
    if types.is_boolean(type_):
        return "boolean"
    if types.is_timestamp(type_) or types.is_date32(type_):
        return "time"
    if (types.is_integer(type_) and type_ != pa.uint64()) or types.is_floating(type_):
        return "number"
    return ""


def restrict_query(
    dataset: lance.LanceDataset, request: models.QueryTableRequest, scope: PolicyScope
) -> models.QueryTableRequest:
    """Rewrite a query so that it reads visible rows and columns only.

    Raises InvalidInputError, PermissionDeniedError.
    """
    for order in request.order_by or ():
        scope.check_visible(order.column_name, "order")
    if request.full_text_query is not None:
        _check_full_text(dataset, request.full_text_query, scope)
    if request.minhash_query is not None:
        scope.check_visible(request.minhash_query.column, "search")
    columns = _restrict_columns(request.columns, scope)
    outputs = () if columns is None else (columns.column_aliases or ())
    only_masks = bool(outputs) and set(outputs) <= set(scope.policy.masks)  # Lance reads no rows for constants alone
    return msgspec.structs.replace(
        request,
        filter=scope.combine_filter(request.filter),
        prefilter=True,
        columns=columns,
        with_row_id=only_masks or request.with_row_id,
    )


def check_search_columns(search: Search, scope: PolicyScope) -> Search:
    """Check that a search does not rank by a masked column; return it. Raises PermissionDeniedError."""
    for nearest in search.nearest:
        scope.check_visible(nearest["column"].split(".")[0], "search")
    return search


def _check_full_text(dataset: lance.LanceDataset, query: models.QueryTableFullTextQuery, scope: PolicyScope) -> None:
    """Refuse full-text search over hidden rows or masked columns. Raises PermissionDeniedError.

    Scores weigh words by how many rows of the whole table have them, which would disclose hidden rows.
    """
    if scope.policy.filter is not None:
        raise PermissionDeniedError(
            "Policies hide rows of this table from you, and full-text scores would tell of them."
        )
    for column in {*_column_names(msgspec.to_builtins(query)), *full_text_columns(dataset)}:
        if column.split(".")[0].casefold() in scope.masked:
            raise PermissionDeniedError("Full-text search reads a column here that is masked for you: it is refused.")


def _column_names(query: Any) -> Iterator[str]:
    """Yield all columns that a full-text query names."""
    if isinstance(query, Mapping):
        for key, value in query.items():
            if key in ("column", "columns"):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from _column_names(value)
    elif isinstance(query, list):
        for entry in query:
            yield from _column_names(entry)


def _restrict_columns(
    requested: models.QueryTableColumns | None, scope: PolicyScope
) -> models.QueryTableColumns | None:
    """Return the columns to read: masked ones as an expression, or as NULL that gets its type in the response."""
    masks = scope.policy.masks
    if requested is not None and requested.column_names is None and requested.column_aliases is not None:
        requested = _without_own_names(requested.column_aliases, scope)
    if requested is not None and requested.column_aliases is not None:
        if requested.column_names is None:
            for name, text in requested.column_aliases.items():
                scope.check_computed(text, f"expression of '{name}'")
        return requested
    if requested is None or requested.column_names is None:
        names = [name for name in scope.schema.names if name not in masks or masks[name].kind is not MaskKind.HIDE]
    else:
        names = [
            name if name in masks else scope.check_visible(name, "list of columns") for name in requested.column_names
        ]
    if hidden := [name for name in names if name in masks and masks[name].kind is MaskKind.HIDE]:
        raise PermissionDeniedError(f"These columns are hidden from you: {', '.join(hidden)}.")
    if not names and (requested is None or requested.column_names is None):
        raise PermissionDeniedError("Policies hide all columns of this table from you.")
    if not any(name in masks for name in names):
        return models.QueryTableColumns(column_names=names)
    return models.QueryTableColumns(column_aliases={name: _projection(name, scope) for name in names})


def _without_own_names(aliases: dict[str, str], scope: PolicyScope) -> models.QueryTableColumns:
    """Name the columns where all expressions are whole columns under their own names, as lancedb's permutations ask.

    Also those that SQL would read as another thing (`SSN`, `current_date`): of a masked table only the columns are
    shown. Without a policy they are what SQL says (`plan._projection_options`).
    """
    if all(name == text and name in scope.schema.names for name, text in aliases.items()):
        return models.QueryTableColumns(column_names=list(aliases))
    return models.QueryTableColumns(column_aliases=aliases)


def _projection(name: str, scope: PolicyScope) -> str:
    mask = scope.policy.masks.get(name)
    if mask is None:
        return name if name in _VIRTUAL_COLUMNS else f"`{name}`"
    return "NULL" if mask.expression is None else mask.expression


def mask_response(response: ArrowAnswer, request: models.QueryTableRequest, scope: PolicyScope) -> ArrowAnswer:
    """Give columns of nulls the types of the table, and drop row ids that the request does not have."""
    requested = request.columns
    nulls = scope.null_columns if requested is None or requested.column_aliases is None else {}
    requested_names = () if requested is None else (requested.column_names or requested.column_aliases or ())
    shown = [
        field for field in response.schema if field.name != ROW_ID or request.with_row_id or ROW_ID in requested_names
    ]
    fields = [pa.field(field.name, nulls[field.name].type) if field.name in nulls else field for field in shown]
    schema = pa.schema(fields, response.schema.metadata)
    masked = (_mask_batch(batch, schema, nulls) for batch in response.batches)
    return ArrowAnswer(schema, list(masked) if isinstance(response.batches, list) else _with_redacted_errors(masked))


def _mask_batch(batch: pa.RecordBatch, schema: pa.Schema, nulls: Mapping[str, pa.Field]) -> pa.RecordBatch:
    arrays = [
        pa.nulls(batch.num_rows, field.type) if field.name in nulls else batch.column(field.name) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_redacted_errors(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with redact_errors():
        yield from batches


def check_updates(updates: Mapping[str, str], scope: PolicyScope) -> None:
    """Check the columns and expressions of an update: none masked, and no column that a policy reads.

    Raises InvalidInputError, PermissionDeniedError.
    """
    deciding = _policy_columns(scope.policy)
    for column, expression in updates.items():
        scope.check_visible(column, "update")
        if column.casefold() in deciding:
            raise PermissionDeniedError(f"The column '{column}' decides who sees what: you cannot set it.")
        scope.check_computed(expression, "expression")


def _policy_columns(policy: EffectivePolicy) -> set[str]:
    """Return the columns that filters and masks read: with `coalesce(nullif(open, true), ssn)`, `open` shows ssn."""
    expressions = [policy.filter, *(mask.expression for mask in policy.masks.values())]
    return {
        name.parts[0].casefold() for text in expressions if text for name in column_tokens(tokenize(text, "policy"))
    }


@contextmanager
def redact_errors() -> Iterator[None]:
    """Redact the messages of Lance's errors, which quote values, of hidden rows as well; the types of errors stay.

    The messages of DuplicateKeyError and ContractError are made for their caller.
    """
    try:
        yield
    except LanceNamespaceError as error:
        if error.__cause__ is None or isinstance(error, DuplicateKeyError | ContractError):
            raise
        raise type(error)(
            "This fails on a table whose policies restrict you, so Lance's message is withheld."
        ) from None


@contextmanager
def redact_errors_if_restricted(ctx: Context, record: TableRecord) -> Iterator[None]:
    """Apply `redact_errors` if policies restrict the principal on the table. Raises as `effective_policy_of` does."""
    with nullcontext() if effective_policy_of(ctx, record) is None else redact_errors():
        yield
