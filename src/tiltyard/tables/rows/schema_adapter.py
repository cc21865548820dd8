"""Fitting rows to a table: columns by name, missing ones null, types cast where no value can change.

What Arrow calls the inner fields of lists and maps does not matter. What lancedb's local tables accept, but for
texts that would be read as numbers or the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as kinds
from lance_namespace.errors import TableSchemaValidationError

from tiltyard.model.schemas.nested_types import cast_array, is_same_schema, is_same_type, unknown_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_EXTENSION = b"ARROW:extension:name"
_TEXT = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
_BYTES = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
_NUMBERS = (kinds.is_integer, kinds.is_floating, kinds.is_decimal)
_MOMENTS = (kinds.is_timestamp, kinds.is_date)
_TIMES = (kinds.is_time,)
_SPANS = (kinds.is_duration,)
_FAMILIES = (_TEXT, _BYTES, _NUMBERS, _MOMENTS, _TIMES, _SPANS)


class SchemaAdapter:
    """From one schema to a table's: made once for a body, used on each of its batches."""

    def __init__(self, source: pa.Schema, table: pa.Schema) -> None:
        """Compare the schemas. Raises TableSchemaValidationError naming the columns that do not fit."""
        _check_names(source, table)
        self._fields: list[tuple[pa.Field, int, bool]] = []
        for field in table:
            index = source.get_field_index(field.name)
            given = source.field(index) if index >= 0 else None
            if given is None and not field.nullable:
                raise TableSchemaValidationError(f"The column '{field.name}' is missing, and cannot be null.")
            same = given is None or is_same_type(given.type, field.type)
            alike = given is not None and given.type.equals(field.type)
            passes = not (same or alike) and given is not None and _is_extension(given, field)
            if given is not None and not (same or passes or _castable(given.type, field.type)):
                raise TableSchemaValidationError(
                    f"The column '{field.name}' is {field.type} in the table, and {given.type} here."
                )
            self._fields.append((given if passes else field, index, same or passes))
        self.schema = pa.schema([field for field, _, _ in self._fields], metadata=table.metadata)
        self.passes = is_same_schema(source, self.schema) and all(field.nullable for field in self.schema)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch as the table has it. Raises TableSchemaValidationError for values that do not fit."""
        if self.passes:
            return batch
        columns = [self._column(batch, *entry) for entry in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def table(self, table: pa.Table) -> pa.Table:
        """All batches of a table. Raises as `batch` does."""
        return table if self.passes else pa.Table.from_batches(self.batches(iter(table.to_batches())), self.schema)

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each batch, fitted as it comes. Raises as `batch` does."""
        return map(self.batch, batches)

    def _column(self, batch: pa.RecordBatch, field: pa.Field, index: int, same: bool) -> pa.Array:
        if index < 0:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(index)
        if column.null_count and not field.nullable:
            raise TableSchemaValidationError(f"The column '{field.name}' has nulls, and the table allows none.")
        if same:
            return column
        try:
            return cast_array(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise TableSchemaValidationError(
                f"The column '{field.name}' is {field.type} in the table, and these values do not fit: {reason}."
            ) from error


def _check_names(source: pa.Schema, table: pa.Schema) -> None:
    twice = sorted({name for name in source.names if source.names.count(name) > 1})
    if twice:
        raise TableSchemaValidationError(f"The column '{twice[0]}' comes twice: names are unique.")
    unknown = list(unknown_fields(pa.struct(list(source)), pa.struct(list(table))))
    if unknown:
        raise TableSchemaValidationError(
            f"Unknown columns: {', '.join(unknown)}. This table has: {', '.join(table.names)}."
        )


def _is_extension(given: pa.Field, field: pa.Field) -> bool:
    """Whether Lance has to judge: it turns JSON texts and blobs into its own form while it writes."""
    return (
        isinstance(given.type, pa.BaseExtensionType)
        or isinstance(field.type, pa.BaseExtensionType)
        or _EXTENSION in (field.metadata or {})
        or _EXTENSION in (given.metadata or {})
    )


def _castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may be given for another; each value is then checked while it is cast."""
    if given.equals(wanted) or kinds.is_null(given):
        return True
    if kinds.is_dictionary(given):
        return _castable(given.value_type, wanted)
    if kinds.is_dictionary(wanted):
        return _castable(given, wanted.value_type)
    if _is_list(given) and _is_list(wanted):
        return _castable(given.value_type, wanted.value_type)
    if kinds.is_struct(given) and kinds.is_struct(wanted):
        return _castable_fields({field.name: field for field in given}, wanted)
    if kinds.is_map(given) and kinds.is_map(wanted):
        return _castable(given.key_type, wanted.key_type) and _castable(given.item_type, wanted.item_type)
    return any(_is_one(given, family) and _is_one(wanted, family) for family in _FAMILIES)


def _castable_fields(given: Mapping[str, pa.Field], wanted: pa.StructType) -> bool:
    """Whether each field of a struct has a value: by its name, or null where it may be."""
    return all(
        _castable(given[field.name].type, field.type) if field.name in given else field.nullable for field in wanted
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_one(kind: pa.DataType, family: tuple[object, ...]) -> bool:
    return any(check(kind) for check in family)  # type: ignore[operator]  # pyarrow has no stubs
