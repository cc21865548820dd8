"""Parse the statements on materialized views, which are no queries: they call the operations on views.

    CREATE MATERIALIZED VIEW name [WITH (auto_refresh_enabled = true, auto_refresh_interval_seconds = 300)] AS SELECT …
    REFRESH MATERIALIZED VIEW name [WITH (full = true)]
    DESCRIBE MATERIALIZED VIEW name
    DROP MATERIALIZED VIEW name
    SHOW MATERIALIZED VIEWS [WHERE name > 'films'] [LIMIT 100]

Names are as in queries: `[schema.]name`, without quotes in lower case. The query of a view is not changed here: the
operation parses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import Id, table_id
from tiltyard.sql.statements.text_checks import normalize_statement
from tiltyard.sql.tables import namespace_of_schema
from tiltyard.tables.lance_sql.lexer import Token, tokenize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class ViewAction(StrEnum):
    """What a statement does, by its first word."""

    CREATE = "create"
    REFRESH = "refresh"
    DESCRIBE = "describe"
    DROP = "drop"
    SHOW = "show"


_FORMS: Mapping[ViewAction, str] = {
    ViewAction.CREATE: (
        "CREATE MATERIALIZED VIEW name [WITH (auto_refresh_enabled = true, auto_refresh_interval_seconds = 300)]"
        " AS SELECT …"
    ),
    ViewAction.REFRESH: "REFRESH MATERIALIZED VIEW name [WITH (full = true)]",
    ViewAction.DESCRIBE: "DESCRIBE MATERIALIZED VIEW name",
    ViewAction.DROP: "DROP MATERIALIZED VIEW name",
    ViewAction.SHOW: "SHOW MATERIALIZED VIEWS [WHERE name > 'text'] [LIMIT number]",
}
_OPERATIONS: Mapping[ViewAction, str] = {
    ViewAction.CREATE: "CreateMaterializedView",
    ViewAction.REFRESH: "RefreshMaterializedView",
    ViewAction.DESCRIBE: "DescribeMaterializedView",
    ViewAction.DROP: "DropMaterializedView",
    ViewAction.SHOW: "ListMaterializedViews",
}
_GAP = r"(?:\s|--[^\n]*+|/\*.*?\*/)*+"
_BEGINNING = re.compile(
    rf"{_GAP}(?!(?:select|with|explain)\b)(?:[a-z]++{_GAP}){{1,3}}?materialized\b{_GAP}views?\b",
    re.IGNORECASE | re.DOTALL,
)
"""How a statement begins, with up to three words before MATERIALIZED, as CREATE OR REPLACE are."""
MAX_HEAD_TOKENS = 64
"""Tokens of a statement that are read here: all but a view's query, which the operation parses."""
_LAST_LIMIT = 2**63 - 1
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ViewStatement:
    """A statement: of which view, or for SHOW of which namespace, `path` is the id; the rest as the statement has it.

    - `interval_seconds`: how often a view refreshes by itself, None where the statement leaves that open.
    - `after`, `limit`: names that SHOW lists come behind `after`, so many at most.
    """

    action: ViewAction
    path: Id
    query: str = ""
    auto_refresh: bool = False
    interval_seconds: float | None = None
    full: bool = False
    after: str = ""
    limit: int | None = None

    @property
    def changes(self) -> bool:
        """Whether the statement changes anything."""
        return self.action not in (ViewAction.DESCRIBE, ViewAction.SHOW)

    @property
    def queues_job(self) -> bool:
        """Whether the operation queues a job, whose id its response has."""
        return self.action in (ViewAction.CREATE, ViewAction.REFRESH)

    @property
    def operation(self) -> str:
        """The operation that the statement calls."""
        return _OPERATIONS[self.action]

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its request; those of a page of SHOW come besides."""
        fields: dict[str, Any] = {"id": list(self.path)}
        if self.action is ViewAction.CREATE:
            fields |= {
                "kind": "select",
                "source_query": self.query,
                "output_schema": "",
                "with_no_data": False,
                "auto_refresh": self.auto_refresh or None,
                "auto_refresh_interval_seconds": self.interval_seconds,
            }
        elif self.action is ViewAction.REFRESH:
            fields["full"] = self.full or None
        return fields


def parse_view_statement(text: str, default_namespace: Id, database: Id, max_length: int) -> ViewStatement | None:
    """Return the statement on a materialized view that a text is; None for any other text.

    `default_namespace` is within `database`. Raises InvalidInputError for one with other words than its form has.
    """
    if len(text) > max_length or _BEGINNING.match(text) is None:
        return None  # what is too long is refused as a query
    text = normalize_statement(text)
    tokens = tokenize(text, MAX_HEAD_TOKENS)
    try:
        action = ViewAction(tokens[0].word)
    except ValueError:
        raise InvalidInputError(
            f"A statement on a materialized view is one of: {'; '.join(_FORMS.values())}."
        ) from None
    return _Parser(action, text, tokens, Id((*database, *default_namespace)), database).parse()


class _Parser:
    """Reads the tokens of one statement from the first to the last."""

    def __init__(self, action: ViewAction, text: str, tokens: Sequence[Token], namespace: Id, database: Id) -> None:
        self._action = action
        self._text = text
        self._tokens = tokens
        self._at = 0
        self._namespace = namespace
        self._database = database

    def parse(self) -> ViewStatement:
        """Return the statement. Raises InvalidInputError."""
        self._take_words(self._action.value, "materialized", "views" if self._action is ViewAction.SHOW else "view")
        match self._action:
            case ViewAction.CREATE:
                return self._create(self._name())
            case ViewAction.REFRESH:
                statement = self._refresh(self._name())
            case ViewAction.SHOW:
                statement = self._show()
            case _:
                statement = ViewStatement(self._action, self._name())
        self._has_taken(";")
        if (token := self._peek()).text:
            raise self._unexpected(token)
        return statement

    def _create(self, path: Id) -> ViewStatement:
        options = self._options({"auto_refresh_enabled": self._boolean, "auto_refresh_interval_seconds": self._seconds})
        self._take_words("as")
        if (start := self._peek()).text in ("", ";"):
            raise self._unexpected(start)
        query = self._text[start.start :].rstrip().removesuffix(";").rstrip()
        seconds = options.get("auto_refresh_interval_seconds")
        refreshes = bool(options.get("auto_refresh_enabled", seconds is not None))
        return ViewStatement(self._action, path, query, refreshes, seconds)

    def _refresh(self, path: Id) -> ViewStatement:
        return ViewStatement(self._action, path, full=bool(self._options({"full": self._boolean}).get("full")))

    def _show(self) -> ViewStatement:
        after = self._lower_bound() if self._has_taken("where") else ""
        limit = self._limit() if self._has_taken("limit") else None
        return ViewStatement(self._action, self._namespace, after=after, limit=limit)

    def _options(self, known: Mapping[str, Callable[[str], float]]) -> dict[str, float]:
        """Return the options of a `WITH (name = value, …)`, each once; none where there is none."""
        options: dict[str, float] = {}
        if not self._has_taken("with"):
            return options
        self._take_sign("(")
        while not options or self._has_taken(","):
            token = self._next()
            name = token.word
            if name not in known or name in options:
                raise self._unexpected(token)
            self._take_sign("=")
            options[name] = known[name](name)
        self._take_sign(")")
        return options

    def _boolean(self, name: str) -> bool:
        token = self._next()
        if token.word not in ("true", "false"):
            raise InvalidInputError(f"{name} is true or false, not {token.text[:60]!r}.")
        return token.word == "true"

    def _seconds(self, name: str) -> float:
        token = self._next()
        if _DECIMAL.fullmatch(token.text) is None or not float(token.text):
            raise InvalidInputError(f"{name} is a number of seconds above 0, not {token.text[:60]!r}.")
        return float(token.text)

    def _limit(self) -> int:
        token = self._next()
        if _WHOLE.fullmatch(token.text) is None or int(token.text) > _LAST_LIMIT:
            raise InvalidInputError(f"LIMIT is a whole number, not {token.text[:60]!r}.")
        return int(token.text)

    def _lower_bound(self) -> str:
        """Return the text of `name > 'text'`."""
        self._take_words("name")
        self._take_sign(">")
        token = self._next()
        if token.kind != "text":
            raise self._unexpected(token)
        return token.text[1:-1].replace("''", "'")

    def _name(self) -> Id:
        """Return the id of the view that is named next."""
        names = [self._identifier()]
        while self._peek().text == ".":
            self._next()
            names.append(self._identifier())
        if len(names) > 2:
            raise InvalidInputError('Name a view as schema.name; nested namespaces are one schema: "sales$eu".films.')
        namespace = self._namespace if len(names) < 2 else namespace_of_schema(names[0], self._database)
        return table_id((*namespace, names[-1]))

    def _identifier(self) -> str:
        token = self._next()
        if token.kind not in ("word", "quoted"):
            raise self._unexpected(token)
        return token.word or token.name

    def _peek(self) -> Token:
        """Return the next token; an empty one at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _take_words(self, *words: str) -> None:
        for word in words:
            if (token := self._next()).word != word:
                raise self._unexpected(token)

    def _take_sign(self, sign: str) -> None:
        if (token := self._next()).text != sign:
            raise self._unexpected(token)

    def _has_taken(self, text: str) -> bool:
        """Take the next token if it is this word or sign; return whether it was."""
        is_next = text in (self._peek().word, self._peek().text)
        self._at += is_next
        return is_next

    def _unexpected(self, token: Token) -> InvalidInputError:
        found = f"has {token.text[:60]!r}" if token.text else "ends"
        return InvalidInputError(f"The statement {found} where its form has something else: {_FORMS[self._action]}.")


_END = Token("end", "", 0, 0)
