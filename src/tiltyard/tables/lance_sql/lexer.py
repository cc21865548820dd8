"""Split the SQL of a request into tokens.

The lexer accepts every text: Lance checks whether it is valid SQL. The checks of this package only have to distinguish
texts, names and operators. `tiltyard.access.predicates` has a stricter lexer for SQL that is combined with the filter
of a policy: it refuses what two parsers might read differently.
"""

from __future__ import annotations

import re

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
