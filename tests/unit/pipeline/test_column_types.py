"""Types of columns: as Arrow has them, or by name; and results of functions that are no Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import parse_type, type_name
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn
from tiltyard.pipeline.task_errors import RowsFailedError

ROWS = pa.record_batch({"n": [1, 2]})


@pytest.mark.parametrize(
    "dtype",
    [
        pa.int32(), pa.float32(), pa.float16(), pa.string(), pa.large_string(), pa.date32(), pa.time64("us"),
        pa.timestamp("us", "UTC"), pa.duration("s"), pa.decimal128(10, 2), pa.binary(16), pa.list_(pa.float32(), 2),
        pa.list_(pa.list_(pa.int8())), pa.large_list(pa.list_(pa.float32(), 3)), pa.map_(pa.string(), pa.int64()),
        pa.dictionary(pa.int8(), pa.string()), pa.struct([("a", pa.int64()), ("b", pa.map_(pa.int8(), pa.string()))]),
    ],
    ids=str,
)  # fmt: skip
def test_types_of_arrow_have_names_that_are_read_again(dtype: pa.DataType) -> None:
    assert parse_type(type_name(dtype)) == dtype
    assert parse_type(dtype) is dtype
    assert parse_type(str(dtype)) == dtype


def test_sql_names_mean_what_they_mean_in_a_query() -> None:
    assert [parse_type(name) for name in ("bigint", "INT", "text", "timestamp", "date", "numeric(10, 2)")] == [
        pa.int64(), pa.int32(), pa.string(), pa.timestamp("us"), pa.date32(), pa.decimal128(10, 2)
    ]  # fmt: skip
    assert parse_type("vector(384)") == parse_type("float32[384]") == pa.list_(pa.float32(), 384)
    assert parse_type("list<bigint>") == pa.list_(pa.int64())
    with pytest.raises(RefusedError, match=r"vector\(128\)"):
        parse_type("varchar(20)")  # whose length nothing would check


def test_types_without_a_name_are_refused() -> None:
    with pytest.raises(RefusedError, match="has no name by which a job could be given it"):
        type_name(pa.list_(pa.field("item", pa.int8(), nullable=False)))
    with pytest.raises(RefusedError, match="is no type"):
        type_name(int)  # type: ignore[arg-type]  # what a caller may try


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "array": lambda rows: rows["n"].to_numpy() / 2,
    "list": lambda rows: [value.as_py() / 2 for value in rows["n"]],
    "scalars": lambda rows: [np.float32(value.as_py() / 2) for value in rows["n"]],
    "fractions": lambda rows: [1.5, 2.5],
    "texts": lambda rows: ["a", 1],
    "vectors": lambda rows: np.ones((2, 3)),
    "vector list": lambda rows: [np.ones(3), np.ones(3)],
    "text": lambda rows: "ab",
}


class _Code:
    """Stands in for code that a task loads."""


def compute(monkeypatch: pytest.MonkeyPatch, name: str, dtype: pa.DataType) -> pa.Array:
    output = FilledColumn(pa.field("x", dtype))
    function = ColumnFunction((output,), ("n",), _Code())  # type: ignore[arg-type]  # the double
    monkeypatch.setattr(ColumnFunction, "load_code", lambda self: _FUNCTIONS[name])
    return function.compute(ROWS, (output,)).columns[0]


@pytest.mark.parametrize("name", ["array", "list", "scalars"])
def test_values_of_numpy_and_lists_are_the_results_of_a_function(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert compute(monkeypatch, name, pa.float32()).to_pylist() == [0.5, 1.0]


@pytest.mark.parametrize("name", ["vectors", "vector list"])
def test_vectors_of_numpy_are_the_results_of_a_function(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert compute(monkeypatch, name, pa.list_(pa.float32(), 3)).to_pylist() == [[1.0] * 3] * 2


def test_results_that_do_not_fit_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fractions", "texts"):
        with pytest.raises(RowsFailedError, match="has to return an Arrow array of 2 values of int32"):
            compute(monkeypatch, name, pa.int32())
    with pytest.raises(RefusedError, match="not str"):
        compute(monkeypatch, "text", pa.string())
