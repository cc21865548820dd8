"""Propose what the columns of a table may be classified as, by the forms of values in a sample and by their names.

Nothing is set. Rules find forms and words, not meanings; the counts are for a person to judge. The sample is read as
its caller may see the rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.functions.pii import find_all

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

SUGGESTED_KEY = "pii"
MAX_SAMPLED_ROWS = 100_000
"""Rows of a table that are sampled at most."""
MAX_SAMPLED_CHARACTERS = 2_000
"""Characters of a value that are looked at."""
MIN_SHARE = 0.05
"""Of the sampled values that are not null, so many have a form for it to be proposed."""
_BLOCKS = 5
_NAMES: Mapping[str, re.Pattern[str]] = {
    value: re.compile(rf"(?:^|_)(?:{words})(?:_|$)")
    for value, words in {
        "email": "e?_?mails?|email_?address",
        "phone": "phones?|phone_?number|mobile|telephone|tel|fax",
        "card": "cards?|card_?number|credit_?card|pan",
        "ip": "ip|ip_?addr(?:ess)?|client_?ip",
        "iban": "iban",
        "national_id": "ssn|national_?id|tax_?id|passport",
        "birth_date": "birth_?da(?:te|y)|birthday|dob|date_of_birth",
        "name": "first_?name|last_?name|full_?name|sur_?name|given_?name|family_?name",
        "address": "street|postcode|zip_?code|postal_?code|home_?address",
    }.items()
}
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s.-]+")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A classification that a column may have.

    `found` of `sampled` values have its form; `is_named` says that the name of the column tells of it.
    """

    column: str
    key: str
    value: str
    found: int
    sampled: int
    is_named: bool


def suggest_classifications(caller: Caller, table: Sequence[str], rows: int = 1_000) -> list[Suggestion]:
    """Return proposals for the columns of a table that have no value of the key yet, those with the most found first.

    Up to `rows` rows are sampled, from several places of the table. Raises InvalidInputError, and as `Caller.read`.
    """
    if not 1 <= rows <= MAX_SAMPLED_ROWS:
        raise InvalidInputError(f"{rows} rows cannot be sampled: name 1 to {MAX_SAMPLED_ROWS}.")
    listed = caller.call("ListClassifications", object_kind="table", id=list(table))["classifications"]
    known = {each.get("column") for each in listed if each["key"] == SUGGESTED_KEY and not each.get("is_dropped")}
    schema = caller.readable_schema(table)
    columns = [field.name for field in schema if _is_read(field.type) and field.name not in known]
    sampled, found = Counter[str](), Counter[tuple[str, str]]()
    for batch in _sample(caller, table, columns, rows) if columns else ():
        for name in columns:
            for value in batch.column(name).drop_null().to_pylist():
                sampled[name] += 1
                found.update(
                    (name, kind) for kind in {each.kind for each in find_all(str(value)[:MAX_SAMPLED_CHARACTERS])}
                )
    return sorted(_proposals(columns, sampled, found), key=lambda each: (-each.found, each.column, each.value))


def _is_read(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))


def _sample(caller: Caller, table: Sequence[str], columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield rows from several places of a table, at the same distance from each other."""
    count = int(caller.call("CountTableRows", id=list(table)))
    size = max(1, rows // _BLOCKS)
    starts = [0] if count <= rows else [(count - size) * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
    for start in starts:
        fields: dict[str, Any] = {"k": rows if count <= rows else size, "offset": start or None, "vector": {}}
        with caller.read("QueryTable", id=list(table), columns={"column_names": list(columns)}, **fields) as batches:
            yield from batches


def _proposals(columns: Sequence[str], sampled: Counter[str], found: Counter[tuple[str, str]]) -> Iterator[Suggestion]:
    for column in columns:
        words = "_".join(_BOUNDARY.split(column)).lower()
        named = {value for value, pattern in _NAMES.items() if pattern.search(words)}
        formed = {kind for name, kind in found if name == column and found[column, kind] >= MIN_SHARE * sampled[column]}
        for value in sorted(named | formed):
            count = found[column, value]
            yield Suggestion(column, SUGGESTED_KEY, value, count, sampled[column], value in named)
