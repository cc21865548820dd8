"""Check the text of a statement before it is planned, which cannot be interrupted: its length, depth and size.

What a statement may do is judged by its plan (`tiltyard.sql.planning`), not by its text. The text is checked because to
plan it may already take too much: chains of operators overflow the stack (5,000 of AND end the process), a common table
expression that is used twice doubles the plan, and constant calls such as `repeat('x', 1000000000)` are computed while
it is planned.

The values of its parameters are an Arrow stream of one row: so clients bind them, and processes get them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from types import MappingProxyType

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.runtime.client_arrow.reading import read_table, to_ipc
from tiltyard.sql.dialects.translation import translate
from tiltyard.tables.lance_sql.amplification import MAX_GROWTH, multiply_growth
from tiltyard.tables.lance_sql.expressions import MAX_VALUES, check_depth
from tiltyard.tables.lance_sql.lexer import TOKEN

MAX_PARAMETERS = 1_000
MAX_PARAMETER_BYTES = 1 << 20
"""Bytes of a query's parameters, encoded and in memory; and how many values they have, with those inside others."""


def write_parameters(values: Sequence[pa.Scalar]) -> bytes:
    """Return the stream of some values; empty without any."""
    if not values:
        return b""
    columns = [pa.array([value.as_py()], value.type) for value in values]
    batch = pa.record_batch(columns, [str(number) for number in range(1, len(columns) + 1)])
    encoded: bytes = to_ipc(batch).to_pybytes()
    return encoded


def read_parameters(stream: bytes) -> list[pa.Scalar]:
    """Return the values of a stream, which a client has sent. Raises InvalidInputError."""
    return [] if not stream else [_decoded(column[0]) for column in _read_row(stream).columns]


def _read_row(stream: bytes) -> pa.Table:
    """Return the one row of a stream of parameters. Raises InvalidInputError."""
    try:
        table = read_table(stream, allowed_bytes=MAX_PARAMETER_BYTES, max_ratio=0)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInputError(f"The parameters are no Arrow stream of {MAX_PARAMETER_BYTES >> 20} MiB.") from error
    if table.num_rows != 1 or table.num_columns > MAX_PARAMETERS:
        raise InvalidInputError(f"Bind one row of {MAX_PARAMETERS} values at most: a statement runs once.")
    if sum(_count_values(column.chunk(0)) for column in table.columns) > MAX_PARAMETER_BYTES:
        raise InvalidInputError(f"The parameters have more than {MAX_PARAMETER_BYTES} values.")
    return table


