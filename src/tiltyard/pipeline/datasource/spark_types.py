"""Arrow's types in Spark, and back. Spark has fewer: what it lacks travels as a type that holds every value of it.

The Arrow field that a column had is kept in the metadata of Spark's field, so that it is the same again when the column
is written. Nothing is changed silently: a value that does not fit is an error, and so is a type that Spark has nothing
for; both name the column.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.casts import ColumnMapping, cast_batches

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

ARROW = "tiltyard.arrow"
"""The key of Spark's field metadata that holds the Arrow field, as base64 of its IPC form."""

_MICROSECONDS = pa.timestamp("us")
_SAME = frozenset(
    {
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), _MICROSECONDS, pa.duration("us"), pa.time64("ns"),
    }
)  # fmt: skip
_WIDER = {
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
_MOST_DIGITS = 38


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of a table. Raises RefusedError for a column that Spark has no type for."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # an extra
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415  # the same

    fields = []
    for field in schema:
        plain = pa.field(field.name, carried(field.type, field.name), field.nullable)
        [found] = from_arrow_schema(pa.schema([plain])).fields
        kept = {ARROW: base64.b64encode(pa.schema([field]).serialize().to_pybytes()).decode()}
        fields.append(StructField(field.name, found.dataType, field.nullable, kept))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that columns of a DataFrame are written with: what they were read with, or Spark's own.

    Raises RefusedError for a column that Arrow has no type for.
    """
    return pa.schema([_kept(field) or _plain(field) for field in schema.fields])


def batch_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of batches between Spark and Python."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # an extra

    return to_arrow_schema(schema, timezone="UTC")


def for_spark(
    batches: Iterable[pa.RecordBatch], shape: pa.Schema, read: Collection[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of a table as Spark takes them; `shape` is `batch_schema`'s. Columns that are not of `read` are null.

    Runs in tasks. Raises RefusedError for a value that Spark's type cannot hold.
    """
    columns = [
        ColumnMapping(field.with_nullable(True), field.name if read is None or field.name in read else None)
        for field in shape
    ]
    for fitted in cast_batches(batches, columns, "A value is more than Spark's type can hold: {reason}."):
        yield pa.RecordBatch.from_arrays(fitted.columns, schema=shape)


def carried(dtype: pa.DataType, column: str) -> pa.DataType:
    """The type that Spark carries a type's values in. Raises RefusedError."""
    if dtype in _SAME:
        return dtype
    if dtype in _WIDER:
        return _WIDER[dtype]
    if pa.types.is_timestamp(dtype):
        return pa.timestamp("us", "UTC") if dtype.tz else _MICROSECONDS
    if pa.types.is_duration(dtype):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(dtype) and not pa.types.is_decimal(dtype):
        return pa.binary()
    if pa.types.is_decimal(dtype) and dtype.precision <= _MOST_DIGITS and 0 <= dtype.scale <= dtype.precision:
        return pa.decimal128(dtype.precision, dtype.scale)
    if pa.types.is_dictionary(dtype):
        return carried(dtype.value_type, column)
    return _carried_nested(dtype, column)


def _carried_nested(dtype: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_map(dtype):
        item = pa.field("value", carried(dtype.item_type, column), dtype.item_field.nullable)
        return pa.map_(carried(dtype.key_type, column), item)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        value = dtype.value_field
        return pa.list_(pa.field("element", carried(value.type, column), value.nullable))
    if pa.types.is_struct(dtype):
        fields = [dtype.field(number) for number in range(dtype.num_fields)]
        return pa.struct([pa.field(one.name, carried(one.type, column), one.nullable) for one in fields])
    raise RefusedError(
        f"Column '{column}' is {dtype}, and Spark has no type for that: leave it out with the option columns."
    )


def _kept(field: StructField) -> pa.Field | None:
    """The Arrow field in a field's metadata, if the column still is what it was then."""
    text = (field.metadata or {}).get(ARROW)
    if text is None:
        return None
    found = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0)
    same = spark_schema(pa.schema([found])).fields[0].dataType == field.dataType
    return found.with_name(field.name).with_nullable(field.nullable) if same else None


def _plain(field: StructField) -> pa.Field:
    from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra
    from pyspark.sql.types import StructType  # noqa: PLC0415  # the same

    try:
        return batch_schema(StructType([field])).field(0)
    except PySparkException as error:
        raise RefusedError(
            f"Column '{field.name}' is {field.dataType.simpleString()}, and Arrow has no type for that: cast it, or "
            "leave it out."
        ) from error
