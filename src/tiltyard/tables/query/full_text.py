"""Build Lance's full-text queries from the specification's models.

A query that names no column searches every column with a full-text index. Over several columns, the score of a row is
that of its best column where Lance supports it: for equal terms, operator and boosts. Lance does not support it for
fuzzy matches or phrases over several columns; those find the same rows, and the score is the sum over the columns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lance.query import (
    BooleanQuery,
    BoostQuery,
    CombinedFieldsQuery,
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

MAX_DEPTH = 16
MAX_WORDS = 5_000
"""Words that a query looks up in all its columns, expansions of fuzzy ones included: 0.16 ms and 30 KB each."""
MAX_CHARACTERS = 50_000
"""Characters of all words: an index may split one into several."""
AUTOMATIC = "auto"
_WORDS = re.compile(r"\w+")
_KINDS = ("match", "phrase", "boost", "multi_match", "combined_fields", "boolean")
_MATCH_DEFAULTS = {"fuzziness": 0, "max_expansions": 50, "prefix_length": 0, "document_granularity": None}


class FullTextQueryBuilder:
    """Builds the query of one request; `indexed_columns` returns the paths of columns with a full-text index."""

    def __init__(self, indexed_columns: Callable[[], Sequence[str]]) -> None:
        self._indexed_columns = indexed_columns
        self._words = self._characters = 0

    def build(self, query: models.QueryTableFullTextQuery) -> FullTextQuery:
        """Return Lance's query of a request's. Raises InvalidInputError."""
        if query.string_query is not None and query.structured_query is not None:
            raise InvalidInputError("A full_text_query has either a string_query or a structured_query, not both.")
        if query.structured_query is not None:
            return self._build(query.structured_query.query, 1)
        if query.string_query is None:
            raise InvalidInputError("A full_text_query needs a string_query or a structured_query.")
        terms, columns = query.string_query.query, self._columns(query.string_query.columns)
        self._count_words(terms, len(columns))
        return MatchQuery(terms, columns[0]) if len(columns) == 1 else MultiMatchQuery(terms, columns)

    def _build(self, query: models.FtsQuery, depth: int) -> FullTextQuery:
        if depth > MAX_DEPTH:
            raise InvalidInputError(f"The full-text query nests deeper than {MAX_DEPTH} levels.")
        kinds = [kind for kind in _KINDS if getattr(query, kind) is not None]
        if len(kinds) != 1:
            choices = ", ".join(_KINDS)
            raise InvalidInputError(f"A full-text query has exactly one of {choices}; this one has {len(kinds)}.")
        if query.match is not None:
            return self._match(query.match)
        if query.phrase is not None:
            return self._phrase(query.phrase)
        if query.boost is not None:
            return self._boost(query.boost, depth)
        if query.multi_match is not None:
            return self._multi_match(query.multi_match)
        if query.combined_fields is not None:
            return self._combined_fields(query.combined_fields)
        assert query.boolean is not None
        return self._boolean(query.boolean, depth)

    def _match(self, query: models.MatchQuery) -> FullTextQuery:
        columns = self._columns(None if query.column is None else [query.column])
        options = _match_options(query)
        self._count_words(query.terms, len(columns), 1 if options["fuzziness"] == 0 else options["max_expansions"])
        if len(columns) > 1 and options == _MATCH_DEFAULTS:
            boosts = [1.0 if query.boost is None else query.boost] * len(columns)
            return MultiMatchQuery(query.terms, columns, boosts=boosts, operator=_operator(query.operator))
        return _combine([_match_in(query, column) for column in columns])

    def _phrase(self, query: models.PhraseQuery) -> FullTextQuery:
        granularity = _granularity(query.document_granularity)
        columns = self._columns(None if query.column is None else [query.column])
        self._count_words(query.terms, len(columns))
        return _combine(
            [
                PhraseQuery(query.terms, column, slop=query.slop or 0, document_granularity=granularity)
                for column in columns
            ]
        )

    def _boost(self, query: models.BoostQuery, depth: int) -> FullTextQuery:
        weight = 0.5 if query.negative_boost is None else query.negative_boost
        positive, negative = self._build(query.positive, depth + 1), self._build(query.negative, depth + 1)
        return BoostQuery(positive, negative, negative_boost=weight)

    def _multi_match(self, query: models.MultiMatchQuery) -> FullTextQuery:
        parts = query.match_queries
        if not parts:
            raise InvalidInputError("A multi_match query needs at least one match query.")
        first = parts[0]
        operator = _operator(first.operator)
        is_uniform = all(part.terms == first.terms and _operator(part.operator) is operator for part in parts)
        if is_uniform and all(part.column is not None and _match_options(part) == _MATCH_DEFAULTS for part in parts):
            boosts = [1.0 if part.boost is None else part.boost for part in parts]
            columns = [part.column for part in parts if part.column is not None]
            self._count_words(first.terms, len(columns))
            return MultiMatchQuery(first.terms, columns, boosts=boosts, operator=operator)
        return _combine([self._match(part) for part in parts])

    def _combined_fields(self, query: models.CombinedFieldsQuery) -> FullTextQuery:
        """Build a query of several columns as if they were one; Lance takes weights of at least 1."""
        columns = self._columns(query.columns)
        boosts = [1.0] * len(columns) if query.boosts is None else query.boosts
        if len(boosts) != len(columns) or any(boost < 1 for boost in boosts):
            raise InvalidInputError("A combined_fields query has a boost of at least 1 for each of its columns.")
        self._count_words(query.terms, len(columns))
        return CombinedFieldsQuery(query.terms, columns, boosts=boosts, operator=_operator(query.operator))

    def _boolean(self, query: models.BooleanQuery, depth: int) -> FullTextQuery:
        clauses = ((Occur.MUST, query.must), (Occur.SHOULD, query.should), (Occur.MUST_NOT, query.must_not))
        if not query.must and not query.should:
            raise InvalidInputError("A boolean query needs at least one 'must' or 'should' clause.")
        return BooleanQuery([(occur, self._build(part, depth + 1)) for occur, parts in clauses for part in parts])

    def _count_words(self, terms: str, columns: int, expansions: int = 1) -> None:
        """Count the words to look up in some columns. Raises InvalidInputError if the query has too many."""
        self._words += max(1, len(_WORDS.findall(terms))) * columns * max(1, expansions)
        self._characters += len(terms) * columns
        if self._words > MAX_WORDS or self._characters > MAX_CHARACTERS:
            raise InvalidInputError(
                f"The full-text query looks up more than {MAX_WORDS} words, counted for each column, with what fuzzy"
                f" ones expand to, or {MAX_CHARACTERS} characters of them."
            )

    def _columns(self, named: Sequence[str] | None) -> list[str]:
        columns = list(named) if named else list(self._indexed_columns())
        if not columns:
            raise InvalidInputError(
                "Cannot perform full text search unless an INVERTED index has been created on at least one column:"
                " create one (index_type FTS), or name columns to search."
            )
        return columns


def _combine(queries: list[FullTextQuery], occur: Occur = Occur.SHOULD) -> FullTextQuery:
    """Combine queries: rows that match any of them (or all, with MUST), with the sum of the scores."""
    return queries[0] if len(queries) == 1 else BooleanQuery([(occur, query) for query in queries])


def _match_options(query: models.MatchQuery) -> dict[str, Any]:
    """Return the options that Lance's query over several columns does not have."""
    return {
        "fuzziness": _fuzziness(query.fuzziness),
        "max_expansions": 50 if query.max_expansions is None else query.max_expansions,
        "prefix_length": query.prefix_length or 0,
        "document_granularity": _granularity(query.document_granularity),
    }


