"""The condition of an erasure on a table that was made from another one: with the names that its columns have there.

Lineage says which these are. The condition then selects there what was made of the rows that it selects in the source,
if each column of it is a copy of the source's, and no column has values of several rows of the source.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

from tiltyard.model.branches import Branch
from tiltyard.model.columns.lineage import ANY_COLUMN, Derivation, inputs_of, made_of
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.lance_sql.lexer import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.store.tables.lineage import LineageRecord

_OF_SEVERAL_ROWS = frozenset({Derivation.AGGREGATED, Derivation.UNKNOWN})
"""How a column is made that may have values of other rows of the source than its own."""
_KEYWORDS = re.compile(
    "and|or|not|in|is|i?like|between|null|true|false|case|when|then|else|end|(try_)?cast|as|escape|distinct|from|"
    "similar|to|any|all|exists|interval|date|time|timestamp",
    re.IGNORECASE,
)
"""Words that may be no column, even where a column has that name: a condition with one of them is not rewritten."""


def derive_condition(
    ctx: Context, source: tuple[int, str], records: Sequence[LineageRecord], location: str, condition: str
) -> str | None:
    """Return a condition on a source (its id and location) as one on a table at `location`; None if there is none.

    `records` are the commits of the table that read the source. Raises ServiceUnavailableError.
    """
    number, place = source
    try:
        read, made = open_main(ctx, place), open_main(ctx, location)
    except LanceNamespaceError:
        return None
    columns = columns_of(condition, read.schema.names)
    copies: dict[str, set[str]] = {name: set(made.schema.names) for name in columns}
    for record in records:
        found = _copies(record, number, columns)
        if found is None:
            return None
        copies = {name: each & found[name] for name, each in copies.items()}
    names = {column: column if column in found else min(found, default="") for column, found in copies.items()}
    if not names or not all(_are_same(read, made, records, number, *pair) for pair in names.items()):
        return None
    if any(len(set(each.source_ids)) > 1 for each in records) and _selects_nulls(read.schema, columns, condition):
        return None  # an outer join has nulls where there was no row of the source
    return rename_columns(condition, names)


def open_main(ctx: Context, location: str) -> lance.LanceDataset:
    """Open the latest version of main. Raises TableNotFoundError, ServiceUnavailableError."""
    with lance_errors(location):
        return ctx.storage.datasets.open_for_reading(location)


def _copies(record: LineageRecord, source: int, columns: Iterable[str]) -> dict[str, set[str]] | None:
    """Return which columns of a commit are copies of a source's; None if it may have values of several of its rows."""
    positions = frozenset(at for at, each in enumerate(record.source_ids) if each == source)
    origins = record.columns
    if origins is None or len(positions) != 1:
        return None
    inputs = [each for origin in origins for each in origin.inputs if each.source in positions]
    if any(each.how in _OF_SEVERAL_ROWS for each in inputs):
        return None
    return {
        column: {
            name
            for name, each in made_of(origins, positions, column)
            if each.how is Derivation.DIRECT
            and each.column != ANY_COLUMN
            and len(inputs_of(origins, len(record.sources), name)) == 1
        }
        for column in columns
    }


def _are_same(
    read: lance.LanceDataset,
    made: lance.LanceDataset,
    records: Sequence[LineageRecord],
    source: int,
    column: str,
    copy: str,
) -> bool:
    """Return whether a column has the values of the source's, and both are the columns that the commits named so."""
    if not copy or not _has_same_values(read.schema.field(column).type, made.schema.field(copy).type):
        return False
    for record in records:
        origin = record.sources[record.source_ids.index(source)]
        if not _is_still(read, origin.branch, origin.version, column):
            return False
        if not _is_still(made, record.branch, record.version, copy):
            return False
    return True


def _has_same_values(one: pa.DataType, other: pa.DataType) -> bool:
    texts = pa.types.is_string(one) or pa.types.is_large_string(one)
    are_texts = texts and (pa.types.is_string(other) or pa.types.is_large_string(other))
    are_numbers = pa.types.is_integer(one) and pa.types.is_integer(other)
    return bool(one == other or are_texts or are_numbers)


def _is_still(latest: lance.LanceDataset, branch: str, version: int | None, name: str) -> bool:
    """Return whether a column of a version has its name yet; True for a version that is gone: nothing tells it then."""
    if version is None:
        return True
    try:
        with lance_errors(latest):
            then = field_numbers(latest.checkout_version((Branch.parse(branch).lance_name, version)))
    except LanceNamespaceError:
        return True
    return then.get(name) == field_numbers(latest).get(name)


def field_numbers(dataset: lance.LanceDataset) -> dict[str, int]:
    """Return the number of each column, which it keeps when it is renamed."""
    return {field.name(): field.id() for field in dataset.lance_schema.fields()}


def _selects_nulls(schema: pa.Schema, columns: Iterable[str], condition: str) -> bool:
    """Return whether a condition selects a row in which all of its columns are null; True if it cannot be told."""
    fields = [pa.field(name, schema.field(name).type) for name in columns]
    row = pa.Table.from_arrays([pa.nulls(1, field.type) for field in fields], schema=pa.schema(fields))
    try:
        with lance_errors():
            return int(lance.write_dataset(row, "memory://nulls").count_rows(condition)) > 0
    except LanceNamespaceError:
        return True


def columns_of(condition: str, names: Iterable[str]) -> list[str]:
    """Return which columns, of these names, a condition may read: fields inside of them count as the column."""
    tokens = [each for each in TOKEN.finditer(condition) if each.lastgroup in {"word", "quoted"}]
    words = {each[0].strip('`"').casefold() for each in tokens if not _is_field(condition, each.start())}
    return [name for name in names if name.casefold() in words]


def _is_field(condition: str, start: int) -> bool:
    return condition[:start].rstrip().endswith(".")


def rename_columns(condition: str, names: Mapping[str, str]) -> str | None:
    """Return a condition with other names of its columns; None where it cannot be told what a word of it is."""
    if all(old == new for old, new in names.items()):
        return condition
    folded = {name.casefold() for name in names}
    parts, end = list[str](), 0
    for token in TOKEN.finditer(condition):
        name = token[0].strip("`") if token.lastgroup in {"word", "quoted"} else ""
        if name.startswith('"'):
            return None  # a text or a name, as the parser has it
        is_call = token.lastgroup == "word" and condition[token.end() :].lstrip().startswith("(")
        if name.casefold() not in folded or is_call or _is_field(condition, token.start()):
            continue
        if name not in names or (token.lastgroup == "word" and _KEYWORDS.fullmatch(name)):
            return None
        parts += [condition[end : token.start()], quote_path((names[name],))]
        end = token.end()
    return "".join([*parts, condition[end:]])
