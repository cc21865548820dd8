"""Translate the words of DuckDB and PostgreSQL in a statement to those of DataFusion, or refuse them by name.

Only what is named here is changed, token by token; all else stays as it was written, and DataFusion judges it. What is
checked and planned is the translated text. It grows in proportion alone: no argument is written twice. Clauses
and operators that DataFusion reads as something else, or not at all, are refused.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.sql.dialects.formats import check_parsed, from_strftime, from_template
from tiltyard.sql.dialects.statement_tokens import BETWEEN_QUERIES, JSON_TYPES, FunctionCall, StatementTokens, unclear
from tiltyard.sql.dialects.words import REFUSED, RENAMED, TRANSLATIONS, TYPES

_ARROWS: Mapping[tuple[str, ...], str] = {
    ("-", ">", ">"): "->>",
    ("-", ">"): "->",
    ("#", ">", ">"): "#>>",
    ("#", ">"): "#>",
    ("@", ">"): "@>",
    ("<", "@"): "<@",
    ("?", "|"): "?|",
    ("?", "&"): "?&",
    ("?",): "?",
}
"""Operators on JSON by their tokens; of two that begin alike, the longer one is first."""
_BY_OPERATOR: Mapping[str, str] = {
    "#>": "json_walk",
    "#>>": "json_walk_text",
    "@>": "jsonb_contains",
    "<@": "jsonb_contained",
    "?": "jsonb_exists",
    "?|": "jsonb_exists_any",
    "?&": "jsonb_exists_all",
}
_TIGHTER = frozenset({"+", "-", "*", "/", "%", "^", "||"})
"""Operators that bind their operands closer than those on JSON do, or as close."""
_NUMBER_PARTS = re.compile(r"\d+(?:_\d+)+")
_PATH = re.compile(r"\{(.*)\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Wrap:
    """Text around some tokens."""

    start: int
    end: int
    before: str
    after: str


def translate(text: str) -> str:
    """Return a statement in the words of DataFusion. Raises InvalidInputError, UnsupportedOperationError."""
    return _Translation(text).run()


_PLACE = re.compile(r"at Line: (\d{1,6}), Column: (\d{1,6})")


def restore_places(source: str, message: str) -> str:
    """Return an error of DataFusion about a translated statement with the line and the column of its source."""
    match = _PLACE.search(message)
    if match is None:
        return message
    translation = _Translation(source)
    lines = translation.run().split("\n")
    line, column = int(match[1]), int(match[2])
    if not 1 <= line <= len(lines):
        return message
    offset = translation.source_of(sum(len(each) + 1 for each in lines[: line - 1]) + column - 1)
    above = source[:offset]
    place = f"at Line: {above.count(chr(10)) + 1}, Column: {offset - above.rfind(chr(10))}"
    return f"{message[: match.start()]}{place}{message[match.end() :]}"


class _Translation(StatementTokens):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._wraps: list[_Wrap] = []
        self._replaced: dict[int, str] = {}
        self._operations: dict[int, int] = {}
        """Where the operations on JSON begin, by the token behind them."""
        self._offsets: list[tuple[int, int]] = []
        """Where each token begins in what is written, and in the text."""

    def run(self) -> str:
        check_clauses(self._words, self._kinds, self._tokens)
        for at, kind in enumerate(self._kinds):
            if kind == "word":
                self._word(at)
            elif kind == "number" and _NUMBER_PARTS.fullmatch(self._words[at]):
                self._replaced[at] = self._words[at].replace("_", "")
            elif kind in ("operator", "other"):
                self._operator(at)
        return self._written() if self._wraps or self._replaced else self._text

    def source_of(self, offset: int) -> int:
        """Return where in the text is what is at an offset of what was written."""
        at = bisect_right(self._offsets, offset, key=lambda each: each[0]) - 1
        if at < 0:
            return min(offset, len(self._text))
        written, source = self._offsets[at]
        return min(source + offset - written, self._tokens[at].end())

    def _begin_with_select(self, start: int) -> None:
        """Write `FROM t` as `SELECT * FROM t`, unless a SELECT follows: DataFusion reads it as one of no columns."""
        at = start
        while at < len(self._words) and self._kinds[at] not in ("close", "semicolon"):
            if self._words[at] in BETWEEN_QUERIES or self._words[at] == "select":
                break
            at = self._closes.get(at, at) + 1
        if self._word_at(at) != "select":
            self._wraps.append(_Wrap(start, start + 1, "SELECT * ", ""))

    def _word(self, at: int) -> None:
        word, following = self._words[at], self._word_at(at + 1)
        if word in JSON_TYPES and self._kind_at(at + 1) == "text":  # JSON '{"a": 1}'
            self._replaced[at] = "json("
            self._wraps.append(_Wrap(at, at + 2, "", ")"))
        elif word == "from" and self._begins_query(at):
            self._begin_with_select(at)
        elif following == "join" and word in ("semi", "anti") and self._word_at(at - 1) not in ("left", "right"):
            self._replaced[at] = f"left {word}"
        elif following == "(" and self._is_call(at):
            self._call(self._call_at(at))

    def _call(self, call: FunctionCall) -> None:
        name = call.name
        if (instead := REFUSED.get(name)) is not None:
            raise UnsupportedOperationError(f"The function {name} is not served: write {instead}.")
        if call.end >= len(self._words):
            return  # the bracket is not closed, as DataFusion says
        if (renamed := RENAMED.get(name)) is not None:
            self._replaced[call.at] = renamed
        if (special := _SPECIAL.get(name)) is not None:
            special(self, call)
        elif (template := TRANSLATIONS.get(name, {}).get(len(call.arguments))) is not None:
            self._fill(call, template)

    def _fill(self, call: FunctionCall, template: str) -> None:
        """Write a call as a text with its arguments in their places."""
        parts = template.split("{}")
        self._replaced[call.at] = ""
        self._replaced[call.at + 1] = parts[0]
        for (_, end), part in zip(call.arguments, parts[1:], strict=True):
            self._replaced[end] = part
        if not call.arguments:
            self._replaced[call.end] = ""

    def _operator(self, at: int) -> None:
        operator = self._words[at]
        if at in self._replaced:
            return  # the rest of another one
        if operator == "::":
            self._cast(at)
        elif (size := self._arrow_size(at)) and self._is_on_json(at, size):
            self._apply(at, size)

    def _arrow_size(self, at: int) -> int:
        """Return of how many tokens an operator on JSON is; 0 where there is none."""
        for tokens in _ARROWS:
            size = len(tokens)
            if tuple(self._words[at : at + size]) == tokens and self._is_joined(at, size):
                return size
        return 0

    def _is_on_json(self, at: int, size: int) -> bool:
        """Return whether an operator is one on JSON, where others have it, too: @> and <@ compare lists."""
        name = _ARROWS[tuple(self._words[at : at + size])]
        if name not in ("@>", "<@"):
            return True
        try:
            start, end = (at + size, self._right(at + size)) if name == "@>" else (self._left(at), at)
        except InvalidInputError:
            return False
        is_text = end - start == 1 and self._kinds[start] == "text"
        is_json = self._words[end - 1] in JSON_TYPES or self._words[start] in JSON_TYPES
        return is_text or is_json or (self._words[start] == "cast" and self._words[end - 2] in JSON_TYPES)

    def _apply(self, at: int, size: int) -> None:
        """Write an operation on JSON as a call."""
        name = _ARROWS[tuple(self._words[at : at + size])]
        start, end = self._left(at), self._right(at + size)
        start = self._operations.get(at, start)
        if self._word_at(start - 1) in _TIGHTER and self._kind_at(start - 1) == "operator":
            raise unclear(name)
        if self._word_at(end) in _TIGHTER - {"||"} and not self._arrow_size(end):
            raise unclear(name)
        function = _BY_OPERATOR.get(name) or self._accessor(name, at + size, end)
        if name in ("#>", "#>>", "?|", "?&"):
            self._list_of_names(at + size, end)
        for position in range(at, at + size):
            self._replaced[position] = ""
        self._replaced[at] = ","
        self._wraps.append(_Wrap(start, end, f"{function}(", ")"))
        self._operations[end] = start

    def _accessor(self, name: str, start: int, end: int) -> str:
        """Return the function of -> or ->> for what follows it: a key, or a number, which is a position."""
        suffix = "_text" if name == "->>" else ""
        if self._is_whole_number(start, end):
            return f"json_position{suffix}"
        self._require_text(start, end)
        return f"json_key{suffix}"

    def _require_text(self, start: int, end: int) -> None:
        """Let DataFusion refuse what is no text, which it would make one: a number is another thing than a key."""
        if not (end - start == 1 and self._kinds[start] == "text"):
            self._wraps.append(_Wrap(start, end, "ltrim(", ", '')"))

    def _list_of_names(self, start: int, end: int) -> None:
        """Write a list of PostgreSQL in a text, as '{a,b}', as a list."""
        if end - start != 1 or self._kinds[start] != "text":
            return
        written = _PATH.fullmatch(self._tokens[start][0][1:-1])
        if written is None or re.search(r'["\\{]', written[1]):
            raise InvalidInputError("Write the keys of a JSON path as '{a,b,0}', or as ARRAY['a', 'b'].")
        names = [f"'{name.strip()}'" for name in written[1].split(",")] if written[1].strip() else []
        self._replaced[start] = f"make_array({', '.join(names)})"

    def _cast(self, at: int) -> None:
        word = self._word_at(at + 1)
        if word in JSON_TYPES:
            self._replaced[at] = self._replaced[at + 1] = ""
            self._wraps.append(_Wrap(self._left(at), at + 2, "json(", ")"))
        elif word in TYPES:
            self._replaced[at + 1] = TYPES[word]

    def _format(self, call: FunctionCall, translated: Callable[[str], str], *, needs_text: bool) -> None:
        """Translate the format that is the second argument of a call; it is a constant text."""
        if len(call.arguments) != 2:
            return
        start, end = call.arguments[1]
        text = self._text_of(start, end)
        if text is not None:
            quoted = translated(text).replace("'", "''")
            self._replaced[start] = f"'{quoted}'"
        elif needs_text:
            raise UnsupportedOperationError(f"The format of {call.name} has to be a text in the query, as '%Y-%m-%d'.")

    def _strftime(self, call: FunctionCall) -> None:
        self._replaced[call.at] = "to_char"
        self._format(call, from_strftime, needs_text=True)

    def _strptime(self, call: FunctionCall) -> None:
        self._replaced[call.at] = "to_timestamp"
        self._format(call, lambda text: check_parsed(from_strftime(text)), needs_text=True)

    def _to_char(self, call: FunctionCall) -> None:
        self._format(call, from_template, needs_text=False)

    def _to_time(self, call: FunctionCall) -> None:
        self._format(call, lambda text: check_parsed(from_template(text)), needs_text=False)

    def _json_path(self, call: FunctionCall) -> None:
        if len(call.arguments) != 2:
            return
        start, end = call.arguments[1]
        if self._is_whole_number(start, end):
            self._replaced[call.at] = "json_position_text" if call.name == "json_extract_string" else "json_position"
        else:
            self._require_text(start, end)

    def _json_names(self, call: FunctionCall) -> None:
        """Write `json_extract_path(doc, 'a', 'b')` as a call with a list of its names."""
        if len(call.arguments) > 1:
            self._replaced[call.at] = "json_walk_text" if call.name.endswith("_text") else "json_walk"
            self._wraps.append(_Wrap(call.arguments[1][0], call.end, "make_array(", ")"))

    def _cast_call(self, call: FunctionCall) -> None:
        last = self._word_at(call.end - 1)
        if self._word_at(call.end - 2) != "as":
            return
        if last in JSON_TYPES:
            self._replaced[call.at] = "json_try" if call.name == "try_cast" else "json"
            self._replaced[call.end - 2] = self._replaced[call.end - 1] = ""
        elif last in TYPES:
            self._replaced[call.end - 1] = TYPES[last]

    def _concatenate(self, call: FunctionCall) -> None:
        """Write an aggregate that joins texts, whose separator is a comma if it has none."""
        self._replaced[call.at] = "string_agg"
        if len(call.arguments) == 1:
            start, end = call.arguments[0]
            order = next((at for at in range(start, end) if self._words[at] == "order"), end)
            self._wraps.append(_Wrap(start, order, "", ", ','"))

    def _at_extreme(self, call: FunctionCall) -> None:
        """Write `arg_max(a, b)` as the first `a` by descending `b`; rows in which either is null do not count."""
        if len(call.arguments) != 2:
            return
        (_, comma), (start, end) = call.arguments
        if not all(self._kinds[at] in ("word", "quoted") or self._words[at] == "." for at in range(start, end)):
            raise UnsupportedOperationError(
                f"{call.name} takes a column as its second argument: write first_value(a ORDER BY b DESC)"
                " FILTER (WHERE a IS NOT NULL AND b IS NOT NULL)."
            )
        column = self._text[self._tokens[start].start() : self._tokens[end - 1].end()]
        order = "DESC" if call.name in ("arg_max", "max_by", "argmax") else "ASC"
        self._replaced[call.at] = f"first_value(CASE WHEN {column} IS NOT NULL THEN"
        self._replaced[call.at + 1] = " "
        self._replaced[comma] = " END IGNORE NULLS ORDER BY "
        self._replaced[call.end] = f" {order} NULLS LAST)"

    def _bucket(self, call: FunctionCall) -> None:
        """Write DuckDB's buckets of times as bins with its origins: of months, and of what is no month."""
        if len(call.arguments) != 2:
            return
        (start, comma), (moment, end) = call.arguments
        if self._words[start] != "interval":
            raise UnsupportedOperationError(f"{call.name} takes an interval in the query, as INTERVAL '1 hour'.")
        is_month = any(part in word for word in self._words[start:comma] for part in ("month", "year", "quarter"))
        origin = "2000-01-01" if is_month else "2000-01-03"
        if is_month:  # DataFusion fails on parts of a second before 1970
            self._wraps.append(_Wrap(moment, end, "date_trunc('day', ", ")"))
        self._replaced[call.at] = "date_bin"
        self._replaced[call.end] = f", TIMESTAMP '{origin}')"

    def _pack(self, call: FunctionCall) -> None:
        """Write `struct_pack(a := 1)` as `named_struct('a', 1)`."""
        for start, end in call.arguments:
            if self._words[start + 1 : start + 3] != [":", "="] or start + 3 >= end or not self._is_name(start):
                raise InvalidInputError("struct_pack names its values: struct_pack(a := 1, b := 2).")
            name = self._tokens[start][0].strip('"`') if self._kinds[start] == "quoted" else self._words[start]
            quoted = name.replace("'", "''")
            self._replaced[start], self._replaced[start + 1], self._replaced[start + 2] = f"'{quoted}'", ",", ""
        self._replaced[call.at] = "named_struct"

    def _written(self) -> str:
        befores: dict[int, list[_Wrap]] = {}
        afters: dict[int, list[_Wrap]] = {}
        for wrap in self._wraps:
            befores.setdefault(wrap.start, []).append(wrap)
            afters.setdefault(wrap.end - 1, []).append(wrap)
        parts: list[str] = []
        position = length = 0
        for at, token in enumerate(self._tokens):
            before = [wrap.before for wrap in sorted(befores.get(at, ()), key=lambda each: -each.end)]
            after = [wrap.after for wrap in sorted(afters.get(at, ()), key=lambda each: -each.start)]
            leading = "".join([self._text[position : token.start()], *before])
            self._offsets.append((length + len(leading), token.start()))
            piece = "".join([leading, self._replaced.get(at, token[0]), *after])
            parts.append(piece)
            length += len(piece)
            position = token.end()
        return "".join([*parts, self._text[position:]])


_SPECIAL: Mapping[str, Callable[[_Translation, FunctionCall], None]] = {
    "strftime": _Translation._strftime,
    "strptime": _Translation._strptime,
    "to_char": _Translation._to_char,
    "date_format": _Translation._to_char,
    **dict.fromkeys(("to_date", "to_timestamp"), _Translation._to_time),
    **dict.fromkeys(("json_extract", "json_extract_string"), _Translation._json_path),
    **dict.fromkeys(
        ("json_extract_path", "json_extract_path_text", "jsonb_extract_path", "jsonb_extract_path_text"),
        _Translation._json_names,
    ),
    **dict.fromkeys(("cast", "try_cast"), _Translation._cast_call),
    **dict.fromkeys(("group_concat", "listagg", "string_agg"), _Translation._concatenate),
    **dict.fromkeys(("arg_max", "max_by", "argmax", "arg_min", "min_by", "argmin"), _Translation._at_extreme),
    "time_bucket": _Translation._bucket,
    "struct_pack": _Translation._pack,
}
"""Functions whose arguments decide how they are written."""
SPECIAL = frozenset(_SPECIAL)


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
