"""Compare nested types and cast arrays to them, with the names of their inner fields, and without losing a value.

Arrow's writers do not agree on the names inside of a list or a map: a list's values are `item`, `element` or `array`,
a map's entries are `entries`, `key_value` or the column's own name, with `key` and `value` or anything else in them.
`DataType.equals` ignores these names, and Lance does not: its writers refuse rows whose inner names differ from the
table's. So all code that passes rows to Lance compares with `is_same_type`, and casts with `cast_array` where types
differ. Names in a struct are those of columns, and identify its fields.

The names of a map's fields are lost where pyarrow reads a schema from Lance or from an IPC stream: there they are
`entries`, `key` and `value`, whatever the writer's were. So tables have these names: a new one by `with_standard_maps`,
one that was written with others by `map_renamings`.

`Array.cast` checks integers, decimals and units of time, and lets these through: a number beyond a narrower float's
range becomes infinite, also one that is written as text, a float is rounded to a decimal's scale, an integer to a half
float's precision, any number but 0 is true, and a timestamp loses its time of day as a date, its day as a time. A float
that a narrower one holds less exactly, a decimal as a float, and a time with or without a zone (it stands for UTC) are
no loss: that is what such a column is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.columns.blob_columns import cast_to_blobs, is_castable_to_blobs

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_same_type(source: pa.DataType, target: pa.DataType) -> bool:
    """Compare two types, with the names and nullability of all inner fields; metadata does not count."""
    if source.equals(target, check_metadata=True):
        return True
    if not source.equals(target):
        return False
    return all(
        field.name == other.name and field.nullable == other.nullable and is_same_type(field.type, other.type)
        for field, other in zip(_inner_fields(source), _inner_fields(target), strict=True)
    )


def is_same_schema(source: pa.Schema, target: pa.Schema) -> bool:
    """Compare two schemas: columns, nullability, and types as in `is_same_type`; metadata does not count."""
    return source.equals(target) and all(map(is_same_type, source.types, target.types))


def cast_array(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast an array to a type with its inner names, losing nothing; no copy where nothing but names differs.

    Raises ArrowInvalid for values that do not fit, ArrowNotImplementedError where there is no cast. Both are
    raised also where `Array.cast` would lose values silently: fields of a struct that the target type lacks, list
    views, of which pyarrow 26 drops the last list, and values that `check_lossless` finds.
    """
    if is_same_type(array.type, target):
        return array
    if missing := next(unknown_fields(array.type, target), None):
        raise pa.ArrowNotImplementedError(f"The type {target} has no field '{missing}'.")
    if any(is_castable_to_blobs(source, kind) for source in descendants(array.type) for kind in descendants(target)):
        return _cast_with_blobs(array, target)
    if any(map(_is_list_view, descendants(array.type))):
        raise pa.ArrowNotImplementedError(f"List views are not cast to {target}: make lists of them.")
    try:
        cast = array.cast(target)
    except pa.ArrowTypeError as error:
        raise pa.ArrowInvalid(str(error)) from error
    check_lossless(array, cast)
    return cast