def _match_in(query: models.MatchQuery, column: str) -> FullTextQuery:
    """Build a match in one column. Automatic fuzziness is expanded by length: pylance takes its None for exact."""
    options, operator = _match_options(query), _operator(query.operator)
    boost = 1.0 if query.boost is None else query.boost
    if options["fuzziness"] is not None:
        return MatchQuery(query.terms, column, boost=boost, operator=operator, **options)
    parts: list[FullTextQuery] = [
        MatchQuery(terms, column, boost=boost, operator=operator, **options | {"fuzziness": distance})
        for distance, terms in _terms_by_distance(query.terms).items()
    ]
    return _combine(parts, Occur.MUST if operator is FullTextOperator.AND else Occur.SHOULD)


def _terms_by_distance(terms: str) -> dict[int, str]:
    """Group terms by the edit distance that their length allows."""
    grouped: dict[int, list[str]] = {}
    for term in _WORDS.findall(terms):
        grouped.setdefault(0 if len(term) <= 2 else 1 if len(term) <= 5 else 2, []).append(term)
    return {distance: " ".join(words) for distance, words in grouped.items()} or {0: terms}


def _fuzziness(value: Any) -> int | None:
    """Return the edit distance; None if it depends on the length of each term. Raises InvalidInputError."""
    if value is None:
        return 0
    if isinstance(value, str) and value.lower() == AUTOMATIC:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    raise InvalidInputError(f"The fuzziness is an edit distance from 0 on, or '{AUTOMATIC}'; not {value!r}.")


def _operator(value: str | None) -> FullTextOperator:
    if value is None:
        return FullTextOperator.OR
    try:
        return FullTextOperator[value.upper()]
    except KeyError as error:
        raise InvalidInputError(f"The operator of a match query is And or Or, not '{value}'.") from error


def _granularity(value: str | None) -> DocumentGranularity | None:
    if value is None:
        return None
    try:
        return DocumentGranularity(value.lower())
    except ValueError as error:
        choices = " or ".join(DocumentGranularity)
        raise InvalidInputError(f"The document_granularity is {choices}, not '{value}'.") from error
