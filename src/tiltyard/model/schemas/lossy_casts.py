"""Find values that a cast of Arrow has changed silently.

`Array.cast` checks integers, decimals and units of time, and lets these through: a number beyond a narrower float's
range becomes infinite, also one that is written as text, a float is rounded to a decimal's scale, an integer to a half
float's precision, any number but 0 is true, and a timestamp loses its time of day as a date, its day as a time. A float
that a narrower one holds less exactly, a decimal as a float, and a time with or without a zone (it stands for UTC) are
no loss: that is what such a column is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    elif _is_list(kind):
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
    if _is_list(kind) and _is_list(target):
        return _may_lose(kind.value_type, target.value_type)
    if _types.is_dictionary(kind) or _types.is_dictionary(target):
        kind = kind.value_type if _types.is_dictionary(kind) else kind
        target = target.value_type if _types.is_dictionary(target) else target
        return _may_lose(kind, target)
    if _types.is_floating(target):
        if _types.is_floating(kind):
            return bool(kind.bit_width > target.bit_width)
        return _is_number(kind) or _is_text(kind)
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
    if _is_text(numbers.type):
        return pc.invert(pc.match_substring_regex(numbers, "(?i)inf"))
    return pc.is_valid(numbers)


def _entries(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of an array of maps, of its own rows alone."""
    whole = array.take(pa.array(range(len(array)), pa.int64()))  # of a slice, `keys` are those of all rows
    return whole.keys, whole.items


def _is_list(kind: pa.DataType) -> bool:
    return bool(_types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(_types.is_integer(kind) or _types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(_types.is_string(kind) or _types.is_large_string(kind))
