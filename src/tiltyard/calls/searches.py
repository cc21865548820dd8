"""Read a table by QueryTable, within the caller's grants: by text, by vector or by both, of a version or a tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller
    from tiltyard.model.text.typed_ids import TypedId


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What to search for, by a text, a vector, or the vector of the row that the filter `like` selects.

    `tuning` are fields of QueryTable for the search by vector (`nprobes`, `refine_factor`, `ef`, `distance_type`).
    """

    text: str | None = None
    vector: Sequence[float] | None = None
    like: str | None = None
    vector_column: str | None = None
    text_columns: Sequence[str] = ()
    limit: int = 10
    columns: Sequence[str] = ()
    with_vectors: bool = False
    where: str | None = None
    version: str | None = None
    branch: str | None = None
    tuning: Mapping[str, Any] = field(default_factory=dict)


def resolve_version(catalog: Caller, table: Sequence[str], text: str | None) -> int | None:
    """Return the version that a number or a tag names; None for None. Raises InvalidInputError, as `call` does."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    tag = catalog.call("GetTableTagVersion", id=list(table), tag=text)
    if tag.get("branch"):
        raise InvalidInputError(f"The tag '{text}' is of the branch '{tag['branch']}': name that as the branch.")
    return int(tag["version"])


def find_rows(catalog: Caller, table: TypedId, search: SearchOptions) -> pa.RecordBatchReader:
    """Return the rows that a search finds, best first; without vectors, unless its columns name them, or it asks so.

    Raises InvalidInputError, and as `Caller.read` does.
    """
    shared: dict[str, Any] = {"branch": search.branch, "version": resolve_version(catalog, table, search.version)}
    schema = catalog.readable_schema(table, shared["version"], search.branch)
    names = search.columns or [each.name for each in schema if search.with_vectors or not is_vector(each.type)]
    request = {**_request(table, search.limit, names), "filter": search.where, "prefilter": True, **shared}
    numbers = search.vector if search.like is None else _vector_of_row(catalog, table, schema, search, shared)
    by_text = None if search.text is None else {"full_text_query": _text_query(search.text, search.text_columns)}
    by_vector = (
        None
        if numbers is None
        else {"vector": {"single_vector": [*numbers]}, "vector_column": search.vector_column, **search.tuning}
    )
    if by_text is not None and by_vector is not None:
        return _hybrid(catalog, request, by_text, by_vector, search.limit).to_reader()
    return catalog.read("QueryTable", **{**request, **(by_text or by_vector or {})})


def _request(table: TypedId, limit: int, columns: Sequence[str]) -> dict[str, Any]:
    return {
        "id": list(table),
        "k": limit,
        "vector": {"single_vector": []},
        "columns": {"column_names": list(columns)},
    }


def _text_query(text: str, columns: Sequence[str]) -> dict[str, Any]:
    return {"string_query": {"query": text, **({"columns": list(columns)} if columns else {})}}


def _hybrid(
    catalog: Caller, request: Mapping[str, Any], by_text: Mapping[str, Any], by_vector: Mapping[str, Any], limit: int
) -> pa.Table:
    """Return the rows that both searches rank highest together, by reciprocal rank fusion."""
    from tiltyard.calls.rank_fusion import CANDIDATES, fuse

    request = {**request, "k": limit * CANDIDATES, "with_row_id": True}
    return fuse([catalog.read("QueryTable", **{**request, **half}).read_all() for half in (by_text, by_vector)], limit)


def _vector_of_row(
    catalog: Caller, table: TypedId, schema: pa.Schema, search: SearchOptions, shared: Mapping[str, Any]
) -> list[float]:
    """Return the vector of the row that `like` selects. Raises InvalidInputError, and as `Caller.read` does."""
    column = search.vector_column or next((each.name for each in schema if is_vector(each.type)), None)
    if column is None:
        raise InvalidInputError(f"{table} has no column of vectors.")
    rows = catalog.read("QueryTable", **{**_request(table, 2, [column]), "filter": search.like, **shared}).read_all()
    if rows.num_rows != 1:
        many = "no row" if not rows.num_rows else "several rows"
        raise InvalidInputError(f"`like` selects {many} of {table}: write a filter for one row, as \"title = 'Up'\".")
    values = rows[column][0].as_py()
    if values is None:
        raise InvalidInputError(f"The row that `like` selects has no vector in '{column}'.")
    return [float(value) for value in values]


def is_vector(kind: pa.DataType) -> bool:
    """Return whether a column of a type holds vectors, one or several to a row."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):  # several vectors to a row
        kind = kind.value_type
    return bool(
        pa.types.is_fixed_size_list(kind)
        and (pa.types.is_floating(kind.value_type) or pa.types.is_uint8(kind.value_type))
    )