def _count_values(array: pa.Array) -> int:
    """Return how many values an array has with those inside it: nulls in a list take no bytes, however many."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _count_values(array.storage)
    if pa.types.is_map(kind):
        inside = [array.keys, array.items]
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        inside = [array.field(at) for at in range(kind.num_fields)]
    elif pa.types.is_dictionary(kind):
        inside = [array.dictionary]
    else:
        inside = [array.values] if kind.num_fields else []
    return len(array) + sum(map(_count_values, inside))


def _decoded(value: pa.Scalar) -> pa.Scalar:
    """Return a value without the union that some clients wrap their parameters in."""
    return value.value if pa.types.is_union(value.type) else value


MAX_CONNECTIVES = 500
"""AND and OR of one statement: Lance gets a filter as one chain of them."""
MAX_PLAN_SIZE = 500
"""SELECT, JOIN, UNION and the like of one statement, those of a WITH and of a view counted at each of its uses."""
MAX_PLACEHOLDERS = 1_000

_LABEL = "query"
_PARTS = re.compile(
    r"""(?P<text>'[^']*+'(?:'[^']*+')*+)|(?P<name>"[^"]*"|`[^`]*`)|(?P<line>--[^\n]*)|(?P<block>/\*)
    |(?P<has_key>\?\?|\?(?=\s*+(?:'|\$\d))|\?[|&](?=\s*+(?:'|\$\d|array\b)))|(?P<question>\?)
    |(?P<number>\$\d++(?!\w))|(?P<named>(?<![\w$])\$[^\W\d]\w*+(?!\$))|(?P<dollar>\$)""",
    re.VERBOSE | re.IGNORECASE,
)
"""Parts of a text. A ? before a text or a parameter is an operator of PostgreSQL; so is JDBC's ??."""
_NOT_NEWLINE = re.compile(r"[^\n]")
_QUANTIFIERS = frozenset({"any", "some", "all"})
_QUANTIFIED = re.compile(rf"\b(?:{'|'.join(sorted(_QUANTIFIERS))})\s*\(", re.IGNORECASE)
_MEMBERSHIPS = {("=", "any"): "IN", ("<>", "all"): "NOT IN", ("!=", "all"): "NOT IN"}
_NEGATED_OTHERS = frozenset({"exists", "null", "like", "ilike", "between", "similar"})
_QUERY_WORDS = frozenset({"select", "with", "values", "table"})
_CASE_WORDS = frozenset({"case", "when", "then", "else", "end"})
_BEFORE_CONDITIONS = frozenset({"where", "and", "or", "not", "on", "having", "case", "when", "from", "join"})
"""Words before a bracket around a condition; any other is the name of a function."""
NEGATED_MEMBERSHIP = (
    "NOT IN (SELECT …), and IN (SELECT …) below NOT, compared with true, false or null, or as a value of a function or"
    " of CASE, is a condition of its own here, joined to others of WHERE by AND: write NOT EXISTS (SELECT …)."
)
_LOCKS = frozenset({("for", "update"), ("for", "share")})
_SIZES = frozenset({"select", "join", "union", "intersect", "except", "over", "values", "from", "lateral", "unnest"})
_CONNECTIVES = frozenset({"and", "or"})
_CONCATENATING = frozenset(
    {"concat", "array_concat", "array_cat", "list_concat", "list_cat", "make_array", "make_list"}
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement without comments, its placeholders numbered (`$1`, `$2`, …); `placeholders` is how many it has.

    `numbers` are those of its placeholders.

    `source` is its text before words of other dialects were translated. `names` has its keywords and names in lower
    case, without quotes, `connectives` is how many AND and OR it has, and `growth` by how much it may enlarge a value.
    `has_negated_membership` says that an IN (SELECT …) may be below a NOT.
    """

    text: str
    placeholders: int
    names: frozenset[str] = frozenset()
    connectives: int = 0
    growth: float = 1.0
    has_negated_membership: bool = False
    numbers: frozenset[int] = frozenset()
    source: str = ""


def parse_statement(text: str, max_length: int) -> Statement:
    """Check the text of a statement of up to `max_length` characters.

    Raises InvalidInputError, UnsupportedOperationError.
    """
    _check_length(text, max_length)
    if "\0" in text:
        raise InvalidInputError("The query has the character U+0000: leave it out.")
    if text.count(",") > MAX_VALUES:
        raise InvalidInputError(f"The query has more than {MAX_VALUES} commas: join a table of the values instead.")
    statement = _normalize(text, keeps_places=True)
    if not statement.text.strip(" \t\r\n;"):
        raise InvalidInputError("The query is empty.")
    tokens = _tokens(statement.text)
    if any(token.lastgroup == "semicolon" and after[0] != ";" for token, after in pairwise(tokens)):
        raise InvalidInputError("These are several statements: send one at a time, without those behind the semicolon.")
    check_depth(statement.text, _LABEL)
    _check_escapes(tokens)
    _check_names(statement.text, tokens)
    source = _replace_quantifiers(statement.text)
    statement = replace(statement, text=translate(source), source=source)
    check_depth(statement.text, _LABEL)
    tokens = _tokens(statement.text)
    words = _words(tokens)
    _check_locks(words)
    statement = replace(
        statement,
        names=frozenset(filter(None, _names(tokens))),
        connectives=sum(word in _CONNECTIVES for word in words),
        growth=multiply_growth(statement.text, _LABEL) * _concatenations(tokens, words),
        has_negated_membership=_has_negated_membership(tokens, words),
    )
    check_size(statement, (), {})
    return statement


def _check_length(text: str, max_length: int) -> None:
    """Raise InvalidInputError for a statement of more than `max_length` characters."""
    if len(text) > max_length:
        raise InvalidInputError(f"The query has {len(text)} characters: {max_length} at most (sql_max_length).")


def check_size(statement: Statement, views: Collection[Statement], sizes: Mapping[str, int]) -> int:
    """Return the size of the plan of a statement in which views are expanded: how many SELECTs and the like it has.

    `views` are the statements of all views that it reads, also through others; `sizes` has the sizes of their plans, by
    their names in lower case. Raises InvalidInputError for a statement that is too large to plan, or that makes too
    much of each row.
    """
    connectives = statement.connectives + sum(view.connectives for view in views)
    if connectives > MAX_CONNECTIVES:
        raise InvalidInputError(
            f"The query has {connectives} of AND and OR: {MAX_CONNECTIVES} at most. To pick from a list of values,"
            " write `column IN (1, 2, …)`, or join a table of them."
        )
    tokens = _tokens(statement.text)
    size = _plan_size(tokens, _words(tokens), sizes)
    if size > MAX_PLAN_SIZE:
        raise InvalidInputError(
            "The query has too many SELECTs and JOINs, with those of each use of a WITH or a view:"
            f" {MAX_PLAN_SIZE} at most."
        )
    growth = statement.growth * prod(view.growth for view in views)
    if growth > MAX_GROWTH:
        raise InvalidInputError(
            f"The query may make values {growth:.0f} times as large as those it reads: {MAX_GROWTH} times at most."
        )
    return size


def _check_escapes(tokens: Sequence[re.Match[str]]) -> None:
    """Raise InvalidInputError for a text with a \\' but that of LIKE … ESCAPE '\\', which has one meaning."""
    before = ""
    for token in tokens:
        if token.lastgroup == "text" and "\\'" in token[0] and (before, token[0]) != ("escape", "'\\'"):
            raise InvalidInputError(
                "The query has a \\', which parsers of SQL read differently: double the quote instead."
            )
        before = token[0].lower()


def _check_names(text: str, tokens: Sequence[re.Match[str]]) -> None:
    """Raise InvalidInputError for a name that goes on with @, # or $: to DataFusion that is one name, here several."""
    for token in tokens:
        if token.lastgroup == "word" and text[token.end() : token.end() + 1] in ("@", "#", "$"):
            raise InvalidInputError(f"Write the name that begins with {token[0][:60]!r} in double quotes.")


def _check_locks(words: Sequence[str]) -> None:
    """Raise UnsupportedOperationError for SELECT … FOR UPDATE or FOR SHARE, which DataFusion reads without a lock."""
    if any(pair in _LOCKS for pair in pairwise(words)):
        raise UnsupportedOperationError("A query locks no rows: leave FOR UPDATE and FOR SHARE out.")


def _tokens(text: str) -> list[re.Match[str]]:
    return [match for match in TOKEN.finditer(text) if match.lastgroup != "space"]


def _words(tokens: Sequence[re.Match[str]]) -> list[str]:
    """Return the words among some tokens in lower case, "" for each other one."""
    return [match[0].lower() if match.lastgroup == "word" else "" for match in tokens]


def bind_names(text: str, stream: bytes, max_length: int) -> str:
    """Return a query that names its parameters by numbers alone, where it names columns of their stream as `$name`.

    Raises InvalidInputError for one that is no query, has a placeholder without a value, or leaves a value unused.
    """
    _check_length(text, max_length)
    names = _read_row(stream).column_names
    named = {name: number for number, name in enumerate(names, 1) if names.count(name) == 1} if names else {}
    statement = _normalize(text, named)
    if (_words(_tokens(statement.text)) or [""])[0] not in ("select", "from", "with", "values", "explain", ""):
        raise InvalidInputError("Parameters are bound to a query (SELECT, WITH, VALUES) or an EXPLAIN of one.")
    if missing := {*statement.numbers} - {*range(1, len(names) + 1)}:
        raise InvalidInputError(f"The query has ${min(missing)}, and {len(names)} values are bound: bind one to each.")
    if unused := [name for number, name in enumerate(names, 1) if number not in statement.numbers]:
        raise InvalidInputError(f"The query does not use the parameter {unused[0][:100]!r}: leave it out, or name it.")
    return statement.text


def normalize_statement(text: str) -> str:
    """Return a statement without comments, which has no placeholders. Raises InvalidInputError."""
    statement = _normalize(text)
    if statement.placeholders:
        raise InvalidInputError("A statement on a materialized view has no parameters: write the values themselves.")
    return statement.text


def _normalize(text: str, named: Mapping[str, int] = MappingProxyType({}), *, keeps_places: bool = False) -> Statement:
    """Remove comments and number the placeholders written as `?`, and as `$name` for `named` ones.

    With `keeps_places` comments become as many spaces, so that errors are where the text has them. Raises
    InvalidInputError.
    """
    parts: list[str] = []
    numbers: set[int] = set()
    questions = position = 0
    while match := _PARTS.search(text, position):
        parts.append(text[position : match.start()])
        position = match.end()
        match match.lastgroup:
            case "line":
                parts.append(_NOT_NEWLINE.sub(" ", match[0]) if keeps_places else " ")
            case "block":
                position = _comment_end(text, position)
                parts.append(_NOT_NEWLINE.sub(" ", text[match.start() : position]) if keeps_places else " ")
            case "question":
                questions += 1
                numbers.add(questions)
                parts.append(f"${questions}")
            case "number":
                numbers.add(int(match[0][1:10]))
                parts.append(match[0])
            case "named" if match[0][1:] in named:
                numbers.add(number := named[match[0][1:]])
                parts.append(f"${number}")
            case "named" if named:
                raise InvalidInputError(f"The query has {match[0][:100]!r}, and no parameter of that name is bound.")
            case "named" | "dollar":
                raise InvalidInputError("The query has a $ without a number: write texts as 'x', parameters as $1.")
            case _:
                parts.append("?" if match[0] == "??" else match[0])
    parts.append(text[position:])
    placeholders = max(numbers, default=0)
    if placeholders > MAX_PLACEHOLDERS:
        raise InvalidInputError(f"The query has parameter ${placeholders}: {MAX_PLACEHOLDERS} at most.")
    return Statement("".join(parts), placeholders, numbers=frozenset(numbers))


def _replace_quantifiers(text: str) -> str:
    """Write `= ANY (SELECT …)` as `IN (SELECT …)`, and `<> ALL (SELECT …)` as `NOT IN (SELECT …)`.

    DataFusion fails on those, and answers some others wrongly: for them this raises UnsupportedOperationError. An ANY
    of an array is another thing.
    """
    if not _QUANTIFIED.search(text):
        return text
    tokens = _tokens(text)
    parts: list[str] = []
    position = 0
    for operator, word, bracket, first in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        quantifier = word[0].lower()
        if operator.lastgroup != "operator" or quantifier not in _QUANTIFIERS or bracket[0] != "(":
            continue
        if first[0].lower() not in (*_QUERY_WORDS, "("):
            continue
        replaced = _MEMBERSHIPS.get((operator[0], quantifier.replace("some", "any")))
        if replaced is None:
            raise UnsupportedOperationError(
                f"A comparison by {operator[0]} {quantifier.upper()} (SELECT …) is not supported: compare with the"
                " least or the greatest value, as in `> (SELECT max(x) …)`, or write EXISTS (SELECT …)."
            )
        parts += [text[position : operator.start()], f" {replaced} "]
        position = bracket.start()
    return "".join([*parts, text[position:]])


def _has_negated_membership(tokens: Sequence[re.Match[str]], words: Sequence[str]) -> bool:
    """Return whether an IN (SELECT …) may be below a NOT.

    Raises UnsupportedOperationError for one whose truth is a value, as of IS NULL, a comparison, a function or a CASE:
    DataFusion takes it for never null.
    """
    has_negation, has_memberships = False, False
    groups = [_Group(0)]
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else ""
        if word == "not" and words[at - 1] != "is" and after not in _NEGATED_OTHERS:
            has_negation = True
        elif word in _CASE_WORDS:
            groups[-1].is_case_value = word in ("case", "then", "else")
        elif tokens[at].lastgroup == "open":
            groups.append(_Group(at, is_query=after in _QUERY_WORDS, is_membership=words[at - 1] == "in"))
        elif tokens[at].lastgroup == "close" and len(groups) > 1:
            group = groups.pop()
            if not (group.is_membership if group.is_query else group.has_membership):
                continue
            has_memberships = groups[-1].has_membership = True
            if groups[-1].is_case_value or _is_value(tokens, words, group, at):
                raise UnsupportedOperationError(NEGATED_MEMBERSHIP)
    return has_negation and has_memberships


@dataclass(slots=True)
class _Group:
    """What is in one bracket, which opens at a token: whether it is a query, one behind IN, and has such ones in it."""

    start: int
    is_query: bool = False
    is_membership: bool = False
    has_membership: bool = False
    is_case_value: bool = False
    """Whether CASE, THEN or ELSE came last, before what is a value of a CASE."""


def _is_value(tokens: Sequence[re.Match[str]], words: Sequence[str], group: _Group, end: int) -> bool:
    """Return whether a condition that ends with a bracket is compared, or is an argument of a function."""
    following = tokens[end + 1] if end + 1 < len(tokens) else None
    if following is not None and (words[end + 1] == "is" or following.lastgroup == "operator"):
        return True
    if group.is_membership or not group.start:
        return False
    before = tokens[group.start - 1]
    is_function = before.lastgroup in ("word", "quoted") and words[group.start - 1] not in _BEFORE_CONDITIONS
    return is_function or before.lastgroup == "operator"


def _comment_end(text: str, start: int) -> int:
    end = text.find("*/", start)
    if end < 0:
        raise InvalidInputError("The query has a comment that does not end.")
    if "/*" in text[start:end]:
        raise InvalidInputError("The query has a comment inside a comment: leave it out.")
    return end + 2


def _names(tokens: Sequence[re.Match[str]]) -> list[str]:
    """Return the name that each token is or ends, "" for another one. A name with a doubled quote is several tokens."""
    names: list[str] = []
    for at, token in enumerate(tokens):
        text = token[0]
        if token.lastgroup == "quoted":
            is_continued = at > 0 and tokens[at - 1].end() == token.start() and tokens[at - 1][0][-1] == text[0]
            text = f"{names[-1]}{text[0]}{text[1:-1]}" if is_continued else text[1:-1]
        names.append(text.lower() if token.lastgroup in ("word", "quoted") else "")
    return names


def _plan_size(tokens: Sequence[re.Match[str]], words: Sequence[str], view_sizes: Mapping[str, int]) -> int:
    """Return how many SELECTs and the like the plan has, once each WITH and each view is put where it is used."""
    sizes = dict(view_sizes)
    open_names: list[tuple[str, int]] = []
    counts = [0]
    names = _names(tokens)
    for at, token in enumerate(tokens):
        match token.lastgroup:
            case "open":
                open_names.append((_defined_name(tokens, words, names, at), len(counts)))
                counts.append(0)
            case "close" if open_names:
                name, level = open_names.pop()
                inside = min(sum(counts[level:]), MAX_PLAN_SIZE + 1)
                del counts[level:]
                if name:
                    sizes[name] = sizes.get(name, 0) + inside
                counts[-1] += inside
            case "word" | "quoted":
                is_qualifier = at + 1 < len(tokens) and tokens[at + 1][0] == "."
                counts[-1] += (names[at] in _SIZES) + (0 if is_qualifier else sizes.get(names[at], 0))
                counts[-1] = min(counts[-1], MAX_PLAN_SIZE + 1)
    return sum(counts)


def _defined_name(tokens: Sequence[re.Match[str]], words: Sequence[str], names: Sequence[str], bracket: int) -> str:
    """Return the name that a common table expression gives to what is in this bracket: `name [(columns)] AS (`."""
    at = bracket - 1
    while at >= 0 and words[at] in ("materialized", "not"):
        at -= 1
    if at < 1 or words[at] != "as":
        return ""
    at -= 1
    if tokens[at].lastgroup == "close":  # the names of its columns
        while at >= 0 and tokens[at].lastgroup != "open":
            at -= 1
        at -= 1
    return names[at] if at >= 0 else ""


def _concatenations(tokens: Sequence[re.Match[str]], words: Sequence[str]) -> float:
    """Return by how much the concatenations of all SELECTs together may enlarge a value.

    Those of one SELECT add up; what one SELECT returns, another one may concatenate again, so those multiply.
    """
    total, count = 1.0, 0
    calls: list[bool] = []
    names = _names(tokens)
    for at, token in enumerate(tokens):
        before = names[at - 1] if at else ""
        match token.lastgroup:
            case "word" if words[at] == "select":
                total, count = total * (1 + count), 0
            case "open":
                calls.append(before in _CONCATENATING or (token[0] == "[" and not before.isidentifier()))
            case "close" if calls:
                calls.pop()
            case "comma" if calls and calls[-1]:
                count += 1
            case "operator" if token[0] == "||":
                count += 1
    return total * (1 + count)
