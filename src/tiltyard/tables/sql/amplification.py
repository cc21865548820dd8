"""How much larger than what it reads an expression can make a row.

Lance computes an expression for thousands of rows at once, and a constant one while it plans. Nothing bounds its memory
then, and the process aborts where there is no more: `array_repeat(1, 1000000000)` is 8 GB for each row. So functions
that make much of little have to say by plain numbers how much that is, and what they say is multiplied and added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from lance_namespace.errors import InvalidInputError

MOST = 4096
"""How many times larger all expressions of a request together may make a row: a vector of so many numbers is one."""
LONGEST_TEXT = 10_000
"""Characters of a text in a column of an answer: each of thousands of rows gets a copy."""
WIDEST = 16_384
"""Entries of a type of fixed size that something is cast to: a null of it takes the room of all of them."""

_SHORT = 10
"""A text of so many characters, or a list of so many entries, counts as a column's value does."""
_UNKNOWN = 100.0
"""How long what is put in somewhere is taken to be where it is no text, but a column or a list."""

_LONGEST = 100_000
"""Characters of SQL that is looked at word by word."""

_COUNTED = frozenset({"repeat", "lpad", "rpad", "array_repeat", "list_repeat", "array_resize", "list_resize"})
"""Their second argument is how many."""
_SERIES = frozenset({"range", "generate_series", "gen_series"})
"""Their arguments are from where to where."""
_DOUBLING = frozenset({"encode"})
_PUTTING: Mapping[str, int] = {
    **dict.fromkeys(("array_to_string", "array_join", "list_to_string", "list_join"), 1),
    **dict.fromkeys(("replace", "regexp_replace", "array_replace", "array_replace_n", "array_replace_all"), 2),
    **dict.fromkeys(("list_replace", "list_replace_n", "list_replace_all"), 2),
    "concat_ws": 0,
}
"""They put this argument in many places."""
_LENGTHS = frozenset({"length", "char_length", "character_length"})
_NAMES = _COUNTED | _SERIES | _DOUBLING | _PUTTING.keys()

