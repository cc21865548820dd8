"""Vector columns of a schema, and query vectors as their columns take them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.model.columns.vector_columns import VectorColumn, vector_columns
from tiltyard.tables.query.query_vectors import choose_column, to_array

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "v": pa.list_(pa.float32(), 4),
        "tokens": pa.list_(pa.list_(pa.float16(), 8)),
        "bytes": pa.list_(pa.int8(), 2),
        "image": pa.fixed_shape_tensor(pa.float64(), (2, 3)),
        "a b": pa.struct({"v": pa.list_(pa.float64(), 3), "text": pa.string()}),
        "numbers": pa.list_(pa.int32(), 4),
        "list": pa.list_(pa.float32()),
    }
)
COLUMNS = vector_columns(SCHEMA)


def test_vector_columns_of_a_schema_are_found_inside_structs_and_tensors() -> None:
    assert {path: (column.dimension, column.element, column.is_multivector) for path, column in COLUMNS.items()} == {
        "v": (4, pa.float32(), False),
        "tokens": (8, pa.float16(), True),
        "bytes": (2, pa.int8(), False),
        "image": (6, pa.float64(), False),
        "`a b`.v": (3, pa.float64(), False),
    }


def test_column_for_a_vector_index_is_one_of_floats_or_uint8() -> None:
    assert VectorColumn.for_index(SCHEMA.field("tokens")) == COLUMNS["tokens"]
    for name in ("id", "bytes", "numbers", "list", "a b"):
        with pytest.raises(InvalidInputError, match=f"fixed-size lists of floats or uint8, and '{name}' is"):
            VectorColumn.for_index(SCHEMA.field(name))


def test_query_vector_gets_the_type_that_its_column_is_searched_with() -> None:
    assert to_array([0, 1, 2, 3], COLUMNS["v"]).type == pa.float32()
    assert to_array([0] * 8, COLUMNS["tokens"]).type == pa.float32()
    assert to_array([0, 1, 2], COLUMNS["`a b`.v"]).type == pa.float64()
    assert to_array([-128, 127], COLUMNS["bytes"]).equals(pa.array([-128, 127], pa.int8()))
    for vector, path in (([1, 2], "v"), ([1e300] * 4, "v"), ([128, 0], "bytes"), ([0.5, 0], "bytes")):
        with pytest.raises(InvalidInputError):
            to_array(vector, COLUMNS[path])


def test_column_to_search_is_the_named_one_or_the_only_one_of_the_dimension() -> None:
    assert choose_column(COLUMNS, SCHEMA.names, None, 4).path == "v"
    assert choose_column(COLUMNS, SCHEMA.names, "tokens", 4).path == "tokens"
    with pytest.raises(InvalidInputError, match="No column holds vectors of 5 dimensions"):
        choose_column(COLUMNS, SCHEMA.names, None, 5)
    with pytest.raises(InvalidInputError, match="'id' holds no vectors"):
        choose_column(COLUMNS, SCHEMA.names, "id", 4)
    with pytest.raises(TableColumnNotFoundError):
        choose_column(COLUMNS, SCHEMA.names, "nothing", 4)
