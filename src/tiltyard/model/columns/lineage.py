"""Which columns of a commit's sources each of its columns was made from, and how: a part of the commit's lineage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

ANY_COLUMN = "*"
"""In the place of a column: any one of the source's, where it is not known which; of a commit, each other column."""
MAX_COLUMN_BYTES = 65_536
"""Bytes of JSON that the columns of one commit take in its record; of more, none is recorded."""
TOO_MANY_COLUMNS = f"the record of its columns would be larger than {MAX_COLUMN_BYTES} bytes"


_WORD = re.compile(r"\w+")
_TEXT = re.compile("'[^']*'")


class Derivation(StrEnum):
    """How a column is made from another one."""

    DIRECT = "direct"
    """It has its values, under another name or in another type of numbers and texts maybe."""
    TRANSFORMED = "transformed"
    """An expression, or a cast, makes it of that column."""
    AGGREGATED = "aggregated"
    """It is made of that column's values in several rows."""
    FUNCTION = "function"
    """A function makes it; `code` is the digest of that."""
    CONSTANT = "constant"
    """It is made from no column: a literal, or the number of rows."""
    UNKNOWN = "unknown"

    def after(self, other: Derivation) -> Derivation:
        """Return how a column is made in two steps: by the one that changes more."""
        return max(self, other, key=_STRENGTHS.index)


_STRENGTHS = (
    Derivation.DIRECT, Derivation.TRANSFORMED, Derivation.AGGREGATED, Derivation.FUNCTION, Derivation.CONSTANT,
    Derivation.UNKNOWN,
)  # fmt: skip


class ColumnInput(msgspec.Struct, frozen=True, array_like=True):
    """A column that another one is made from: `source` is the position of its table or file in the commit's sources."""

    source: int
    column: str
    how: Derivation = Derivation.DIRECT
    code: str = ""

    def then(self, how: Derivation, code: str = "") -> ColumnInput:
        """Return the input of a column that is made, in a further step, of the column with this input."""
        return ColumnInput(self.source, self.column, how.after(self.how), code or self.code)


class ColumnOrigin(msgspec.Struct, frozen=True, array_like=True):
    """A column of a commit, and the columns that it is made from: none of a constant.

    The column ANY_COLUMN stands for each that is not named: made directly from ANY_COLUMN, each is from its namesake.
    """

    column: str
    inputs: tuple[ColumnInput, ...]


Origins = tuple[ColumnOrigin, ...]
WHOLE_COPY: Origins = (ColumnOrigin(ANY_COLUMN, (ColumnInput(0, ANY_COLUMN),)),)
"""The columns of a copy of the first source."""


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """What the columns of rows are made from, before a job selects, renames and casts them.

    `inputs` has those of each column; it is None where they are not known, and `why_unknown` says why.
    """

    inputs: Mapping[str, tuple[ColumnInput, ...]] | None
    why_unknown: str = ""

    @classmethod
    def of_source(cls, names: Iterable[str]) -> ReadColumns:
        """Return the columns of the first source, as they are."""
        return cls({name: (ColumnInput(0, name),) for name in names})

    def origins(self, named: Iterable[tuple[str, str]], casts: Iterable[str] = ()) -> Origins | None:
        """Return the origins of columns by pairs of their names, new and old; those of `casts` are transformed."""
        if self.inputs is None:
            return None
        changed, inputs = frozenset(casts), self.inputs
        hows = ((new, old, Derivation.TRANSFORMED if new in changed else Derivation.DIRECT) for new, old in named)
        return tuple(
            ColumnOrigin(new, tuple(each.then(how) for each in inputs[old])) for new, old, how in hows if old in inputs
        )

    def made_by(self, code: str, names: Iterable[str], read: Iterable[str]) -> Origins | None:
        """Return the origins of columns that a function, of the digest `code`, makes of the columns `read`."""
        if self.inputs is None:
            return None
        inputs = dict.fromkeys(
            each.then(Derivation.FUNCTION, code) for old in read for each in self.inputs.get(old, ())
        )
        return tuple(ColumnOrigin(name, tuple(inputs)) for name in names)