def _cast_with_blobs(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast bytes to blobs, and structs that may have such fields; pyarrow has no cast to an extension type."""
    if is_castable_to_blobs(array.type, target):
        return cast_to_blobs(array, target)
    if not (pa.types.is_struct(array.type) and pa.types.is_struct(target)):
        return array.cast(target)
    fields = [
        cast_array(pc.struct_field(array, [at]), field.type)
        if (at := array.type.get_field_index(field.name)) >= 0
        else pa.nulls(len(array), field.type)
        for field in target
    ]
    return pa.StructArray.from_arrays(fields, fields=list(target), mask=array.is_null())


def unknown_fields(source: pa.DataType, target: pa.DataType) -> Iterator[str]:
    """Yield the dotted paths of a type's struct fields that the target type lacks, at any depth."""
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        fields = {field.name: field for field in target}
        for field in source:
            if field.name not in fields:
                yield field.name
            else:
                inner = unknown_fields(field.type, fields[field.name].type)
                yield from (f"{field.name}.{name}" for name in inner)
    elif pa.types.is_map(source) and pa.types.is_map(target):
        yield from unknown_fields(source.key_type, target.key_type)
        yield from unknown_fields(source.item_type, target.item_type)
    elif not (pa.types.is_struct(source) or pa.types.is_struct(target)):
        for field, other in zip(_inner_fields(source), _inner_fields(target), strict=False):
            yield from unknown_fields(field.type, other.type)


def with_standard_maps(schema: pa.Schema) -> pa.Schema:
    """Return the schema with Arrow's names for the fields of its maps."""
    return pa.schema([field.with_type(_with_standard_maps(field.type)) for field in schema], schema.metadata)


def map_renamings(dataset: Any) -> list[dict[str, str]]:
    """Return alterations for `LanceDataset.alter_columns` that give a dataset's maps Arrow's names; [] if they have
    them.

    The innermost come first, so that paths stay valid.
    """
    schema: pa.Schema = dataset.schema
    if not any(kind.num_fields and _has_map(kind) for kind in schema.types):
        return []
    return list(_renamings(list(schema), dataset.lance_schema.fields(), ""))


def _renamings(fields: list[pa.Field], stored: list[Any], parent: str) -> Iterator[dict[str, str]]:
    for field, lance_field in zip(fields, stored, strict=True):
        path = parent + _quote(lance_field.name())
        inner = list(_inner_fields(field.type))
        if len(inner) == len(
            lance_field.children()
        ):  # otherwise a list of fixed size, for whose items Lance has no fields
            yield from _renamings(inner, lance_field.children(), f"{path}.")
        if lance_field.name() != field.name:  # pyarrow knows all names but those of maps
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


def _quote(name: str) -> str:
    """Quote a name for a path to a field."""
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that values of a type are stored in: of an extension type, that below it."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _inner_fields(kind: pa.DataType) -> Iterator[pa.Field]:
    """Yield the fields directly inside of a type of any kind."""
    kind = storage_type(kind)
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


_types = pa.types


def check_lossless(source: pa.Array, cast: pa.Array) -> None:
    """Compare an array with its cast, nested values too. Raises ArrowInvalid, which quotes one lost value.

    Both have the same length, and nulls in the same places. Costs nothing for types that pyarrow checks itself.
    """
    for before, after in _leaves(source, cast):
        if (row := _first_lost(before, after)) is not None:
            raise pa.ArrowInvalid(
                f"{before[row].as_py()} would become {after[row].as_py()} where {before.type} is cast to {after.type}"
            )


def _leaves(source: pa.Array, cast: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the pairs of arrays below two nested ones in which a value could be lost."""
    if _types.is_dictionary(source.type):
        source = source.dictionary_decode()
    if _types.is_dictionary(cast.type):
        cast = cast.dictionary_decode()
    kind, target = source.type, cast.type
    if kind == target or not _may_lose(kind, target):
        return
    if _types.is_struct(kind):
        for field in target:
            if kind.get_field_index(field.name) >= 0:
                yield from _leaves(pc.struct_field(source, field.name), pc.struct_field(cast, field.name))
    elif _types.is_map(kind):
        for before, after in zip(_entries(source), _entries(cast), strict=True):
            yield from _leaves(before, after)
    elif is_list(kind):
        yield from _leaves(pc.list_flatten(source), pc.list_flatten(cast))
    else:
        yield source, cast


def _may_lose(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast between two types can lose what `_first_lost` looks for."""
    if _types.is_struct(kind) and _types.is_struct(target):
        fields = {field.name: field.type for field in kind}
        return any(field.name in fields and _may_lose(fields[field.name], field.type) for field in target)
    if _types.is_map(kind) and _types.is_map(target):
        return _may_lose(kind.key_type, target.key_type) or _may_lose(kind.item_type, target.item_type)
    if is_list(kind) and is_list(target):
        return _may_lose(kind.value_type, target.value_type)
    if _types.is_dictionary(kind) or _types.is_dictionary(target):
        kind = kind.value_type if _types.is_dictionary(kind) else kind
        target = target.value_type if _types.is_dictionary(target) else target
        return _may_lose(kind, target)
    if _types.is_floating(target):
        if _types.is_floating(kind):
            return bool(kind.bit_width > target.bit_width)
        return _is_number(kind) or is_text(kind)
    if _types.is_boolean(target):
        return _is_number(kind) or bool(_types.is_floating(kind))
    if _types.is_decimal(target):
        return bool(_types.is_floating(kind))
    return bool(_types.is_timestamp(kind) and (_types.is_date(target) or _types.is_time(target)))


def _first_lost(before: pa.Array, after: pa.Array) -> int | None:
    """Return the position of a value that a cast has lost, if there is one."""
    if _types.is_floating(after.type):
        lost = pc.is_inf(after)
        if pc.any(lost).as_py():
            lost = pc.and_(lost, _are_finite(before))
        elif _types.is_float16(after.type) and _types.is_integer(before.type):
            lost = pc.not_equal(after.cast(pa.float64()), before.cast(pa.float64()))
    elif _types.is_time(after.type):
        lost = pc.not_equal(before.cast(pa.date32(), safe=False), pa.scalar(0, pa.int32()).cast(pa.date32()))
    else:
        lost = pc.not_equal(after.cast(before.type), before)
    position: int = pc.index(lost, value=True).as_py()
    return position if position >= 0 else None


def _are_finite(numbers: pa.Array) -> pa.Array:
    """Tell which values are numbers, and not written as infinity."""
    if _types.is_floating(numbers.type):
        return pc.is_finite(numbers)
    if is_text(numbers.type):
        return pc.invert(pc.match_substring_regex(numbers, "(?i)inf"))
    return pc.is_valid(numbers)


def _entries(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of an array of maps, of its own rows alone."""
    whole = array.take(pa.array(range(len(array)), pa.int64()))  # of a slice, `keys` are those of all rows
    return whole.keys, whole.items


def has_dictionary(kind: pa.DataType) -> bool:
    """Return whether a type is a dictionary, or has one inside of it."""
    return any(_types.is_dictionary(storage_type(each)) for each in descendants(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list, of any or of a fixed size."""
    return bool(_types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(_types.is_integer(kind) or _types.is_decimal(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of text."""
    return bool(_types.is_string(kind) or _types.is_large_string(kind))
