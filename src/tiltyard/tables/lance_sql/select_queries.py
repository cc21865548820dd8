"""Parse the queries of views that the server computes itself: a projection and a filter of one table.

    SELECT `a`, c + 1 AS "b" FROM "src" WHERE x > 1 LIMIT 3
    SELECT a FROM table_branch('src', 'dev')
    SELECT * FROM vector_dedup('src', 7, 'vector', 0.1)

Its expressions and its filter are Lance's SQL, and are not changed: they are cut out of the text. Names of tables and
aliases may be in double quotes or in backticks; in an expression, Lance takes double quotes for those of a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.ids import Id, parse_id, table_id
from tiltyard.model.views.definitions import check_query_text
from tiltyard.tables.lance_sql.expressions import check_expression, find_volatile_call
from tiltyard.tables.lance_sql.lexer import AMBIGUOUS, Token, tokenize

MAX_COLUMNS = 10_000
MAX_LIMIT = 2**63 - 1

_AMBIGUOUS = re.compile(AMBIGUOUS)
_FORM = "SELECT <columns> FROM <table> [WHERE <filter>] [LIMIT <rows>]"
_OTHER_CLAUSES = frozenset(
    {"group", "order", "having", "join", "union", "intersect", "except", "offset", "window", "qualify", "lateral", "as"}
)
_NUMBER = re.compile(r"-?\d{1,40}(\.\d{1,40})?(e[-+]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_VERSION = re.compile(r"\d{1,19}", re.ASCII)
_INNER_QUERIES = frozenset({"select", "with", "exists"})


@dataclass(frozen=True, slots=True)
class VectorDedup:
    """What `vector_dedup` leaves out: near-duplicates of a version, by the distance of a column's vectors."""

    version: int
    column: str
    threshold: float


@dataclass(frozen=True, slots=True)
class SelectQuery:
    """A parsed query. `columns` has Lance's expression of each column by its name, None for all columns.

    `source` is the table that it reads, at `branch`, or at the version of `dedup`, without what that leaves out.
    """

    source: Id
    columns: Mapping[str, str] | None
    filter: str | None
    limit: int | None
    branch: Branch = MAIN
    dedup: VectorDedup | None = None


def parse_select(text: str) -> SelectQuery:
    """Parse a query; a table without a namespace is in the root.

    Raises InvalidInputError, UnsupportedOperationError for a query that is valid SQL, and more than such a projection.
    """
    check_query_text(text)
    if _AMBIGUOUS.search(text):
        raise InvalidInputError("The view's query has a comment or \\', which parsers of SQL read differently.")
    tokens = tokenize(text)
    if not tokens or tokens[0].word != "select":
        raise InvalidInputError(f"A view's query is {_FORM}.")
    depths = _depths(tokens)
    for token in tokens[1:]:
        if token.word in _INNER_QUERIES or token.kind == "semicolon":
            raise _unsupported(token)
    _check_repeatable(tokens)
    from_ = _find(tokens, depths, "from", 1)
    if from_ is None:
        raise InvalidInputError(f"The view's query has no FROM: it is {_FORM}.")
    if from_ + 1 < len(tokens) and tokens[from_ + 1].word == "vector_dedup":
        return _dedup_query(text, tokens)
    source, branch, after = _source(tokens, from_ + 1)
    limit_at = _find(tokens, depths, "limit", after)
    where = after if after < len(tokens) and tokens[after].word == "where" else None
    condition_end = len(tokens) if limit_at is None else limit_at
    if where is None and after != condition_end:
        raise _unsupported(tokens[after])
    for index in range(after, condition_end):
        if depths[index] == 0 and tokens[index].word in _OTHER_CLAUSES:
            raise _unsupported(tokens[index])
    condition = None if where is None else _slice(text, tokens, where + 1, condition_end, "filter")
    columns = _columns(text, tokens, depths, from_)
    return SelectQuery(source, columns, condition, _limit(tokens, limit_at), branch)


def _check_repeatable(tokens: Sequence[Token]) -> None:
    """Raise InvalidInputError for a call whose result is another one at each refresh."""
    if volatile := find_volatile_call(tokens):
        raise InvalidInputError(f"A view's query has the same result each time: leave {volatile} out.")


def _depths(tokens: Sequence[Token]) -> list[int]:
    """Return how many brackets are open before each token. Raises InvalidInputError unless they pair up."""
    depths, depth = [], 0
    for token in tokens:
        depth -= token.kind == "close"
        if depth < 0:
            break
        depths.append(depth)
        depth += token.kind == "open"
    if depth:
        raise InvalidInputError("The brackets of the view's query do not pair up.")
    return depths


def _find(tokens: Sequence[Token], depths: Sequence[int], word: str, start: int) -> int | None:
    """Return where a keyword is, outside of brackets; None without it."""
    return next((at for at in range(start, len(tokens)) if depths[at] == 0 and tokens[at].word == word), None)


