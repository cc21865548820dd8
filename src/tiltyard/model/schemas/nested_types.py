"""Compare and cast nested types by what they hold, and name their inner fields as the wanted type does.

Arrow's writers do not agree on the names inside of a list or a map: a list's values are `item`, `element` or `array`,
a map's entries are `entries`, `key_value` or the column's own name, with `key` and `value` or anything else in them.
`DataType.equals` ignores these names, and Lance does not: rows whose inner names differ from the table's are refused by
its writers. So whoever gives rows to Lance compares with `is_same_type`, and casts with `cast_array` what is not the
same. Names in a struct are columns, and stay what tells its fields apart.

What the fields of a map are called is lost where pyarrow takes a schema from Lance or from an IPC stream: there it is
`entries`, `key` and `value`, whatever its writer said. So tables have these names: a new one by `with_standard_maps`,
one that was written with others by `map_renamings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.model.schemas.lossy_casts import check_kept

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_same_type(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Compare two types, with the names and nullability of all inner fields; metadata does not count."""
    if given.equals(wanted, check_metadata=True):
        return True
    if not given.equals(wanted):
        return False
    return all(
        one.name == other.name and one.nullable == other.nullable and is_same_type(one.type, other.type)
        for one, other in zip(_inner_fields(given), _inner_fields(wanted), strict=True)
    )


def is_same_schema(given: pa.Schema, wanted: pa.Schema) -> bool:
    """Compare two schemas: columns, nullability and types as in `is_same_type`; metadata does not count."""
    return given.equals(wanted) and all(map(is_same_type, given.types, wanted.types))


def cast_array(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast an array to a type with its inner names, losing nothing; no copy where nothing but names differs.

    Raises ArrowInvalid for values that do not fit, ArrowNotImplementedError for types that no cast joins. Both come
    also where `Array.cast` would lose values without a word: fields of a struct that the wanted type lacks, list views,
    of which pyarrow 26 drops the last list, and what `value_loss` looks for.
    """
    if is_same_type(array.type, wanted):
        return array
    if lost := next(unknown_fields(array.type, wanted), None):
        raise pa.ArrowNotImplementedError(f"The type {wanted} has no field '{lost}'.")
    if any(map(_is_list_view, descendants(array.type))):
        raise pa.ArrowNotImplementedError(f"List views are not cast to {wanted}: make lists of them.")
    try:
        cast = array.cast(wanted)
    except pa.ArrowTypeError as error:
        raise pa.ArrowInvalid(str(error)) from error
    check_kept(array, cast)
    return cast


def unknown_fields(given: pa.DataType, wanted: pa.DataType) -> Iterator[str]:
    """Yield the dotted paths of a type's struct fields that another type lacks, at any depth."""
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        fields = {field.name: field for field in wanted}
        for field in given:
            if field.name not in fields:
                yield field.name
            else:
                inner = unknown_fields(field.type, fields[field.name].type)
                yield from (f"{field.name}.{name}" for name in inner)
    elif pa.types.is_map(given) and pa.types.is_map(wanted):
        yield from unknown_fields(given.key_type, wanted.key_type)
        yield from unknown_fields(given.item_type, wanted.item_type)
    elif not (pa.types.is_struct(given) or pa.types.is_struct(wanted)):
        for one, other in zip(_inner_fields(given), _inner_fields(wanted), strict=False):
            yield from unknown_fields(one.type, other.type)


def with_standard_maps(schema: pa.Schema) -> pa.Schema:
    """Return the schema with Arrow's names for what is in its maps."""
    return pa.schema([field.with_type(_with_standard_maps(field.type)) for field in schema], schema.metadata)


def map_renamings(dataset: Any) -> list[dict[str, str]]:
    """Return what `LanceDataset.alter_columns` takes to give a dataset's maps Arrow's names; [] if they have them.

    The innermost come first, so that paths stay true.
    """
    schema: pa.Schema = dataset.schema
    if not any(kind.num_fields and _has_map(kind) for kind in schema.types):
        return []
    return list(_renamings(list(schema), dataset.lance_schema.fields(), ""))


def _renamings(fields: list[pa.Field], stored: list[Any], parent: str) -> Iterator[dict[str, str]]:
    for field, known in zip(fields, stored, strict=True):
        path = parent + _quoted(known.name())
        inner = list(_inner_fields(field.type))
        if len(inner) == len(known.children()):  # else Lance has no fields for what is in it: a list of fixed size
            yield from _renamings(inner, known.children(), f"{path}.")
        if known.name() != field.name:  # pyarrow knows all names but those of maps
            yield {"path": path, "name": field.name}


def _with_standard_maps(kind: pa.DataType) -> pa.DataType:
    if not _has_map(kind):
        return kind
    if pa.types.is_map(kind):
        key, item = _with_standard_maps(kind.key_type), _with_standard_maps(kind.item_type)
        return pa.map_(key, pa.field("value", item, kind.item_field.nullable), kind.keys_sorted)
    fields = [field.with_type(_with_standard_maps(field.type)) for field in _inner_fields(kind)]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(fields[0])
    return pa.list_(fields[0]) if pa.types.is_list(kind) else kind


def _has_map(kind: pa.DataType) -> bool:
    return any(map(pa.types.is_map, descendants(kind)))


def _quoted(name: str) -> str:
    """A name as part of a path to a field."""
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"


def _inner_fields(kind: pa.DataType) -> Iterator[pa.Field]:
    """Yield the fields inside of a type, whatever holds them."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        yield pa.field("", kind.value_type)
    for position in range(kind.num_fields):
        yield kind.field(position)


def descendants(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types inside of it."""
    yield kind
    for field in _inner_fields(kind):
        yield from descendants(field.type)


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))
