"""Check changes of column types: a cast that would lose a value is refused, which Lance's own casts are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from tiltyard.model.schemas.nested_types import cast_array, is_same_type
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.schema.field_paths import find_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance


def check_lossless(dataset: lance.LanceDataset, types: Mapping[str, pa.DataType]) -> None:
    """Read the columns at these paths, and raise InvalidInputError for the first value that its new type cannot hold.

    A cast that does not exist at all is left to Lance, which refuses it.
    """
    for path, target in types.items():
        fields = _fields_to(dataset.lance_schema.fields(), find_field(dataset, path).id())
        if not fields or not _may_lose(fields[-1].to_arrow().type, target):
            continue
        name = fields[0].name()
        scanner = dataset.scanner(columns=[name], **batch_options(CachedVersion(dataset), [name], {}))  # type: ignore[arg-type]  # integers and a flag
        for batch in scanner.to_batches():
            try:
                cast_array(_inner_values(batch.column(0), fields), target)
            except pa.ArrowNotImplementedError:
                break
            except pa.ArrowInvalid as error:
                reason = str(error).splitlines()[0].rstrip(".")
                raise InvalidInputError(
                    f"The column '{path}' cannot become {target} without a loss: {reason}. Update such values "
                    "first, or add a column of that type."
                ) from error


def _fields_to(fields: list[Any], field_id: int) -> list[Any]:
    """Return the field of this id, and before it the fields that it is in; none where there is no such field."""
    for field in fields:
        if field.id() == field_id:
            return [field]
        if inner := _fields_to(field.children(), field_id):
            return [field, *inner]
    return []


def _inner_values(array: pa.Array, fields: list[Any]) -> pa.Array:
    """Return the values of the innermost field from an array of the outermost one, of all lists that it is in."""
    for field in fields[1:]:
        is_struct = pa.types.is_struct(array.type)
        array = pc.struct_field(array, field.name()) if is_struct else pc.list_flatten(array)
    return array


def _may_lose(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether Lance's cast may lose a value. It checks integers itself, and casts text to text alone."""
    if is_same_type(source, target) or isinstance(target, pa.BaseExtensionType):
        return False
    return not any(is_kind(source) for is_kind in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string))
