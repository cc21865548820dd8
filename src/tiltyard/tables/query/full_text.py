"""Full-text queries: from the specification's models to Lance's.

A query that names no column searches every column with a full-text index. Over several columns a row scores as in its
best column, where Lance can say so: terms, operator and boosts alike. It cannot for fuzzy matches or phrases over
several columns; those find the same rows, and a row scores the sum over its columns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lance.query import (
    BooleanQuery,
    BoostQuery,
    DocumentGranularity,
    FullTextOperator,
    FullTextQuery,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)
from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.model.spec import models

DEEPEST = 16
MOST_WORDS = 5_000
"""Words that a query looks up, in each of its columns, with what fuzzy ones expand to: 0.16 ms and 30 KB each."""
LONGEST_TERMS = 50_000
"""Characters of all words: an index may make several of one."""
AUTOMATIC = "auto"
_WORDS = re.compile(r"\w+")
_KINDS = ("match", "phrase", "boost", "multi_match", "boolean")
_MATCH_DEFAULTS = {"fuzziness": 0, "max_expansions": 50, "prefix_length": 0, "document_granularity": None}


class FullText:
    """Builds queries for one table; `indexed` gives the paths of its columns with a full-text index."""

    def __init__(self, indexed: Callable[[], Sequence[str]]) -> None:
        self._indexed = indexed
        self._words = self._characters = 0

    def query(self, asked: models.QueryTableFullTextQuery) -> FullTextQuery:
        """The query of a request. Raises InvalidInputError."""
        if asked.string_query is not None and asked.structured_query is not None:
            raise InvalidInputError("A full_text_query has either a string_query or a structured_query, not both.")
        if asked.structured_query is not None:
            return self._any(asked.structured_query.query, 1)
        if asked.string_query is None:
            raise InvalidInputError("A full_text_query needs a string_query or a structured_query.")
        terms, columns = asked.string_query.query, self._columns(asked.string_query.columns)
        self._count(terms, len(columns))
        return MatchQuery(terms, columns[0]) if len(columns) == 1 else MultiMatchQuery(terms, columns)

    def _any(self, query: models.FtsQuery, depth: int) -> FullTextQuery:
        if depth > DEEPEST:
            raise InvalidInputError(f"The full-text query nests deeper than {DEEPEST} levels.")
        given = [kind for kind in _KINDS if getattr(query, kind) is not None]
        if len(given) != 1:
            choices = ", ".join(_KINDS)
            raise InvalidInputError(f"A full-text query has exactly one of {choices}; this one has {len(given)}.")
        if query.match is not None:
            return self._match(query.match)
        if query.phrase is not None:
            return self._phrase(query.phrase)
        if query.boost is not None:
            return self._boost(query.boost, depth)
        if query.multi_match is not None:
            return self._multi_match(query.multi_match)
        assert query.boolean is not None
        return self._boolean(query.boolean, depth)

    def _match(self, query: models.MatchQuery) -> FullTextQuery:
        columns = self._columns(None if query.column is None else [query.column])
        spread = _spread(query)
        self._count(query.terms, len(columns), 1 if spread["fuzziness"] == 0 else spread["max_expansions"])
        if len(columns) > 1 and spread == _MATCH_DEFAULTS:
            boosts = [1.0 if query.boost is None else query.boost] * len(columns)
            return MultiMatchQuery(query.terms, columns, boosts=boosts, operator=_operator(query.operator))
        return _together([_match_in(query, column) for column in columns])

    def _phrase(self, query: models.PhraseQuery) -> FullTextQuery:
        granularity = _granularity(query.document_granularity)
        columns = self._columns(None if query.column is None else [query.column])
        self._count(query.terms, len(columns))
        return _together(
            [
                PhraseQuery(query.terms, column, slop=query.slop or 0, document_granularity=granularity)
                for column in columns
            ]
        )

    def _boost(self, query: models.BoostQuery, depth: int) -> FullTextQuery:
        weight = 0.5 if query.negative_boost is None else query.negative_boost
        positive, negative = self._any(query.positive, depth + 1), self._any(query.negative, depth + 1)
        return BoostQuery(positive, negative, negative_boost=weight)

    def _multi_match(self, query: models.MultiMatchQuery) -> FullTextQuery:
        parts = query.match_queries
        if not parts:
            raise InvalidInputError("A multi_match query needs at least one match query.")
        first = parts[0]
        operator = _operator(first.operator)
        alike = all(part.terms == first.terms and _operator(part.operator) is operator for part in parts)
        if alike and all(part.column is not None and _spread(part) == _MATCH_DEFAULTS for part in parts):
            boosts = [1.0 if part.boost is None else part.boost for part in parts]
            columns = [part.column for part in parts if part.column is not None]
            self._count(first.terms, len(columns))
            return MultiMatchQuery(first.terms, columns, boosts=boosts, operator=operator)
        return _together([self._match(part) for part in parts])

    def _boolean(self, query: models.BooleanQuery, depth: int) -> FullTextQuery:
        clauses = ((Occur.MUST, query.must), (Occur.SHOULD, query.should), (Occur.MUST_NOT, query.must_not))
        if not query.must and not query.should:
            raise InvalidInputError("A boolean query needs at least one 'must' or 'should' clause.")
        return BooleanQuery([(occur, self._any(part, depth + 1)) for occur, parts in clauses for part in parts])

    def _count(self, terms: str, columns: int, expansions: int = 1) -> None:
        """Count words to be looked up in some columns. Raises InvalidInputError where the query has too many."""
        self._words += max(1, len(_WORDS.findall(terms))) * columns * max(1, expansions)
        self._characters += len(terms) * columns
        if self._words > MOST_WORDS or self._characters > LONGEST_TERMS:
            raise InvalidInputError(
                f"The full-text query looks up more than {MOST_WORDS} words, counted for each column, with what fuzzy"
                f" ones expand to, or {LONGEST_TERMS} characters of them."
            )

    def _columns(self, named: Sequence[str] | None) -> list[str]:
        columns = list(named) if named else list(self._indexed())
        if not columns:
            raise InvalidInputError(
                "No column of this table has a full-text index: create one (index_type FTS), or name columns to search."
            )
        return columns


def _together(queries: list[FullTextQuery], occur: Occur = Occur.SHOULD) -> FullTextQuery:
    """Rows that any of the queries finds (or each, where they MUST), their scores added up."""
    return queries[0] if len(queries) == 1 else BooleanQuery([(occur, query) for query in queries])


def _spread(query: models.MatchQuery) -> dict[str, Any]:
    """What Lance's query over several columns cannot say."""
    return {
        "fuzziness": _fuzziness(query.fuzziness),
        "max_expansions": 50 if query.max_expansions is None else query.max_expansions,
        "prefix_length": query.prefix_length or 0,
        "document_granularity": _granularity(query.document_granularity),
    }


