"""Functions of the values of a row, whose hints name columns and types: `def letters(title: str) -> int`."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from tiltyard.model.refusals import RefusedError

_TYPES: Mapping[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us"),
}


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function that is called with the values of each row of a batch; it travels pickled, with all that it uses.

    A row without a value in a column whose hint takes no None has no value, and is not passed to it.
    """

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    takes_null: tuple[bool, ...]

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, rows: pa.RecordBatch) -> list[Any]:
        """Return the function's value of each row."""
        columns = [rows.column(name).to_pylist() for name in self.inputs]
        return [self._call(values) for values in zip(*columns, strict=True)]

    def _call(self, values: tuple[Any, ...]) -> Any:
        if any(value is None and not takes for value, takes in zip(values, self.takes_null, strict=True)):
            return None
        return self.function(*values)


def parse_row_function(
    function: Callable[..., Any], inputs: tuple[str, ...] | None
) -> tuple[RowFunction, pa.DataType | None] | None:
    """Return a function of rows with the type that its hint names; None for a function of batches.

    It is one of rows if its parameters have hints that are values of Python; they are the columns, unless `inputs` are.
    Raises RefusedError for parameters of which only some have such hints, and for another number of inputs.
    """
    if not inspect.isfunction(function):
        return None
    name = function.__name__
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise RefusedError(f"The hints of '{name}' cannot be read: {error}.") from error
    parameters = list(inspect.signature(function).parameters)
    kinds = {each: _value_kind(hints[each]) for each in parameters if each in hints}
    if not any(kind is not None for kind in kinds.values()):
        return None
    if other := [each for each in parameters if kinds.get(each) is None]:
        raise RefusedError(
            f"'{name}' has no hint of a value for '{other[0]}': write one for each parameter, as in "
            "def letters(title: str) -> int, or take one pyarrow.RecordBatch."
        )
    columns = tuple(parameters) if inputs is None else inputs
    if len(columns) != len(parameters):
        raise RefusedError(f"'{name}' has {len(parameters)} parameters, and inputs name {len(columns)} columns.")
    takes_null = tuple(_takes_none(hints[each]) for each in parameters)
    return RowFunction(function, columns, takes_null), _value_kind(hints.get("return"))


def _value_kind(hint: Any) -> pa.DataType | None:
    """Return the type of values that a hint names; None for one that is of no value."""
    if _takes_none(hint):
        [hint] = [each for each in typing.get_args(hint) if each is not types.NoneType] or [None]
    if typing.get_origin(hint) is list:
        values = _value_kind(typing.get_args(hint)[0])
        return None if values is None else pa.list_(values)
    return _TYPES.get(hint)


def _takes_none(hint: Any) -> bool:
    """Return whether a hint is `X | None`."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return is_union and len(typing.get_args(hint)) == 2 and types.NoneType in typing.get_args(hint)
