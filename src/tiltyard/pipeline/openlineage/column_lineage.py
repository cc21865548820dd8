"""Which columns of its sources a column is made from: of a query by its text, of files by the job's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IDENTITY, TRANSFORMATION, AGGREGATION = "IDENTITY", "TRANSFORMATION", "AGGREGATION"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a table that a query names, and how another one is made from it."""

    table: str
    column: str
    subtype: str = IDENTITY


def query_columns(
    query: str, schemas: Mapping[str, Sequence[str]], columns: Sequence[str]
) -> dict[str, list[SourceColumn]]:
    """Return the source columns of each output column of a query in Spark's SQL, by the names of its tables.

    `schemas` are the columns of those tables. Columns whose sources the parser cannot tell are left out.
    """
    from sqlglot import exp  # noqa: PLC0415  # takes a third of a second
    from sqlglot.errors import SqlglotError  # noqa: PLC0415  # the same
    from sqlglot.lineage import lineage  # noqa: PLC0415  # the same

    known: dict[str, Any] = {table: dict.fromkeys(names, "unknown") for table, names in schemas.items()}
    made: dict[str, list[SourceColumn]] = {}
    for column in columns:
        try:
            root = lineage(column, query, schema=known, dialect="spark")
        except (SqlglotError, RecursionError, ValueError):
            continue
        expression = root.expression.unalias() if isinstance(root.expression, exp.Expression) else None
        subtype = _subtype(expression)
        sources: dict[tuple[str, str], SourceColumn] = {}
        for node in root.walk():
            if not node.downstream and isinstance(node.source, exp.Table):
                name = exp.to_column(node.name).name if "." in node.name else node.name
                sources[node.source.name, name] = SourceColumn(node.source.name, name, subtype)
        if sources:
            made[column] = list(sources.values())
    return made


def _subtype(expression: Any) -> str:
    from sqlglot import exp  # noqa: PLC0415  # see above

    if isinstance(expression, exp.Column):
        return IDENTITY
    if expression is not None and expression.find(exp.AggFunc) is not None:
        return AGGREGATION
    return TRANSFORMATION


def file_columns(source: str, arguments: Mapping[str, Any], columns: Sequence[str]) -> dict[str, list[SourceColumn]]:
    """Return the source column of each column that a job writes from files, by its options `select`, `rename`, `cast`.

    Empty where a function makes the rows: what it does is not known.
    """
    if arguments.get("udf"):
        return {}
    old_names = {new: old for old, new in (arguments.get("rename") or {}).items()}
    selected = {*(arguments.get("select") or ()), *old_names.values()}
    missing, casts = set(arguments.get("null") or ()), arguments.get("cast") or {}
    made = {}
    for column in columns:
        old = old_names.get(column, column)
        if column in missing or (arguments.get("select") and old not in selected):
            continue
        subtype = TRANSFORMATION if column in casts or old in casts else IDENTITY
        made[column] = [SourceColumn(source, old, subtype)]
    return made
