"""Split the SQL of a request into tokens.

The lexer accepts every text: Lance checks whether it is valid SQL. The checks of this package only have to distinguish
texts, names and operators. `tiltyard.access.predicates` has a stricter lexer for SQL that is combined with the filter
of a policy: it refuses what two parsers might read differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

from lance_namespace.errors import InvalidInputError

TEXT = r"'[^']*+'(?:'[^']*+')*+"
"""A text, with its quotes, and with the doubled ones inside. A quote without a partner begins no text."""
QUOTED_NAME = r'"[^"]*"|`[^`]*`'
WORD = r"[^\W\d]\w*+"
"""A name without quotes, or a keyword. Possessive: long words take linear time."""

TOKEN = re.compile(
    rf"""(?P<text>{TEXT})|(?P<quoted>{QUOTED_NAME})|(?P<word>{WORD})|(?P<number>\d[\w.]*)
    |(?P<open>[(\[])|(?P<close>[)\]])|(?P<comma>,)|(?P<semicolon>;)
    |(?P<operator>::|\|\||[<>!=]=|<>|[-+*/%^|&<>=!~\#@?:])
    |(?P<space>\s+)|(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
"""One token; `lastgroup` of the match is its kind."""

AMBIGUOUS = r"\\'|/\*|--"
"""Escapes and comments: parsers of SQL differ about where a text ends beside them."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement that is parsed here, and where it is in the text."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The token as a keyword, in lower case; "" if it is none."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """The token as a name, without its quotes. Raises InvalidInputError if it is none."""
        if self.kind == "word":
            return self.text
        if self.kind == "quoted":
            return self.text[1:-1]
        raise InvalidInputError(f"'{self.text[:100]}' in the view's query is not a name.")


def tokenize(text: str, most: int | None = None) -> list[Token]:
    """Return the tokens of a text, without spaces; the first `most` of them, if that is given."""
    tokens = (
        Token(str(match.lastgroup), match[0], match.start(), match.end())
        for match in TOKEN.finditer(text)
        if match.lastgroup != "space"
    )
    return list(islice(tokens, most))
