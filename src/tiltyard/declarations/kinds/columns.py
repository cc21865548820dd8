"""Columns of tables: their types as people write them, nested ones field by field, and what computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.blob_columns import BLOB_TYPE
from tiltyard.model.columns.computed_columns import (
    SCALAR,
    ExpressionDeclaration,
    FunctionDeclaration,
    UdfDeclaration,
    declares_column,
    read_declaration,
)
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.arrow_json import EXTENSION_DATA, EXTENSION_NAME, from_json
from tiltyard.model.schemas.fields import metadata_texts
from tiltyard.model.schemas.type_names import format_type, parse_type
from tiltyard.model.text.typed_ids import format_id
from tiltyard.model.text.yaml_text import ContentError, convert_content

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_COLUMN_DEPTH = 16
"""How deep the fields of a nested column are within each other."""
_STRUCT, _LIST, _LARGE_LIST = "struct", "list", "large_list"


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What computes a column: a version of a function by its digest, of which columns, and which field of it."""

    function: str
    digest: str
    inputs: dict[str, str]
    result: str | None = None
    initialization: dict[str, Any] = {}


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column, or a field within one. Plain columns are written as the name of their type alone.

    A type without a name of its own (fields that are not nullable, or have metadata) is a `struct` with `fields`, or a
    `list` or `large_list` with `items`, of a `size` for a vector.
    """

    type: str = ""
    nullable: bool = True
    computed: str | FunctionCall | None = None
    metadata: dict[str, str] = {}
    fields: dict[str, Any] | None = None
    items: Any = None
    size: int | None = None


def parse_columns(content: Any, path: Sequence[str | int], depth: int = 0) -> dict[str, Column]:
    """Return columns by name, each with its type in the one form that an export has. Raises ContentError."""
    if depth > MAX_COLUMN_DEPTH:
        raise ContentError(path, f"fields are nested more than {MAX_COLUMN_DEPTH} deep.")
    columns = convert_content(content, dict[str, Any], path)
    if not columns:
        raise ContentError(path, "name at least one column, or leave 'columns' out for a table that is only declared.")
    return {name: _parse_column(value, (*path, name), depth) for name, value in columns.items()}


def _parse_column(content: Any, path: Sequence[str | int], depth: int) -> Column:
    column: Column = Column(type=content) if isinstance(content, str) else convert_content(content, Column, path)
    if not column.type and not (isinstance(column.computed, str) and depth == 0):
        raise ContentError(path, "name the type of the column.")
    if column.computed is not None and (depth or not column.nullable):
        raise ContentError(path, "a computed column is one of the table itself, and nullable: it is null until then.")
    if isinstance(column.computed, FunctionCall) and column.computed.result == SCALAR:
        column = msgspec.structs.replace(column, computed=msgspec.structs.replace(column.computed, result=None))
    if not column.type:
        return column
    try:
        kind = _arrow_type(column, path, depth)
    except RefusedError as error:
        raise ContentError((*path, "type"), str(error)) from error
    described = describe_type(kind)
    return msgspec.structs.replace(column, **{"fields": None, "items": None, "size": None, **described})


def _arrow_type(column: Column, path: Sequence[str | int], depth: int) -> pa.DataType:
    """Return the type of a column. Raises ContentError, RefusedError."""
    if column.fields is not None:
        if column.type != _STRUCT:
            raise ContentError(path, f"'fields' are those of a {_STRUCT}, and this is a {column.type}.")
        inner = parse_columns(column.fields, (*path, "fields"), depth + 1)
        return pa.struct([to_field(name, each) for name, each in inner.items()])
    if column.items is not None:
        item = to_field("item", _parse_column(column.items, (*path, "items"), depth + 1))
        if column.type == _LARGE_LIST and column.size is None:
            return pa.large_list(item)
        if column.type != _LIST or not (column.size is None or 0 < column.size < 1 << 31):
            raise ContentError(
                path, f"'items' are those of a {_LIST} or {_LARGE_LIST}, of a size above 0 for a vector."
            )
        return pa.list_(item) if column.size is None else pa.list_(item, column.size)
    if column.size is not None:
        raise ContentError(path, "'size' is of a list with 'items': write a vector as float32[128].")
    return parse_type(column.type)


def describe_type(kind: pa.DataType) -> dict[str, Any]:
    """Return the fields of a Column that say a type. Raises RefusedError for one that cannot be written."""
    name = format_type(kind)
    try:
        if parse_type(name).equals(kind, check_metadata=True):
            return {"type": name}
    except RefusedError:
        pass
    if pa.types.is_struct(kind):
        return {"type": _STRUCT, "fields": {field.name: column_content(describe_field(field)) for field in kind}}
    is_large, is_vector = pa.types.is_large_list(kind), pa.types.is_fixed_size_list(kind)
    if is_large or is_vector or pa.types.is_list(kind):
        items = column_content(describe_field(kind.value_field))
        size = {"size": kind.list_size} if is_vector else {}
        described = {"type": _LARGE_LIST if is_large else _LIST, "items": items, **size}
        if items == format_type(kind.value_type):  # only the name of its items is another one
            return {"type": name}
        return described
    raise RefusedError(f"the type {kind} has no name that can be written.")


def describe_field(field: pa.Field) -> Column:
    """Return the declaration of a field, without what computes it. Raises RefusedError."""
    own = {key: text for key, text in sorted(metadata_texts(field.metadata).items()) if not declares_column(key)}
    return Column(nullable=field.nullable, metadata=own, **describe_type(field.type))


def read_columns(schema: Mapping[str, Any]) -> Iterator[tuple[str, Column | None]]:
    """Yield the columns of a schema in JSON; None for one that code computes, which a file cannot have.

    Raises RefusedError for a type that cannot be written.
    """
    for content in schema["fields"]:
        metadata = dict(content.get("metadata") or {})
        extension = {}
        if metadata.get(EXTENSION_NAME) != BLOB_TYPE:  # it stays as it is: the metadata of a plain column
            extension = {key: metadata.pop(key) for key in (EXTENSION_NAME, EXTENSION_DATA) if key in metadata}
        field = from_json({"fields": [{**content, "metadata": metadata or None}]}).field(0)
        declaration = read_declaration(field.metadata)
        if isinstance(declaration, UdfDeclaration):
            yield field.name, None
            continue
        column = describe_field(field)
        computed = _describe_call(declaration)
        yield field.name, msgspec.structs.replace(column, computed=computed, metadata={**column.metadata, **extension})


def _describe_call(declaration: ExpressionDeclaration | FunctionDeclaration | None) -> str | FunctionCall | None:
    if isinstance(declaration, FunctionDeclaration):
        return FunctionCall(
            format_id(declaration.function),
            declaration.manifest_digest,
            dict(declaration.inputs),
            None if declaration.result == SCALAR else declaration.result,
            msgspec.json.decode(declaration.initialization),
        )
    return None if declaration is None else declaration.expression


def to_field(name: str, column: Column) -> pa.Field:
    """Return the Arrow field of a column. Raises InvalidInputError."""
    try:
        return pa.field(name, _arrow_type(column, (), 0), column.nullable, metadata=column.metadata or None)
    except RefusedError as error:
        raise InvalidInputError(str(error)) from error


def column_content(column: Column) -> Any:
    """Return what a file has of a column: the name of its type alone where that says all."""
    content: dict[str, Any] = msgspec.to_builtins(column)
    return column.type if content.keys() == {"type"} else content


def column_facts(column: Column) -> dict[str, Any]:
    """Return what is compared of a column."""
    content = msgspec.to_builtins(column)
    kind = {key: content[key] for key in ("type", "fields", "items", "size") if key in content}
    facts = {"type": kind.get("type") if kind.keys() <= {"type"} else kind, "nullable": column.nullable}
    facts |= {"metadata": column.metadata, "computed": content.get("computed")}
    return {key: value for key, value in facts.items() if value is not None}