def _source(tokens: Sequence[Token], at: int) -> tuple[Id, Branch, int]:
    """Return the table and the branch that are named from a token on, and where their name ends.

    A single name is a table's id as in the routes (`hr$people`); several are its namespaces and its name. A branch is
    `table_branch('hr$people', 'dev')`, as in SQL.
    """
    if at >= len(tokens):
        raise InvalidInputError(f"The view's query names no table: it is {_FORM}.")
    if tokens[at].word == "table_branch" and at + 1 < len(tokens) and tokens[at + 1].kind == "open":
        return _branch_source(tokens, at)
    names = [tokens[at].name]
    at += 1
    while at + 1 < len(tokens) and tokens[at].text == ".":
        names.append(tokens[at + 1].name)
        at += 2
    if at < len(tokens) and tokens[at].kind == "open":
        raise UnsupportedOperationError(
            f"The table function {names[0]} is not supported in a view's query: name a table."
        )
    if len(names) > 1:  # lancedb 0.41 joins the namespaces: "eu$sales"."films"
        return table_id([part for name in names for part in parse_id(name)]), MAIN, at
    return table_id(parse_id(names[0])), MAIN, at


def _branch_source(tokens: Sequence[Token], at: int) -> tuple[Id, Branch, int]:
    """Return the table and the branch of a call of `table_branch`, and where it ends."""
    call = tokens[at : at + 6]
    if [token.kind for token in call] != ["word", "open", "text", "comma", "text", "close"]:
        raise InvalidInputError("A view reads a branch as table_branch('table', 'branch'), at its latest version.")
    name, branch = (token.text[1:-1].replace("''", "'") for token in (call[2], call[4]))
    return table_id(parse_id(name)), Branch.parse(branch).check(), at + len(call)


def _dedup_query(text: str, tokens: Sequence[Token]) -> SelectQuery:
    """Return a query of all columns of `vector_dedup(table, version, column, distance)`. Raises InvalidInputError."""
    kinds = [token.kind for token in tokens[4:11]]
    threshold = text[tokens[10].end : tokens[-1].start].strip() if len(tokens) > 11 else ""
    if (
        tokens[1].text != "*"
        or kinds != ["open", "text", "comma", "number", "comma", "text", "comma"]
        or tokens[-1].kind != "close"
        or not (_NUMBER.fullmatch(threshold) and isfinite(float(threshold)))
        or not (_VERSION.fullmatch(tokens[7].text) and 0 < int(tokens[7].text) <= MAX_LIMIT)
    ):
        raise InvalidInputError(
            "A view without near-duplicates is SELECT * FROM vector_dedup('table', version, 'column', distance)."
        )
    name, column = (token.text[1:-1].replace("''", "'") for token in (tokens[5], tokens[9]))
    dedup = VectorDedup(int(tokens[7].text), column, float(threshold))
    return SelectQuery(table_id(parse_id(name)), None, None, None, MAIN, dedup)


def _columns(text: str, tokens: Sequence[Token], depths: Sequence[int], end: int) -> Mapping[str, str] | None:
    """Return the expressions of the columns by name; None for `*`. Raises InvalidInputError."""
    if end == 2 and tokens[1].text == "*":  # SELECT and *
        return None
    if tokens[1].word in ("distinct", "all", "top"):
        raise _unsupported(tokens[1])
    columns: dict[str, str] = {}
    start = 1
    for at in range(1, end + 1):
        if at < end and not (depths[at] == 0 and tokens[at].kind == "comma"):
            continue
        name, expression = _column(text, tokens, start, at)
        if name in columns:
            raise InvalidInputError(f"Two columns of the view are called '{name}'.")
        columns[name] = expression
        start = at + 1
    if len(columns) > MAX_COLUMNS:
        raise InvalidInputError(f"A view has at most {MAX_COLUMNS} columns.")
    return columns


def _column(text: str, tokens: Sequence[Token], start: int, end: int) -> tuple[str, str]:
    """Return the name and the expression of one column."""
    if end - start >= 3 and tokens[end - 2].word == "as":  # an expression, AS, a name
        return tokens[end - 1].name, _slice(text, tokens, start, end - 2, "column")
    expression = _slice(text, tokens, start, end, "column")
    last = tokens[end - 1]
    is_path = (end - start) % 2 == 1 and all(
        token.kind in ("word", "quoted") if at % 2 == 0 else token.text == "."
        for at, token in enumerate(tokens[start:end])
    )
    if not is_path:
        raise InvalidInputError(
            f"Name the column '{expression[:100]}' of the view: write `{expression[:100]} AS name`."
        )
    if last.kind == "quoted" and last.text[0] == '"':
        return last.name, _quoted(tokens[start:end])
    return last.name, expression


def _quoted(tokens: Sequence[Token]) -> str:
    """Return a path of names as Lance reads it: those in double quotes, which are texts to Lance, in backticks."""
    return "".join(f"`{token.name}`" if token.kind == "quoted" else token.text for token in tokens)


def _slice(text: str, tokens: Sequence[Token], start: int, end: int, label: str) -> str:
    """Return the text from one token to before another, checked. Raises InvalidInputError."""
    if start >= end:
        raise InvalidInputError(f"A {label} of the view's query is empty: it is {_FORM}.")
    return check_expression(text[tokens[start].start : tokens[end - 1].end], f"view's {label}")


def _limit(tokens: Sequence[Token], at: int | None) -> int | None:
    if at is None:
        return None
    if at + 2 != len(tokens) or not tokens[at + 1].text.isdecimal():
        raise InvalidInputError("The LIMIT of a view's query is a number, and the last of it.")
    text = tokens[at + 1].text
    if len(text) > 19 or int(text) > MAX_LIMIT:
        raise InvalidInputError(f"The LIMIT of a view's query exceeds the maximum, {MAX_LIMIT}.")
    return int(text)


def _unsupported(token: Token) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"A view's query is {_FORM}: this one has '{token.text[:100]}'.")
