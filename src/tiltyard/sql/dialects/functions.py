"""A function of queries that this server computes itself, for arrays of arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


class FunctionError(ValueError):
    """A value that a function cannot take; its message is for whoever sent the query."""


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """A function: its name, the types of its arguments, to which DataFusion casts what it is given, and its result's.

    `compute` takes arrays of one length, and returns one of that length. It has no state: DataFusion may compute a
    constant call while it plans, and Lance may compute a filter.
    """

    name: str
    arguments: tuple[pa.DataType, ...]
    result: pa.DataType
    compute: Callable[..., pa.Array]

    def to_udf(self) -> Any:
        """Return the function as DataFusion registers it."""
        from datafusion import udf

        return udf(self.compute, list(self.arguments), self.result, "immutable", self.name)
