"""Adapt record batches to a table's schema: match columns by name, fill missing ones with null, cast losslessly.

The names of the inner fields of lists and maps are ignored. Rows are accepted as lancedb's local tables accept them,
except that texts are never read as numbers, nor numbers as texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as kinds
from lance_namespace.errors import TableSchemaValidationError

from tiltyard.model.columns.blob_columns import is_castable_to_blobs
from tiltyard.model.schemas.nested_types import cast_array, is_list, is_same_schema, is_same_type, unknown_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_EXTENSION = b"ARROW:extension:name"
_TEXT = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
_BYTES = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
_NUMBERS = (kinds.is_integer, kinds.is_floating, kinds.is_decimal)
_TIMESTAMPS = (kinds.is_timestamp, kinds.is_date)
_TIMES = (kinds.is_time,)
_DURATIONS = (kinds.is_duration,)
_FAMILIES = (_TEXT, _BYTES, _NUMBERS, _TIMESTAMPS, _TIMES, _DURATIONS)


class SchemaAdapter:
    """The conversion from one schema to a table's: made once for a body, applied to each of its batches."""

    def __init__(self, source: pa.Schema, table: pa.Schema) -> None:
        """Compare the schemas. Raises TableSchemaValidationError that names the first column which does not fit."""
        _check_names(source, table)
        self._fields: list[tuple[pa.Field, int, bool]] = []
        for field in table:
            index = source.get_field_index(field.name)
            column = source.field(index) if index >= 0 else None
            if column is None and not field.nullable:
                raise TableSchemaValidationError(
                    f"Append with different schema: the column '{field.name}' is missing, and cannot be null."
                )
            is_same = column is None or is_same_type(column.type, field.type)
            is_equal = column is not None and column.type.equals(field.type)
            is_for_lance = not (is_same or is_equal) and column is not None and _is_extension(column, field)
            if column is not None and not (is_same or is_for_lance or _is_castable(column.type, field.type)):
                raise TableSchemaValidationError(
                    f"The column '{field.name}' is {field.type} in the table, and {column.type} here."
                )
            self._fields.append((column if is_for_lance else field, index, is_same or is_for_lance))
        self.schema = pa.schema([field for field, _, _ in self._fields], metadata=table.metadata)
        self.is_identity = is_same_schema(source, self.schema) and all(field.nullable for field in self.schema)

    def adapt_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the table's schema. Raises TableSchemaValidationError for values that do not fit."""
        if self.is_identity:
            return batch
        columns = [self._column(batch, *entry) for entry in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def adapt_table(self, table: pa.Table) -> pa.Table:
        """Return in-memory rows in the table's schema. Raises as `adapt_batch` does."""
        return (
            table
            if self.is_identity
            else pa.Table.from_batches(self.adapt_batches(iter(table.to_batches())), self.schema)
        )

    def adapt_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch in the table's schema, as it streams in. Raises as `adapt_batch` does."""
        return map(self.adapt_batch, batches)

    def _column(self, batch: pa.RecordBatch, field: pa.Field, index: int, is_same: bool) -> pa.Array:
        if index < 0:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(index)
        if column.null_count and not field.nullable:
            raise TableSchemaValidationError(
                f"The field `{field.name}` contained null values even though the field is marked non-null in the schema"
                ": leave these rows out, or alter the column."
            )
        if is_same:
            return column
        try:
            return cast_array(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise TableSchemaValidationError(
                f"The column '{field.name}' is {field.type} in the table, and these values do not fit: {reason}."
            ) from error


def find_adapter(adapters: list[tuple[pa.Schema, SchemaAdapter]], source: pa.Schema, table: pa.Schema) -> SchemaAdapter:
    """Return the adapter of a source schema from the list, or add one: concurrent appends mostly share a schema."""
    for schema, adapter in adapters:
        if schema.equals(source, check_metadata=True):
            return adapter
    adapter = SchemaAdapter(source, table)
    adapters.append((source, adapter))
    return adapter


def _check_names(source: pa.Schema, table: pa.Schema) -> None:
    duplicates = sorted({name for name in source.names if source.names.count(name) > 1})
    if duplicates:
        raise TableSchemaValidationError(f"The column '{duplicates[0]}' occurs twice: names are unique.")
    unknown = list(unknown_fields(pa.struct(list(source)), pa.struct(list(table))))
    if unknown:
        raise TableSchemaValidationError(
            f"Unknown columns: {', '.join(unknown)}. This table has: {', '.join(table.names)}."
        )


def _is_extension(column: pa.Field, field: pa.Field) -> bool:
    """Return whether a column is left to Lance, which encodes JSON texts and blobs in its own form while it writes."""
    if is_castable_to_blobs(column.type, field.type):
        return False
    return (
        isinstance(column.type, pa.BaseExtensionType)
        or isinstance(field.type, pa.BaseExtensionType)
        or _EXTENSION in (field.metadata or {})
        or _EXTENSION in (column.metadata or {})
    )


def _is_castable(source_type: pa.DataType, table_type: pa.DataType) -> bool:
    """Return whether values of one type may be cast to another; the cast then checks each value."""
    if source_type.equals(table_type) or kinds.is_null(source_type) or is_castable_to_blobs(source_type, table_type):
        return True
    if kinds.is_dictionary(source_type):
        return _is_castable(source_type.value_type, table_type)
    if kinds.is_dictionary(table_type):
        return _is_castable(source_type, table_type.value_type)
    if is_list(source_type) and is_list(table_type):
        return _is_castable(source_type.value_type, table_type.value_type)
    if kinds.is_struct(source_type) and kinds.is_struct(table_type):
        return _are_fields_castable({field.name: field for field in source_type}, table_type)
    if kinds.is_map(source_type) and kinds.is_map(table_type):
        return _is_castable(source_type.key_type, table_type.key_type) and _is_castable(
            source_type.item_type, table_type.item_type
        )
    return any(_belongs_to(source_type, family) and _belongs_to(table_type, family) for family in _FAMILIES)


def _are_fields_castable(source_fields: Mapping[str, pa.Field], table_type: pa.StructType) -> bool:
    """Return whether each field of a table's struct has a castable field of its name, or is nullable."""
    return all(
        _is_castable(source_fields[field.name].type, field.type) if field.name in source_fields else field.nullable
        for field in table_type
    )


def _belongs_to(type_: pa.DataType, family: tuple[object, ...]) -> bool:
    return any(check(type_) for check in family)  # type: ignore[operator]  # pyarrow has no stubs
