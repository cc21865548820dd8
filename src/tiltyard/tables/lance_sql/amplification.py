"""Estimate by how much an expression can enlarge a row, from its text, and refuse expressions that enlarge it too much.

Lance computes an expression for thousands of rows at once, and a constant one while it plans. Nothing bounds its memory
then, and the process aborts where there is none left: `array_repeat(1, 1000000000)` is 8 GB for each row. So the size
of what a function such as `repeat` produces has to be given by plain numbers; nested calls multiply, others add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from lance_namespace.errors import InvalidInputError

from tiltyard.tables.lance_sql.lexer import AMBIGUOUS, TOKEN

MAX_GROWTH = 4096
"""Factor by which all expressions of a request together may enlarge a row: enough for a vector of so many numbers."""
MAX_TEXT_LENGTH = 10_000
"""Characters of a text in a column of a response: each of thousands of rows gets a copy."""
MAX_TYPE_ENTRIES = 16_384
"""Entries of a fixed-size type in a cast: a null of that type takes the memory of all of them."""

_SHORT = 10
"""A text of so many characters, or a list of so many entries, counts as one value of a column."""
_UNKNOWN_LENGTH = 100.0
"""Assumed length of an inserted value that is no text, but a column or a list."""

_MAX_LENGTH = 100_000
"""Characters of an expression that is split into tokens; a longer one with such a function is refused."""

_REPEATING = frozenset({"repeat", "lpad", "rpad", "array_repeat", "list_repeat", "array_resize", "list_resize"})
"""Functions whose second argument is the number of repetitions, or the new length."""
_SERIES = frozenset({"range", "generate_series", "gen_series"})
"""Functions whose arguments are the bounds of a series."""
_DOUBLING = frozenset({"encode"})
_INSERTING: Mapping[str, int] = {
    **dict.fromkeys(("array_to_string", "array_join", "list_to_string", "list_join"), 1),
    **dict.fromkeys(("replace", "regexp_replace", "array_replace", "array_replace_n", "array_replace_all"), 2),
    **dict.fromkeys(("list_replace", "list_replace_n", "list_replace_all"), 2),
    "concat_ws": 0,
}
"""Functions that insert an argument in many places, and the position of that argument."""
_LENGTHS = frozenset({"length", "char_length", "character_length"})
_GROWING_FUNCTIONS = _REPEATING | _SERIES | _DOUBLING | _INSERTING.keys()

_GROWING = re.compile(rf"\b(?:{'|'.join(sorted(_GROWING_FUNCTIONS))})\b", re.IGNORECASE)
_HINTS = ("rep", "pad", "resize", "range", "series", "join", "to_string", "concat_ws", "encode")
"""A part of each of these names: a search for parts takes a tenth of the time."""
_ENTRIES = re.compile(r"fixedsize\w{0,20}\s{0,20}\(\s{0,20}(\d{1,20})")  # bounded, so that long texts take linear time
_AMBIGUOUS = re.compile(AMBIGUOUS)
_LONG_TEXT = re.compile(rf"'[^']{{{MAX_TEXT_LENGTH},}}")


@dataclass(slots=True)
class _Argument:
    """An argument of a call: what is between two commas.

    `growth` is how many times larger it may be than the columns it reads, `size` its length in short texts (`_SHORT`).
    `is_plain` says that it has only numbers, signs and lengths (`length(…)`): `number` is the sum of the numbers,
    `lengths` counts the calls, and `length_names` the names of these functions, of which each has to be a call.
    `text` is its number of characters, if it is a text.
    """

    growth: float = 1.0
    size: float = 1.0
    number: float = 0.0
    lengths: int = 0
    length_names: int = 0
    is_plain: bool = True
    text: int | None = None


@dataclass(slots=True)
class _Call:
    """A pair of brackets and its arguments; `name` is the function's, "" for brackets without a function."""

    name: str
    arguments: list[_Argument] = field(default_factory=lambda: [_Argument()])

    def factor(self, label: str) -> float:
        """Return by how much the function itself multiplies its arguments. Raises InvalidInputError."""
        if self.name in _REPEATING:
            text = self.arguments[0].text
            return self._count(self.arguments[1:2], label, 0 if text is None else max(1, text))
        if self.name in _SERIES:
            return self._count(self.arguments, label, 0)
        if self.name in _DOUBLING:
            return 2.0
        if self.name in _INSERTING:
            inserted = self.arguments[_INSERTING[self.name] :][:1]
            return _UNKNOWN_LENGTH if not inserted or inserted[0].text is None else max(1.0, inserted[0].text)
        return 1.0

    def _count(self, arguments: Iterable[_Argument], label: str, per_length: int) -> float:
        """Return the sum of plain arguments; `per_length` is what a length counts, 0 where lengths are refused.

        Raises InvalidInputError for an argument that is not plain.
        """
        total = 0.0
        for argument in arguments:
            is_plain = argument.is_plain and argument.length_names == argument.lengths
            if not is_plain or (argument.lengths and not per_length):
                raise InvalidInputError(
                    f"The {label} does not say by a plain number how much {self.name}(…) makes: write, say, 20."
                )
            total += argument.number + argument.lengths * per_length
        return max(1.0, total)