def _match_in(query: models.MatchQuery, column: str) -> FullTextQuery:
    """A match in one column. Automatic fuzziness is spelled out: pylance takes its None for exact."""
    spread, operator = _spread(query), _operator(query.operator)
    boost = 1.0 if query.boost is None else query.boost
    if spread["fuzziness"] is not None:
        return MatchQuery(query.terms, column, boost=boost, operator=operator, **spread)
    parts: list[FullTextQuery] = [
        MatchQuery(terms, column, boost=boost, operator=operator, **spread | {"fuzziness": distance})
        for distance, terms in _by_distance(query.terms).items()
    ]
    return _together(parts, Occur.MUST if operator is FullTextOperator.AND else Occur.SHOULD)


def _by_distance(terms: str) -> dict[int, str]:
    """Terms by how many edits their length allows."""
    grouped: dict[int, list[str]] = {}
    for term in _WORDS.findall(terms):
        grouped.setdefault(0 if len(term) <= 2 else 1 if len(term) <= 5 else 2, []).append(term)
    return {distance: " ".join(words) for distance, words in grouped.items()} or {0: terms}


def _fuzziness(asked: Any) -> int | None:
    """The edit distance; None leaves it to the length of each term."""
    if asked is None:
        return 0
    if isinstance(asked, str) and asked.lower() == AUTOMATIC:
        return None
    if isinstance(asked, int) and not isinstance(asked, bool) and 0 <= asked < 2**31:
        return asked
    raise InvalidInputError(f"The fuzziness is an edit distance from 0 on, or '{AUTOMATIC}'; not {asked!r}.")


def _operator(asked: str | None) -> FullTextOperator:
    if asked is None:
        return FullTextOperator.OR
    try:
        return FullTextOperator[asked.upper()]
    except KeyError as error:
        raise InvalidInputError(f"The operator of a match query is And or Or, not '{asked}'.") from error


def _granularity(asked: str | None) -> DocumentGranularity | None:
    if asked is None:
        return None
    try:
        return DocumentGranularity(asked.lower())
    except ValueError as error:
        choices = " or ".join(DocumentGranularity)
        raise InvalidInputError(f"The document_granularity is {choices}, not '{asked}'.") from error
