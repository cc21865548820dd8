"""Bodies whose dictionaries and views decode to far more than what came."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.runtime.test_decompression_guard import written
from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.runtime.client_arrow.decoded_size import SHORT, check_decoded_size, encoded_columns

ROWS = 8192
LONG = 200_000
WORD = pa.dictionary(pa.int8(), pa.string())


def dictionary(length: int, rows: int = ROWS) -> pa.Array:
    indices = pa.array([row % 2 for row in range(rows)], pa.int8())
    return pa.DictionaryArray.from_arrays(indices, pa.array(["a" * length, "b" * length]))


def views(length: int, rows: int = ROWS, *, binary: bool = False) -> pa.Array:
    """Rows that all point to one text."""
    one = np.zeros(4, dtype=np.int32)
    one[0] = length
    one[1:2] = np.frombuffer(b"xxxx", dtype=np.int32)
    buffers = [None, pa.py_buffer(np.tile(one, rows).tobytes()), pa.py_buffer(b"x" * length)]
    return pa.Array.from_buffers(pa.binary_view() if binary else pa.string_view(), rows, buffers)


def nested(length: int) -> dict[str, pa.Array]:
    inner = dictionary(length)
    offsets = pa.array(range(ROWS + 1), pa.int32())
    keys = pa.array([str(row) for row in range(ROWS)])
    return {
        "struct": pa.StructArray.from_arrays([inner], names=["word"]),
        "list": pa.ListArray.from_arrays(offsets, inner),
        "fixed": pa.FixedSizeListArray.from_arrays(inner, 2),
        "map": pa.MapArray.from_arrays(offsets, keys, inner),
    }


@pytest.mark.parametrize("file", [False, True])
def test_reader_of_a_body_whose_values_unfold_to_too_much_is_refused(file: bool) -> None:
    columns = {"dictionary": dictionary(LONG), "view": views(LONG), "bytes": views(LONG, binary=True)}
    for name, column in (columns | nested(LONG)).items():
        body = written(pa.record_batch({"column": column}), file=file)
        assert len(body) < 2 << 20, name
        with pytest.raises(Exception, match=r"stand for \d+ MiB of values"):
            MemoryBody(body).reader()


def test_reader_of_a_body_with_a_modest_dictionary_takes_it() -> None:
    for column in (dictionary(LONG, rows=100), dictionary(SHORT, rows=1_000_000), views(LONG, rows=100)):
        body = written(pa.record_batch({"column": column}))
        assert MemoryBody(body).reader().read_all().num_rows == len(column)


def test_dictionary_of_values_without_bytes_costs_nothing_however_many_it_says_that_it_has() -> None:
    """Values of `struct<>` have no buffer, so that a body of a few bytes may have as many as a number tells."""
    many = pa.StructArray.from_buffers(pa.struct([]), 1 << 48, [None])
    batch = pa.record_batch({"column": pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int32()), many)})
    check_decoded_size([batch], encoded_columns(batch.schema), 1000)


def test_check_decoded_size_counts_all_batches_together_and_nulls_as_nothing() -> None:
    batch = pa.record_batch({"column": dictionary(LONG, rows=200)})  # 40 MB each
    columns = encoded_columns(batch.schema)
    check_decoded_size([batch], columns, 1000)
    with pytest.raises(ValueError, match="stand for"):
        check_decoded_size([batch] * 2, columns, 1000)
    nulls = pa.record_batch(
        {"column": pa.DictionaryArray.from_arrays(pa.nulls(ROWS, pa.int8()), pa.array(["a" * LONG]))}
    )
    check_decoded_size([nulls], columns, 1000)


def test_encoded_columns_are_found_at_any_depth() -> None:
    schema = pa.schema(
        {
            "plain": pa.list_(pa.struct({"text": pa.string()})),
            "deep": pa.list_(pa.struct({"words": pa.map_(pa.string(), WORD)})),
            "view": pa.list_(pa.binary_view()),
        }
    )
    assert encoded_columns(schema) == (1, 2)
