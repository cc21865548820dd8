"""Refuse clauses and operators of DuckDB and PostgreSQL that DataFusion reads as something else, or not at all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lance_namespace.errors import UnsupportedOperationError

_CLAUSES: Sequence[tuple[tuple[str, ...], str]] = (
    (("using", "sample"), "WHERE random() < 0.1"),
    (("tablesample",), "WHERE random() < 0.1"),
    (("order", "by", "all"), "ORDER BY 1, 2"),
    (("similar", "to"), "~ '^(?:pattern)$'"),
    (("like", "any"), "LIKE … OR … LIKE …"),
    (("ilike", "any"), "ILIKE … OR … ILIKE …"),
    (("like", "all"), "LIKE … AND … LIKE …"),
    (("ilike", "all"), "ILIKE … AND … ILIKE …"),
    (("fetch", "first"), "LIMIT"),
    (("fetch", "next"), "LIMIT"),
    (("asof", "join"), "a join with row_number() for the last row of each"),
    (("positional", "join"), "a join of row_number() of each side"),
    (("pivot", "("), "sum(…) FILTER (WHERE …)"),
    (("unpivot", "("), "a UNION ALL of its columns"),
    (("*", "rename"), "* EXCLUDE (old), old AS new"),
)
"""Tokens that follow one another, and what to write instead of them."""
_OPERATORS: Sequence[tuple[str, str]] = (
    ("**", "power(a, b)"),
    ("//", "a / b of whole numbers, or floor(a / b)"),
    ("&&", "array_has_any(a, b)"),
    ("^@", "starts_with(text, prefix)"),
    ("|/", "sqrt(x)"),
    ("@@", "fts('table', 'words', 10), or json_exists"),
    ("@?", "json_exists(…, '$.a.b')"),
    ("^", "power(a, b), or (a | b) - (a & b) for exclusive or"),
)
"""Operators of tokens without a space between them; of two that begin alike, the longer one is first."""


def check_clauses(words: Sequence[str], kinds: Sequence[str], tokens: Sequence[re.Match[str]]) -> None:
    """Raise UnsupportedOperationError for a clause that is not served, with what to write instead."""
    by_first: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for clause, instead in _CLAUSES:
        by_first.setdefault(clause[0], []).append((clause, instead))
    for at, word in enumerate(words):
        for clause, instead in by_first.get(word, ()):
            if tuple(words[at : at + len(clause)]) == clause:
                raise _refusal(" ".join(clause[:-1] if clause[-1] == "(" else clause).upper(), instead)
        match kinds[at]:
            case "operator" | "other":
                _check_operator(words, tokens, at)
            case "text" if at and kinds[at - 1] == "text":
                raise _refusal("two texts without an operator between them", "'a' || 'b', or AS before a name")
            case "word" if word == "limit" and tuple(words[at + 2 : at + 3]) == ("%",):
                raise _refusal("LIMIT of a percentage", "WHERE random() < 0.1, or LIMIT with a number of rows")
            case "word" if word == "glob" and kinds[at - 1 : at] != ["operator"] and kinds[at + 1 : at + 2] == ["text"]:
                raise _refusal("GLOB", "LIKE 'a%'")
    if words[:1] in (["pivot"], ["unpivot"]):
        raise _refusal(words[0].upper(), "sum(…) FILTER (WHERE …) for each column")


def _check_operator(words: Sequence[str], tokens: Sequence[re.Match[str]], at: int) -> None:
    joined = words[at]
    if at + 1 < len(words) and tokens[at].end() == tokens[at + 1].start():
        joined += words[at + 1]
    for operator, instead in _OPERATORS:
        if joined[: len(operator)] == operator:
            raise _refusal(operator, instead)
    if words[at] == "@" and joined != "@>" and words[at - 1 : at] != ["<"]:
        raise _refusal("@", "abs(x)")
    if words[at] == "#" and joined != "#>":
        raise _refusal("#", "(a | b) - (a & b)")


def _refusal(what: str, instead: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"{what[:1].upper()}{what[1:]} is not served: write {instead}.")