def check_growth(texts: Mapping[str, str], *, is_output: bool = False) -> None:
    """Check all expressions of a request, by their labels for error messages; `is_output` for columns of the response.

    Raises InvalidInputError for expressions that make rows too large, or whose size cannot be estimated.
    """
    total = 0.0
    for label, text in texts.items():
        if is_output and len(text) > MAX_TEXT_LENGTH and _LONG_TEXT.search(text):
            raise InvalidInputError(f"The {label} has a text of more than {MAX_TEXT_LENGTH} characters, for every row.")
        growth = estimate_growth(text, label)
        total += growth if growth > 1 else 0
    if total > MAX_GROWTH:
        label = next(iter(texts)) if len(texts) == 1 else "expressions of this request"
        raise InvalidInputError(
            f"The {label} would make rows {total:.0f} times as large as what is read for them:"
            f" {MAX_GROWTH} times at most."
        )


def estimate_growth(text: str, label: str) -> float:
    """Return how many times larger than the columns it reads an expression may make a row, at least 1.

    Raises InvalidInputError if that cannot be estimated.
    """
    if not _has_growing_calls(text, label):
        return 1.0
    calls = [_Call("")]
    _close_calls(calls, text, label)
    return max(argument.growth for argument in calls[0].arguments)


def multiply_growth(text: str, label: str) -> float:
    """Return how many times larger a statement may make a value that passes through all of its calls, at least 1.

    What one SELECT makes another may read, so calls multiply wherever they are. Raises as `estimate_growth` does.
    """
    return _close_calls([_Call("")], text, label) if _has_growing_calls(text, label) else 1.0


def _has_growing_calls(text: str, label: str) -> bool:
    """Return whether a text may call a function that enlarges a row. Raises InvalidInputError if it cannot be split."""
    lowered = text.lower()
    for part in lowered.split("'") if "fixedsize" in lowered else ():
        if (entries := prod(map(int, _ENTRIES.findall(part)))) > MAX_TYPE_ENTRIES:
            raise InvalidInputError(f"The {label} has a type of {entries} entries: {MAX_TYPE_ENTRIES} at most.")
    if "(" not in text or not any(hint in lowered for hint in _HINTS) or not _GROWING.search(text):
        return False
    if _AMBIGUOUS.search(text):
        raise InvalidInputError(f"The {label} has a comment or \\' beside a function that repeats: leave it out.")
    if len(text) > _MAX_LENGTH:
        raise InvalidInputError(f"The {label} has {len(text)} characters, beside a function that repeats: shorten it.")
    return True


def _close_calls(calls: list[_Call], text: str, label: str) -> float:
    """Read all calls of a text into the first of `calls`; return the product of their factors."""
    name, product = "", 1.0
    for token in TOKEN.finditer(text):
        kind = token.lastgroup
        if kind != "space":
            product *= _add_token(calls, str(kind), token[0], name, label)
            name = token[0].strip('"`').lower() if kind in ("word", "quoted") else ""
    while len(calls) > 1:
        product *= _close_call(calls, label)
    return product


def _add_token(calls: list[_Call], kind: str, text: str, name: str, label: str) -> float:
    """Add a token to the innermost call; `name` is the name right before it, "" if there is none.

    Return the factor of the call that it closes, else 1.
    """
    argument = calls[-1].arguments[-1]
    match kind:
        case "open":
            calls.append(_Call(name))
        case "close" if len(calls) > 1:
            return _close_call(calls, label)
        case "comma":
            calls[-1].arguments.append(_Argument())
        case "number":
            argument.number += _number(text)
        case "text":
            argument.text = len(text) - 2 if argument.is_plain and argument.text is None else None
            argument.size = max(argument.size, (len(text) - 2) / _SHORT)
            argument.is_plain = False
        case "word" if text.lower() in _LENGTHS:
            argument.length_names += 1  # a call if brackets follow, else a column of that name
        case "operator" if text in ("+", "-"):
            pass
        case _:
            argument.is_plain, argument.text = False, None
    return 1.0


def _close_call(calls: list[_Call], label: str) -> float:
    """Close the innermost call: its growth counts for the argument around it. Return what it multiplies by.

    Raises InvalidInputError.
    """
    call = calls.pop()
    outer = calls[-1].arguments[-1]
    factor = call.factor(label)
    growth = max(argument.growth for argument in call.arguments)
    size = max(len(call.arguments) / _SHORT, *(argument.size for argument in call.arguments))
    multiplier = factor * size if factor > 1 else 1.0
    if factor > 1:
        growth, size = growth * multiplier, 1.0
    outer.growth, outer.size = max(outer.growth, growth), max(outer.size, size)
    outer.text = None
    if call.name in _LENGTHS:
        outer.lengths += 1
    else:
        outer.is_plain = False
    return multiplier


def _number(text: str) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return float("inf")
