"""Queries and changes within the policies of a table (docs/policies.md).

A request is rewritten before it is planned: its filter is joined to the policies' own and applied before any search,
its columns become those that are shown, and whatever names a masked column is refused. Nothing that Lance says while
it runs one reaches a client, since its messages quote values of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from tiltyard.access import narrowing_of
from tiltyard.access.policies import MaskKind, Narrowing
from tiltyard.access.predicates import check_filter, check_value, names_in, tokens
from tiltyard.context import OpenTable
from tiltyard.model.arrow_bodies import ArrowAnswer
from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.model.spec import models
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.plan import ROW_ID, Search, indexed_text
from tiltyard.tables.sql.expressions import check_expression

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

_EXTRA = frozenset({ROW_ID, "_distance", "_score"})
_POSITIONS = frozenset({"_rowoffset", "_rowaddr"})
"""What tells how many rows lie before one, those that one may not see among them."""


@dataclass(frozen=True, slots=True)
class Within:
    """What policies leave of one version of a table; `columns` are the kinds of its columns (`check_filter`)."""

    schema: pa.Schema
    narrowing: Narrowing
    columns: Mapping[str, str]
    masked: frozenset[str]

    def filter(self, asked: str | None, what: str = "filter") -> str | None:
        """The policies' filter and that of a request as one. Raises InvalidInputError, PermissionDeniedError."""
        own = self.narrowing.filter
        if asked is None:
            return own
        check_expression(asked, what)
        if own is None:
            return check_value(asked, what, self.columns, self.masked)
        return f"({own}) AND ({check_filter(asked, what, self.columns, self.masked)})"

    def value(self, expression: str, what: str) -> str:
        """An expression of a request, over rows that may be seen. Raises as `filter` does."""
        return check_value(expression, what, self.columns, self.masked)

    def visible(self, name: str, what: str) -> str:
        """A column of a request that is shown as it is. Raises InvalidInputError, PermissionDeniedError."""
        if name.split(".", maxsplit=1)[0].strip("`").casefold() in self.masked:
            raise PermissionDeniedError(f"The {what} names a column that is masked for you: '{name}'.")
        if name not in self.schema.names and name not in _EXTRA:
            raise InvalidInputError(f"The {what} names no whole column of this table: '{name}'.")
        return name

    @property
    def nulls(self) -> dict[str, pa.Field]:
        """The columns that are shown without their values."""
        masks = self.narrowing.masks
        return {name: self.schema.field(name) for name in masks if masks[name].kind is MaskKind.NULL}


def within(dataset: lance.LanceDataset, narrowing: Narrowing) -> Within:
    """What policies leave of a version. Raises PermissionDeniedError where a policy does not fit it."""
    schema = dataset.schema
    there = [name for name in schema.names if "`" not in name]
    if gone := sorted(set(narrowing.masks) - set(there)):
        raise PermissionDeniedError(
            f"A policy masks columns that are not there, so nothing is shown until it is set anew: {', '.join(gone)}."
        )
    masked = narrowing.masked | _POSITIONS
    return Within(schema, narrowing, {ROW_ID: "number"} | _kinds(schema), masked)


def within_latest(
    ctx: Context, record: TableRecord, branch: str | None, version: int | None, dataset: lance.LanceDataset
) -> Within | None:
    """What policies leave of an open table for the one who asks; None where none binds.

    They are made for the table as it is now: on a branch, or in an older version, a column may have had another name
    or meaning. Raises PermissionDeniedError for those, and as `within` does.
    """
    narrowing = narrowing_of(ctx, record)
    if narrowing is None:
        return None
    if branch and branch != MAIN_BRANCH:
        raise PermissionDeniedError("Policies bind you on this table: read and change its main branch.")
    if version is not None:
        latest = ctx.storage.datasets.open_for_reading(record.location, ctx.storage.options(record.location)).version
        if version != latest:
            raise PermissionDeniedError("Policies bind you on this table: read its latest version.")
    return within(dataset, narrowing)


def open_within(
    ctx: Context, names: Sequence[str] | None, branch: str | None, version: int | None
) -> tuple[OpenTable, Within | None]:
    """A table to read from, and what policies leave of it. Raises as `open_for_reading` and `within_latest` do."""
    table = open_for_reading(ctx, names, branch=branch, version=version)
    return table, within_latest(ctx, table.record, branch, version, table.dataset)


def _kinds(schema: Iterable[pa.Field], above: str = "") -> dict[str, str]:
    """What columns, and fields of structs by their paths, may be compared with."""
    kinds: dict[str, str] = {}
    for field in schema:
        kinds[f"{above}{field.name}"] = _kind(field.type)
        if pa.types.is_struct(field.type):
            kinds |= _kinds(field.type, f"{above}{field.name}.")
    return kinds


def _kind(type_: pa.DataType) -> str:
    known = pa.types
    if known.is_dictionary(type_) or known.is_list(type_) or known.is_large_list(type_):
        return _kind(type_.value_type)
    if known.is_string(type_) or known.is_large_string(type_):
        return "text"
    if known.is_boolean(type_):
        return "boolean"
    if known.is_timestamp(type_) or known.is_date32(type_):
        return "time"
    if (known.is_integer(type_) and type_ != pa.uint64()) or known.is_floating(type_):
        return "number"
    return ""


