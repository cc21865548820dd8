"""Functions of the values of a row: their hints say which columns they take, and of which type their values are."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.row_functions import parse_row_function

ROWS = pa.record_batch({"title": ["Up", None, "Jaws"], "year": [2009, 1975, None]})


def letters(title: str) -> int:
    return len(title)


def describe(title: str | None, year: int) -> list[str]:
    return [f"{title}", f"{year}"]


def untyped(title: str, year):  # type: ignore[no-untyped-def]  # that is what is tested
    return title


def batch(rows: pa.RecordBatch) -> pa.Array:
    return rows["title"]


def future(title: str, day: date) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("function", "inputs", "kind", "values"),
    [
        (letters, None, pa.int64(), [2, None, 4]),
        (letters, ("title",), pa.int64(), [2, None, 4]),
        (describe, None, pa.list_(pa.string()), [["Up", "2009"], ["None", "1975"], None]),
    ],
)
def test_hints_name_columns_and_type(
    function: Callable[..., Any], inputs: tuple[str, ...] | None, kind: pa.DataType, values: list[Any]
) -> None:
    parsed = parse_row_function(function, inputs)
    assert parsed is not None and parsed[1] == kind and parsed[0].__name__ == function.__name__
    assert pickle.loads(pickle.dumps(parsed[0]))(ROWS) == values


def test_function_of_batches_is_none_of_rows() -> None:
    assert [parse_row_function(each, None) for each in (batch, len, lambda rows: rows)] == [None] * 3


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [(untyped, None, "no hint of a value for 'year'"), (future, ("title",), "2 parameters, and inputs name 1 columns")],
)
def test_hints_that_say_too_little_are_refused(
    function: Callable[..., Any], inputs: tuple[str, ...] | None, message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        parse_row_function(function, inputs)
