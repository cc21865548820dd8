"""Which columns of its sources a column is made from, by the options of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

IDENTITY, TRANSFORMATION, AGGREGATION = "IDENTITY", "TRANSFORMATION", "AGGREGATION"
_SUBTYPES = (IDENTITY, TRANSFORMATION, AGGREGATION)


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a table or file, and how another one is made from it."""

    table: str
    column: str
    subtype: str = IDENTITY


def later_subtype(first: str, second: str) -> str:
    """Return how a column is made in two steps: an aggregation if one is, an identity if both are."""
    return max(first, second, key=_SUBTYPES.index)


def option_columns(
    arguments: Mapping[str, Any], columns: Sequence[str], sources: Callable[[str], Sequence[SourceColumn]]
) -> dict[str, list[SourceColumn]]:
    """Return the source columns of each column that a job writes, by its options `select`, `rename`, `cast`, `null`.

    `sources` returns those of a column as the job reads it. Empty where a function makes the rows: what it does is not
    known.
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
        made[column] = [replace(each, subtype=later_subtype(each.subtype, subtype)) for each in sources(old)]
    return {column: found for column, found in made.items() if found}
