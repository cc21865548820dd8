"""Convert Arrow types to Spark's, and back.

Spark has fewer: a type that it lacks becomes one that holds all its values.

The metadata of Spark's field keeps the column's original Arrow field, so that the column is written with it again.
Nothing changes silently: a value that does not fit is an error, and so is a type that Spark has no type for; both name
the column.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.casts import ColumnMapping, cast_batches

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

ARROW_METADATA = "tiltyard.arrow"
"""The key of Spark's field metadata that holds the Arrow field, as base64 of its IPC form."""

_MICROSECONDS = pa.timestamp("us")
_SHARED_TYPES = frozenset(
    {
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), _MICROSECONDS, pa.duration("us"), pa.time64("ns"),
    }
)  # fmt: skip
_WIDER_TYPES = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("ns"),
    pa.time32("ms"): pa.time64("ns"),
    pa.time64("us"): pa.time64("ns"),
}
_MAX_DIGITS = 38


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a table's schema in Spark. Raises RefusedError for a column that Spark has no type for."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # an extra
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415  # the same

    fields = []
    for field in schema:
        supported = pa.field(field.name, to_spark_type(field.type, field.name), field.nullable)
        [spark_field] = from_arrow_schema(pa.schema([supported])).fields
        metadata = {ARROW_METADATA: base64.b64encode(pa.schema([field]).serialize().to_pybytes()).decode()}
        fields.append(StructField(field.name, spark_field.dataType, field.nullable, metadata))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema to write a DataFrame's columns with: the one they were read with, or Spark's own.

    Raises RefusedError for a column that Arrow has no type for.
    """
    return pa.schema([_original_field(field) or _default_field(field) for field in schema.fields])


def batch_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of batches between Spark and Python."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # an extra

    return to_arrow_schema(schema, timezone="UTC")


def cast_for_spark(
    batches: Iterable[pa.RecordBatch], shape: pa.Schema, read: Collection[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Cast a table's batches to the schema `shape` of `batch_schema`. Columns that are not in `read` are null.

    Runs in tasks. Raises RefusedError for a value that Spark's type cannot hold.
    """
    columns = [
        ColumnMapping(field.with_nullable(True), field.name if read is None or field.name in read else None)
        for field in shape
    ]
    for batch in cast_batches(batches, columns, "A value is more than Spark's type can hold: {reason}."):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=shape)


def to_spark_type(dtype: pa.DataType, column: str) -> pa.DataType:
    """Return the Arrow type in which Spark holds a type's values. Raises RefusedError."""
    if dtype in _SHARED_TYPES:
        return dtype
    if dtype in _WIDER_TYPES:
        return _WIDER_TYPES[dtype]
    if pa.types.is_timestamp(dtype):
        return pa.timestamp("us", "UTC") if dtype.tz else _MICROSECONDS
    if pa.types.is_duration(dtype):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(dtype) and not pa.types.is_decimal(dtype):
        return pa.binary()
    if pa.types.is_decimal(dtype) and dtype.precision <= _MAX_DIGITS and 0 <= dtype.scale <= dtype.precision:
        return pa.decimal128(dtype.precision, dtype.scale)
    if pa.types.is_dictionary(dtype):
        return to_spark_type(dtype.value_type, column)
    return _to_nested_spark_type(dtype, column)


def _to_nested_spark_type(dtype: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_map(dtype):
        item = pa.field("value", to_spark_type(dtype.item_type, column), dtype.item_field.nullable)
        return pa.map_(to_spark_type(dtype.key_type, column), item)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        value = dtype.value_field
        return pa.list_(pa.field("element", to_spark_type(value.type, column), value.nullable))
    if pa.types.is_struct(dtype):
        fields = [dtype.field(number) for number in range(dtype.num_fields)]
        return pa.struct([pa.field(field.name, to_spark_type(field.type, column), field.nullable) for field in fields])
    raise RefusedError(
        f"Column '{column}' is {dtype}, and Spark has no type for that: leave it out with the option columns."
    )


def _original_field(field: StructField) -> pa.Field | None:
    """Return the Arrow field from a field's metadata, if the column still has the same Spark type."""
    text = (field.metadata or {}).get(ARROW_METADATA)
    if text is None:
        return None
    original = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0)
    is_unchanged = spark_schema(pa.schema([original])).fields[0].dataType == field.dataType
    return original.with_name(field.name).with_nullable(field.nullable) if is_unchanged else None


def _default_field(field: StructField) -> pa.Field:
    from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra
    from pyspark.sql.types import StructType  # noqa: PLC0415  # the same

    try:
        return batch_schema(StructType([field])).field(0)
    except PySparkException as error:
        raise RefusedError(
            f"Column '{field.name}' is {field.dataType.simpleString()}, and Arrow has no type for that: cast it, or "
            "leave it out."
        ) from error