_GROWING = re.compile(rf"\b(?:{'|'.join(sorted(_NAMES))})\b", re.IGNORECASE)
_HINTS = ("rep", "pad", "resize", "range", "series", "join", "to_string", "concat_ws", "encode")
"""A part of each of these names: to look for parts takes a tenth of the time."""
_ENTRIES = re.compile(r"fixedsize\w{0,20}\s{0,20}\(\s{0,20}(\d{1,20})")  # bounds: a long text must not take long
_UNSURE = re.compile(r"\\'|/\*|--")
"""Where readers of SQL differ about the end of a text, or of a comment."""
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')|(?P<name>"[^"]*"|`[^`]*`|[^\W\d]\w*)|(?P<number>\d[\w.]*)
    |(?P<open>[(\[])|(?P<close>[)\]])|(?P<comma>,)|(?P<sign>[-+])|(?P<space>\s+)|(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_LONG_TEXT = re.compile(rf"'[^']{{{LONGEST_TEXT},}}")


@dataclass(slots=True)
class _Argument:
    """What stands between two commas.

    `growth` is how many times larger it may be than what it reads, `size` how many short texts long it is itself.
    `number` is the sum of its numbers and `lengths` how many lengths are added, if there is nothing else (`plain`, and
    all that is `named` so is one).
    `text` is its number of characters, if it is a text.
    """

    growth: float = 1.0
    size: float = 1.0
    number: float = 0.0
    lengths: int = 0
    named: int = 0
    plain: bool = True
    text: int | None = None


@dataclass(slots=True)
class _Call:
    """What stands in brackets; `name` is that of the function, "" where they are none's."""

    name: str
    arguments: list[_Argument] = field(default_factory=lambda: [_Argument()])

    def factor(self, what: str) -> float:
        """How many times the function itself multiplies what it is given. Raises InvalidInputError."""
        if self.name in _COUNTED:
            text = self.arguments[0].text
            return self._count(self.arguments[1:2], what, 0 if text is None else max(1, text))
        if self.name in _SERIES:
            return self._count(self.arguments, what, 0)
        if self.name in _DOUBLING:
            return 2.0
        if self.name in _PUTTING:
            put = self.arguments[_PUTTING[self.name] :][:1]
            return _UNKNOWN if not put or put[0].text is None else max(1.0, put[0].text)
        return 1.0

    def _count(self, arguments: Iterable[_Argument], what: str, each: int) -> float:
        """The sum of the numbers; `each` is what one more of a length adds, 0 where there may be none."""
        total = 0.0
        for argument in arguments:
            known = argument.plain and argument.named == argument.lengths
            if not known or (argument.lengths and not each):
                raise InvalidInputError(
                    f"The {what} does not say by a plain number how much {self.name}(…) makes: write, say, 20."
                )
            total += argument.number + argument.lengths * each
        return max(1.0, total)


def check_growth(texts: Mapping[str, str], *, shown: bool = False) -> None:
    """Check all expressions of a request, by what each of them is; `shown` for the columns of an answer.

    Raises InvalidInputError for those that make rows too large, or that do not tell how large.
    """
    total = 0.0
    for what, text in texts.items():
        if shown and len(text) > LONGEST_TEXT and _LONG_TEXT.search(text):
            raise InvalidInputError(f"The {what} has a text of more than {LONGEST_TEXT} characters, for every row.")
        growth = growth_of(text, what)
        total += growth if growth > 1 else 0
    if total > MOST:
        what = next(iter(texts)) if len(texts) == 1 else "expressions of this request"
        raise InvalidInputError(
            f"The {what} would make rows {total:.0f} times as large as what is read for them: {MOST} times at most."
        )


def growth_of(text: str, what: str) -> float:
    """How many times larger than what it reads an expression may make a row. Raises InvalidInputError."""
    small = text.lower()
    for part in small.split("'") if "fixedsize" in small else ():
        if (wide := prod(map(int, _ENTRIES.findall(part)))) > WIDEST:
            raise InvalidInputError(f"The {what} has a type of {wide} entries: {WIDEST} at most.")
    if "(" not in text or not any(hint in small for hint in _HINTS) or not _GROWING.search(text):
        return 1.0
    if _UNSURE.search(text):
        raise InvalidInputError(f"The {what} has a comment or \\' beside a function that repeats: leave it out.")
    if len(text) > _LONGEST:
        raise InvalidInputError(f"The {what} has {len(text)} characters, beside a function that repeats: shorten it.")
    calls = [_Call("")]
    name = ""
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind != "space":
            _take(calls, str(kind), token[0], name, what)
            name = token[0].strip('"`').lower() if kind == "name" else ""
    while len(calls) > 1:
        _end(calls, what)
    return max(argument.growth for argument in calls[0].arguments)


def _take(calls: list[_Call], kind: str, piece: str, before: str, what: str) -> None:
    """One token more; `before` is the name right before it, if there is one."""
    argument = calls[-1].arguments[-1]
    match kind:
        case "open":
            calls.append(_Call(before))
        case "close" if len(calls) > 1:
            _end(calls, what)
        case "comma":
            calls[-1].arguments.append(_Argument())
        case "number":
            argument.number += _number(piece)
        case "text":
            argument.text = len(piece) - 2 if argument.plain and argument.text is None else None
            argument.size = max(argument.size, (len(piece) - 2) / _SHORT)
            argument.plain = False
        case "name" if piece.lower() in _LENGTHS:
            argument.named += 1  # a length once its brackets come, else a column of that name
        case "sign":
            pass
        case _:
            argument.plain, argument.text = False, None


def _end(calls: list[_Call], what: str) -> None:
    """A bracket closes: what is in it belongs to the argument around it."""
    ended = calls.pop()
    around = calls[-1].arguments[-1]
    factor = ended.factor(what)
    growth = max(argument.growth for argument in ended.arguments)
    size = max(len(ended.arguments) / _SHORT, *(argument.size for argument in ended.arguments))
    if factor > 1:
        growth, size = growth * factor * size, 1.0
    around.growth, around.size = max(around.growth, growth), max(around.size, size)
    around.text = None
    if ended.name in _LENGTHS:
        around.lengths += 1
    else:
        around.plain = False


def _number(text: str) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return float("inf")