def rows_function_origins(names: Iterable[str], sources: int, code: str) -> Origins:
    """Return the origins of columns of rows that a function makes of whole rows of some sources."""
    inputs = tuple(ColumnInput(number, ANY_COLUMN, Derivation.FUNCTION, code) for number in range(sources))
    return tuple(ColumnOrigin(name, inputs) for name in names)


def function_origins(names: Iterable[str], inputs: Iterable[str], computed: Iterable[tuple[str, str]]) -> Origins:
    """Return the origins of computed columns, by name and identity, that one call makes of `inputs` of their table.

    `names` are the table's columns: an input may be a field inside one.
    """
    known = frozenset(names)
    read = dict.fromkeys(name if name in known else name.partition(".")[0] for name in inputs)
    return tuple(
        ColumnOrigin(column, tuple(ColumnInput(0, name, Derivation.FUNCTION, identity) for name in read))
        for column, identity in computed
    )


def sql_inputs(expression: str, names: Iterable[str]) -> tuple[ColumnInput, ...]:
    """Return the columns of the first source, of these names, that Lance's SQL reads: those whose names it has.

    It is directly the column that the expression is the name of.
    """
    text = expression.strip()
    word = text[1:-1] if text[:1] == text[-1:] == "`" else text
    words = words_of(_TEXT.sub(" ", text))
    named = [name for name in names if words_of(name) <= words]
    how = Derivation.DIRECT if word in named else Derivation.TRANSFORMED
    return tuple(ColumnInput(0, name, how) for name in ([word] if word in named else named))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, case-folded: an expression may read what has a name of its words alone."""
    return frozenset(word.casefold() for word in _WORD.findall(text))


def is_valid(origins: Origins, sources: int) -> bool:
    """Return whether the origins of a commit with so many sources are such as may be recorded."""
    positions_exist = all(0 <= each.source < sources for origin in origins for each in origin.inputs)
    return positions_exist and len(msgspec.json.encode(origins)) <= MAX_COLUMN_BYTES


def inputs_of(origins: Origins | None, sources: int, column: str) -> tuple[ColumnInput, ...]:
    """Return what a column of a commit with so many sources is made from; nothing, if the commit has not made it.

    Of ANY_COLUMN, and where the origins are not known, it is any column of the sources.
    """
    if origins is None:
        return tuple(ColumnInput(number, ANY_COLUMN, Derivation.UNKNOWN) for number in range(sources))
    if column == ANY_COLUMN:
        read = dict.fromkeys(each.source for origin in origins for each in origin.inputs)
        return tuple(ColumnInput(number, ANY_COLUMN, Derivation.UNKNOWN) for number in read)
    named = {origin.column: origin for origin in origins}
    origin = named.get(column) or named.get(ANY_COLUMN)
    if origin is None:
        return ()
    if not origin.inputs:
        return tuple(ColumnInput(number, "", Derivation.CONSTANT) for number in range(sources))
    return tuple(_of_namesake(each, column) if origin.column == ANY_COLUMN else each for each in origin.inputs)


def _of_namesake(each: ColumnInput, column: str) -> ColumnInput:
    is_copy = each.column == ANY_COLUMN and each.how is Derivation.DIRECT
    return ColumnInput(each.source, column) if is_copy else each


def made_of(origins: Origins | None, positions: frozenset[int], column: str) -> list[tuple[str, ColumnInput]]:
    """Return the columns of a commit that are made from a column of its sources at some positions, each with how.

    ANY_COLUMN is among them where it is not known which are.
    """
    unknown = [(ANY_COLUMN, ColumnInput(number, column, Derivation.UNKNOWN)) for number in sorted(positions)]
    if origins is None:
        return unknown
    found = [(origin.column, each) for origin in origins for each in origin.inputs if each.source in positions]
    if column == ANY_COLUMN:
        return unknown if found else []
    names = {origin.column for origin in origins}
    made = []
    for name, each in found:
        if each.column == column:
            made.append((name, each))
        elif each.column == ANY_COLUMN and name == ANY_COLUMN and each.how is Derivation.DIRECT:
            made += [] if column in names else [(column, ColumnInput(each.source, column))]
        elif each.column == ANY_COLUMN:
            made.append((name, each))
    return made
