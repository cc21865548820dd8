"""Changes of a column's type: refused where a value would be lost, of which Lance's own casts say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from tiltyard.model.schemas.nested_types import cast_array, is_same_type
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.schema.field_paths import find_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance


def check_values(dataset: lance.LanceDataset, types: Mapping[str, pa.DataType]) -> None:
    """Read the columns at these paths, and raise InvalidInputError for the first value that its new type cannot hold.

    Whether there is a cast at all is for Lance to say.
    """
    for path, wanted in types.items():
        way = _way(dataset.lance_schema.fields(), find_field(dataset, path).id())
        if not way or not _may_lose(way[-1].to_arrow().type, wanted):
            continue
        name = way[0].name()
        scanner = dataset.scanner(columns=[name], **batch_options(dataset, [name], {}))  # type: ignore[arg-type]  # integers and a flag
        for batch in scanner.to_batches():
            try:
                cast_array(_values(batch.column(0), way), wanted)
            except pa.ArrowNotImplementedError:
                break
            except pa.ArrowInvalid as error:
                reason = str(error).splitlines()[0].rstrip(".")
                raise InvalidInputError(
                    f"The column '{path}' cannot become {wanted} without a loss: {reason}. Update such values "
                    "first, or add a column of that type."
                ) from error


def _way(fields: list[Any], wanted: int) -> list[Any]:
    """The fields that lead to the one of this id, itself the last; none where there is no such field."""
    for field in fields:
        if field.id() == wanted:
            return [field]
        if inner := _way(field.children(), wanted):
            return [field, *inner]
    return []


def _values(array: pa.Array, way: list[Any]) -> pa.Array:
    """The values of the last field, of all lists that it is in."""
    for field in way[1:]:
        is_struct = pa.types.is_struct(array.type)
        array = pc.struct_field(array, field.name()) if is_struct else pc.list_flatten(array)
    return array


def _may_lose(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Lance might lose a value. Integers it checks itself, and text it casts to text alone."""
    if is_same_type(kind, wanted) or isinstance(wanted, pa.BaseExtensionType):
        return False
    return not any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string))
