"""Names and values of Python as SQL has them: an identifier or a literal, whatever text is in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from types import NoneType
from typing import Any

from lance_namespace.errors import InvalidInputError


def quote_identifier(name: str) -> str:
    """Return a name as an identifier in the quotes that Lance's and Spark's SQL share."""
    return "`" + name.replace("`", "``") + "`"


def sql_table(path: Sequence[str]) -> str:
    """Return the name of a table in a query of the server's SQL, where nested namespaces are joined by `$`."""
    *namespaces, name = path
    return ".".join(map(sql_name, ["$".join(namespaces), name] if namespaces else [name]))


def sql_name(name: str) -> str:
    """Return a name as an identifier of the server's SQL: case counts, and every character is one of the name."""
    return '"' + name.replace('"', '""') + '"'


def sql_literal(value: Any, argument: str) -> str:
    """Return a value as a literal. Raises InvalidInputError, which names the argument, for one that SQL has none of."""
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        value = value.tolist()
    if isinstance(value, list | tuple):
        return f"[{', '.join(sql_literal(each, argument) for each in value)}]"
    for kinds, write in _WRITERS.items():
        if isinstance(value, kinds):
            return write(value)
    kind = "struct" if isinstance(value, Mapping) else type(value).__name__
    raise InvalidInputError(f"{argument} is a {kind}, of which there is no SQL literal: give SQL in values_sql.")


def _quote(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _write_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"


_WRITERS: Mapping[Any, Callable[[Any], str]] = {
    NoneType: lambda _: "NULL",
    bool: lambda value: str(value).upper(),  # before int, of which it is one
    int: str,
    float: _write_float,
    str: _quote,
    bytes: lambda value: f"X'{value.hex()}'",
    date: lambda value: _quote(value.isoformat()),  # a datetime is one, too
    Decimal: lambda value: _quote(str(value)),
}