def narrowed_query(
    dataset: lance.LanceDataset, request: models.QueryTableRequest, within: Within
) -> models.QueryTableRequest:
    """The query that runs instead. Raises InvalidInputError, PermissionDeniedError."""
    for order in request.order_by or ():
        within.visible(order.column_name, "order")
    if request.full_text_query is not None:
        _check_text(dataset, request.full_text_query, within)
    columns = _columns(request.columns, within)
    shown = () if columns is None else (columns.column_aliases or ())
    bare = bool(shown) and set(shown) <= set(within.narrowing.masks)  # Lance reads no rows for constants alone
    return msgspec.structs.replace(
        request,
        filter=within.filter(request.filter),
        prefilter=True,
        columns=columns,
        with_row_id=bare or request.with_row_id,
    )


def check_search(search: Search, within: Within) -> Search:
    """The search, if it ranks by no masked column. Raises PermissionDeniedError."""
    for nearest in search.nearest:
        within.visible(nearest["column"].split(".")[0], "search")
    return search


def _check_text(dataset: lance.LanceDataset, query: models.QueryTableFullTextQuery, within: Within) -> None:
    """Scores weigh words by how many rows of the whole table have them: that would tell of rows one may not see."""
    if within.narrowing.filter is not None:
        raise PermissionDeniedError(
            "Policies hide rows of this table from you, and full-text scores would tell of them."
        )
    for column in {*_named(msgspec.to_builtins(query)), *indexed_text(dataset)}:
        if column.split(".")[0].casefold() in within.masked:
            raise PermissionDeniedError("Full-text search reads a column here that is masked for you: it is refused.")


def _named(query: Any) -> Iterator[str]:
    """All columns that a full-text query names."""
    if isinstance(query, Mapping):
        for key, value in query.items():
            if key in ("column", "columns"):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from _named(value)
    elif isinstance(query, list):
        for entry in query:
            yield from _named(entry)


def _columns(asked: models.QueryTableColumns | None, within: Within) -> models.QueryTableColumns | None:
    """The columns that are read: masked ones as an expression, or as NULL that gets its type in the answer."""
    masks = within.narrowing.masks
    if asked is not None and asked.column_aliases is not None:
        if asked.column_names is None:
            for name, text in asked.column_aliases.items():
                within.value(text, f"expression of '{name}'")
        return asked
    if asked is None or asked.column_names is None:
        names = [name for name in within.schema.names if name not in masks or masks[name].kind is not MaskKind.HIDE]
    else:
        names = [name if name in masks else within.visible(name, "list of columns") for name in asked.column_names]
    if hidden := [name for name in names if name in masks and masks[name].kind is MaskKind.HIDE]:
        raise PermissionDeniedError(f"These columns are hidden from you: {', '.join(hidden)}.")
    if not any(name in masks for name in names):
        return models.QueryTableColumns(column_names=names)
    return models.QueryTableColumns(column_aliases={name: _shown(name, within) for name in names})


def _shown(name: str, within: Within) -> str:
    mask = within.narrowing.masks.get(name)
    if mask is None:
        return name if name in _EXTRA else f"`{name}`"
    return "NULL" if mask.expression is None else mask.expression


def masked_answer(answer: ArrowAnswer, request: models.QueryTableRequest, within: Within) -> ArrowAnswer:
    """The answer with columns of nulls in the types of the table, and no row ids that the request has not asked for."""
    asked = request.columns
    nulls = within.nulls if asked is None or asked.column_aliases is None else {}
    named = () if asked is None else (asked.column_names or asked.column_aliases or ())
    kept = [field for field in answer.schema if field.name != ROW_ID or request.with_row_id or ROW_ID in named]
    fields = [pa.field(field.name, nulls[field.name].type) if field.name in nulls else field for field in kept]
    schema = pa.schema(fields, answer.schema.metadata)
    masked = (_masked(batch, schema, nulls) for batch in answer.batches)
    return ArrowAnswer(schema, list(masked) if isinstance(answer.batches, list) else _quietly(masked))


def _masked(batch: pa.RecordBatch, schema: pa.Schema, nulls: Mapping[str, pa.Field]) -> pa.RecordBatch:
    arrays = [
        pa.nulls(batch.num_rows, field.type) if field.name in nulls else batch.column(field.name) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _quietly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with quiet():
        yield from batches


def narrowed_updates(updates: Mapping[str, str], within: Within) -> None:
    """Check what an update sets, and to what: nothing masked, and nothing that decides who sees a row.

    Raises InvalidInputError, PermissionDeniedError.
    """
    deciding = _deciding(within.narrowing)
    for column, expression in updates.items():
        within.visible(column, "update")
        if column.casefold() in deciding:
            raise PermissionDeniedError(f"The column '{column}' decides who sees what: you cannot set it.")
        within.value(expression, "expression")


def _deciding(narrowing: Narrowing) -> set[str]:
    """The columns that a filter or a mask looks at: with `coalesce(nullif(open, true), ssn)`, `open` shows the ssn."""
    texts = [narrowing.filter, *(mask.expression for mask in narrowing.masks.values())]
    return {name.parts[0].casefold() for text in texts if text for name in names_in(tokens(text, "policy"))}


@contextmanager
def quiet() -> Iterator[None]:
    """Say of Lance's errors no more than their kind: their texts quote values, of hidden rows as well."""
    try:
        yield
    except LanceNamespaceError as error:
        if error.__cause__ is None:
            raise
        raise type(error)(
            "This fails on a table whose policies bind you, so what Lance says of it is kept back."
        ) from None


@contextmanager
def quiet_if_bound(ctx: Context, record: TableRecord) -> Iterator[None]:
    """`quiet` for those whom policies of a table bind. Raises what `narrowing_of` raises."""
    with nullcontext() if narrowing_of(ctx, record) is None else quiet():
        yield
