"""Materialized views as their table's schema declares them, and the tables that a view's query reads.

The definition is text to the server: the job `refresh` carries it out. What was declared, and by whom, the catalog
remembers apart (`store/tables/views`), since whoever can write a table can write its metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.model.computed_columns import VIEW

MADE = "tiltyard.view.made"
"""The property of a Lance transaction by which a refresh tells from what it made the view, see `Made`."""

MOST_QUERY = 64 << 10
"""How long a query may be: every version's manifest repeats it."""


class ViewKind(StrEnum):
    """How a view's rows come to be: by a query alone, or by code that is given the rows of one.

    A chunker is given rows one by one, so that new rows are enough for it; a UDTF sees all of them.
    """

    QUERY = "query"
    UDTF = "udtf"
    CHUNKER = "chunker"


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """What a view is: each field is the metadata `tiltyard.view.<name>` of its schema.

    `query` is Spark SQL over tables of the catalog, `udtf` the specification's MaterializedViewUdtfEntry as JSON, ""
    for a query.
    """

    kind: ViewKind
    query: str
    udtf: str = ""
    auto_refresh: bool = False

    @property
    def digest(self) -> str:
        """What tells it from any other."""
        return hashlib.sha256(json.dumps([self.kind, self.query, self.udtf]).encode()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """The metadata of the schema; what is empty is left out."""
        told = {"kind": self.kind.value, "query": self.query, "udtf": self.udtf}
        told["auto_refresh"] = "true" if self.auto_refresh else ""
        return {f"{VIEW}{name}": text for name, text in told.items() if text}

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> ViewDefinition | None:
        """From the metadata of a schema; None for a table that is no view."""
        told = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in (metadata or {}).items()}
        kind = told.get(f"{VIEW}kind")
        if kind not in list(ViewKind):
            return None
        auto = told.get(f"{VIEW}auto_refresh") == "true"
        return cls(ViewKind(kind), told.get(f"{VIEW}query", ""), told.get(f"{VIEW}udtf", ""), auto)


@dataclass(frozen=True, slots=True)
class Origin:
    """A table at a version, that a view was made of. `location` tells it from another of the same name."""

    location: str
    version: int


@dataclass(frozen=True, slots=True)
class Made:
    """From what a version of a view was made; `definition` is the digest, `cut` whether an output limit took rows."""

    sources: Mapping[str, Origin]
    definition: str
    cut: bool = False

    def text(self) -> str:
        """As the commit carries it."""
        sources = {name: [one.location, one.version] for name, one in self.sources.items()}
        return json.dumps({"sources": sources, "definition": self.definition, "cut": self.cut})

    @classmethod
    def of(cls, properties: Mapping[str, str] | None) -> Made | None:
        """Read the properties of a commit; None for one that is no refresh, or says so in words of its own.

        Whoever can write the view's table can write anything there.
        """
        text = (properties or {}).get(MADE)
        if text is None:
            return None
        try:
            entry = msgspec.json.decode(text, type=_Entry)
        except (msgspec.MsgspecError, RecursionError):
            return None
        return cls({name: Origin(*one) for name, one in entry.sources.items()}, entry.definition, entry.cut)


class _Entry(msgspec.Struct):
    """`Made` as a commit carries it."""

    sources: dict[str, tuple[str, int]]
    definition: str
    cut: bool


def check_query_text(query: str) -> None:
    """Raise InvalidInputError for a query that is too long, or in which Spark would replace variables."""
    if len(query) > MOST_QUERY:
        raise InvalidInputError(f"A view's query has at most {MOST_QUERY} characters, not {len(query)}.")
    if "${" in query:
        raise InvalidInputError(
            "A query has no '${…}': Spark would put variables of its machine in its place. Write the value itself, and "
            "a dollar before a brace as '$' || '{'."
        )


def sources_of(query: str) -> tuple[str, ...]:
    """The tables that a query reads, by their ids as it names them (`hr$people`), sorted.

    Spark is shown these and no others, so that a table that is not found here cannot be read by mistake. Raises
    InvalidInputError for what is no query, and for names in several parts.
    """
    import sqlglot  # noqa: PLC0415  # a third of a second, for views alone
    from sqlglot import exp  # noqa: PLC0415  # the same
    from sqlglot.optimizer.scope import Scope, traverse_scope  # noqa: PLC0415  # the same

    check_query_text(query)
    try:
        statements = sqlglot.parse(query, read="spark")
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise InvalidInputError("A view's source_query is one SELECT of Spark SQL, over tables of this catalog.")
        scopes = traverse_scope(statements[0])
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise InvalidInputError(f"The view's source_query is not read as Spark SQL: {_plain(error)}") from error
    names = set()
    for scope in scopes:
        for table in scope.tables:
            if isinstance(scope.sources.get(table.alias_or_name), Scope) or not isinstance(table.this, exp.Identifier):
                continue  # what WITH names, and functions that make rows
            if table.db:
                parts = ".".join(part.name for part in table.parts)
                raise InvalidInputError(
                    f"Write the table {parts} by its id, in backticks: `{parts.replace('.', '$')}`."
                )
            names.add(table.name)
    return tuple(sorted(names))


def _plain(error: Exception) -> str:
    """The first line of what the parser says, which marks places with a terminal's signs for bold."""
    text = "it is nested too deeply." if isinstance(error, RecursionError) else str(error).split("\n")[0]
    return text.replace("\x1b[4m", "").replace("\x1b[0m", "")
