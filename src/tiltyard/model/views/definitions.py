"""Definitions of materialized views, in the metadata of their tables' schemas, and the sources of a view's query.

The definition is text to the server: the job `refresh` runs it. The catalog records separately what was declared, and
by whom (`store/tables/views.py`), since a principal that can write a table can write its metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError, InvalidTableStateError

from tiltyard.model.columns.computed_columns import VIEW, parse_seconds, read_declaration
from tiltyard.model.ids import DEFAULT_DELIMITER
from tiltyard.model.schemas.fields import metadata_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

LINEAGE_PROPERTY = "tiltyard.view.made"
"""The property of a Lance transaction by which a refresh records its `ViewLineage`."""

MAX_QUERY_LENGTH = 64 << 10
"""The greatest length of a query: every version's manifest repeats it."""


class ViewKind(StrEnum):
    """How a view's rows are computed: by a query alone, or by code that is called with the rows of one.

    A chunker is called row by row, so that an incremental refresh needs only the new rows; a UDTF needs all rows.
    A select is a query that the server itself computes: columns and a filter of one table, in Lance's SQL.
    """

    SELECT = "select"
    QUERY = "query"
    UDTF = "udtf"
    CHUNKER = "chunker"


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """The definition of a view; each attribute is the metadata `tiltyard.view.<name>` of its schema.

    `query` is Spark SQL over tables of the catalog (for a select, Lance's), `udtf` the specification's
    MaterializedViewUdtfEntry as JSON, "" for a query. `database` is the id of the namespace that the query's names are
    relative to, "" for the root. With `auto_refresh` a view refreshes by itself, each `refresh_seconds` where that is
    not 0. `computed` has the columns that refreshes compute besides those of the query, by name, with the identities of
    their declarations, which are in their fields. `indexes` are those that refreshes build and extend, each with the
    fields of a CreateTableIndexRequest. Both are JSON, "" where there are none.
    """

    kind: ViewKind
    query: str
    udtf: str = ""
    auto_refresh: bool = False
    database: str = ""
    refresh_seconds: float = 0.0
    computed: str = ""
    indexes: str = ""

    @property
    def digest(self) -> str:
        """The hash that identifies the definition. What came later is in it where it is set: other hashes stay."""
        later = {name: text for name, text in self._later_texts().items() if text}
        parts = [self.kind, self.query, self.udtf, *filter(None, (self.database, later))]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def source_id(self, name: str) -> str:
        """Return the id of a table that the query has this name for."""
        return f"{self.database}{DEFAULT_DELIMITER}{name}" if self.database else name

    def source_name(self, table: str) -> str:
        """Return the name that the query has for a table of this id."""
        return table.removeprefix(self.source_id(""))

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the schema; empty attributes are left out."""
        texts = {"kind": self.kind.value, "query": self.query, "udtf": self.udtf, "database": self.database}
        return {f"{VIEW}{name}": text for name, text in {**texts, **self._later_texts()}.items() if text}

    def _later_texts(self) -> dict[str, str]:
        """Return when the view refreshes by itself, and what with its rows, as its metadata has it."""
        seconds = f"{self.refresh_seconds:f}"
        return {
            "auto_refresh": "true" if self.auto_refresh else "",
            "refresh_seconds": seconds if float(seconds) else "",
            "computed": self.computed,
            "indexes": self.indexes,
        }

    @property
    def computed_columns(self) -> dict[str, str]:
        """The identities of the columns that refreshes compute, by name. Raises InvalidTableStateError."""
        return _decode(self.computed or "{}", dict[str, str], "computed")

    @property
    def index_requests(self) -> list[dict[str, Any]]:
        """The indexes, each by the fields of a CreateTableIndexRequest. Raises InvalidTableStateError."""
        return _decode(self.indexes or "[]", list[dict[str, Any]], "indexes")

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> ViewDefinition | None:
        """Read the definition in the metadata of a schema; None for a table that is no view."""
        texts = metadata_texts(metadata)
        kind = texts.get(f"{VIEW}kind")
        if kind not in list(ViewKind):
            return None
        auto_refresh = texts.get(f"{VIEW}auto_refresh") == "true"
        names = ("query", "udtf", "database", "computed", "indexes")
        query, udtf, database, computed, indexes = (texts.get(f"{VIEW}{name}", "") for name in names)
        refresh_seconds = parse_seconds(texts.get(f"{VIEW}refresh_seconds", ""))
        return cls(ViewKind(kind), query, udtf, auto_refresh, database, refresh_seconds, computed, indexes)


Decoded = TypeVar("Decoded")


def _decode(text: str, kind: type[Decoded], name: str) -> Decoded:
    """Parse JSON of a definition, which whoever can write the view can change, until its digest is compared."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidTableStateError(f"The definition of the view has no valid '{VIEW}{name}'.") from error


DETERMINISTIC = "deterministic"
"""The key of a chunker's envelope that says, by true, that it makes the same rows of the same input each time."""


def own_columns(view: pa.Schema) -> tuple[str, ...]:
    """Return the columns of a view that its definition makes: those of its query, and those that refreshes compute.

    Raises InvalidTableStateError.
    """
    definition = ViewDefinition.from_metadata(view.metadata)
    computed = {} if definition is None else definition.computed_columns
    return (*query_columns(view), *(name for name in computed if name in view.names))


_COLUMNS = f"{VIEW}columns"
"""The metadata of a view's schema that has the names of the columns that its query makes, as JSON."""


def record_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the metadata that says of a new view's columns that its query makes them."""
    return {_COLUMNS: json.dumps(schema.names)}


def query_columns(view: pa.Schema) -> tuple[str, ...]:
    """Return the columns of a view that its query makes: all but those that were added to the view since.

    A view of an earlier release does not record them: they are the columns that are not declared as computed.
    """
    names: list[str] = view.names
    text = (view.metadata or {}).get(_COLUMNS.encode(), b"null")
    try:
        recorded = msgspec.json.decode(text, type=list[str] | None)
    except msgspec.MsgspecError:  # whoever can write the view can write its metadata
        recorded = None
    made = names if recorded is None else [name for name in recorded if name in names]
    return tuple(name for name in made if read_declaration(view.field(name).metadata) is None)


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """A version of a table that a view was computed from. `location` tells it from another table of the same name."""

    location: str
    version: int


@dataclass(frozen=True, slots=True)
class ViewLineage:
    """What a version of a view was computed from: `definition` is a digest, `cut` whether an output limit cut rows."""

    sources: Mapping[str, SourceVersion]
    definition: str
    cut: bool = False

    def to_json(self) -> str:
        """Serialize for the property of the commit."""
        sources = {name: [source.location, source.version] for name, source in self.sources.items()}
        return json.dumps({"sources": sources, "definition": self.definition, "cut": self.cut})

    @classmethod
    def from_properties(cls, properties: Mapping[str, str] | None) -> ViewLineage | None:
        """Read the lineage in the properties of a commit; None for a commit that is no refresh, or an invalid lineage.

        A principal that can write the view's table can write anything there.
        """
        text = (properties or {}).get(LINEAGE_PROPERTY)
        if text is None:
            return None
        try:
            entry = msgspec.json.decode(text, type=_LineageJson)
        except (msgspec.MsgspecError, RecursionError):
            return None
        return cls(
            {name: SourceVersion(*source) for name, source in entry.sources.items()}, entry.definition, entry.cut
        )


class _LineageJson(msgspec.Struct):
    """A ViewLineage in JSON."""

    sources: dict[str, tuple[str, int]]
    definition: str
    cut: bool


def check_query_text(query: str) -> None:
    """Raise InvalidInputError for a query that is too long, or in which Spark would replace variables."""
    if len(query) > MAX_QUERY_LENGTH:
        raise InvalidInputError(f"A view's query has at most {MAX_QUERY_LENGTH} characters, not {len(query)}.")
    if "${" in query:
        raise InvalidInputError(
            "A query has no '${…}': Spark would put variables of its machine in its place. Write the value itself, and "
            "a dollar before a brace as '$' || '{'."
        )


def parse_sources(query: str) -> tuple[str, ...]:
    """Return the tables that a query reads, by the ids that it names them by (`hr$people`), sorted.

    Spark is given these and no others, so that a table that this overlooks cannot be read by mistake. Raises
    InvalidInputError for what is no query, and for names in several parts.
    """
    import sqlglot  # noqa: PLC0415  # takes a third of a second, and views alone need it
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
            _check_reads_latest(table)
            if isinstance(scope.sources.get(table.alias_or_name), Scope) or not isinstance(table.this, exp.Identifier):
                continue  # common table expressions, and table functions
            if table.db:
                parts = ".".join(part.name for part in table.parts)
                raise InvalidInputError(
                    f"Write the table {parts} by its id, in backticks: `{parts.replace('.', '$')}`."
                )
            names.add(table.name)
    return tuple(sorted(names))


def reads_tables_once(query: str) -> bool:
    """Return whether a query of Spark's SQL names each table, and each query of WITH, once: it joins none with itself.

    Raises InvalidInputError for what is no query.
    """
    import sqlglot  # noqa: PLC0415  # takes a third of a second, and views alone need it
    from sqlglot import exp  # noqa: PLC0415  # the same

    check_query_text(query)
    try:
        names = [table.name.casefold() for table in sqlglot.parse_one(query, read="spark").find_all(exp.Table)]
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise InvalidInputError(f"The view's source_query is not read as Spark SQL: {_plain(error)}") from error
    return len(names) == len(set(names))


def plain_view_sources(query: str) -> tuple[tuple[str, ...], ...]:
    """Return the tables that a plain view's query reads, each by its path, sorted; none of what is not read as SQL.

    They are for people to look at: who may read a view, its plan decides.
    """
    import sqlglot  # noqa: PLC0415  # takes a third of a second, and views alone need it
    from sqlglot import exp  # noqa: PLC0415  # the same

    check_query_text(query)
    try:
        statement = sqlglot.parse_one(query, read="postgres")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return ()
    defined = {each.alias_or_name for each in statement.find_all(exp.CTE)}
    paths = {
        (*(table.db.split("$") if table.db else ()), *table.name.split("$"))
        for table in statement.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier) and (table.db or table.name not in defined)
    }
    return tuple(sorted(paths))


_OF_STATES = frozenset({"table_branch", "table_version", "table_tag"})
"""The functions by which SQL queries read other states of a table than the latest of main."""


def _check_reads_latest(table: exp.Table) -> None:
    """Raise InvalidInputError for a branch, a version or a time of a table: a refresh reads main, and what is new."""
    is_function = table.name == ""
    if table.args.get("version") is None and not (is_function and table.this.name.lower() in _OF_STATES):
        return
    raise InvalidInputError(
        "A view that Spark computes reads the latest version of main of its tables: name no branch, version, tag or "
        "time. Columns and a filter of one table's branch are a view of the kind select, FROM "
        "table_branch('films', 'dev'); a branch is also read by Spark's data source, with the option branch."
    )


def _plain(error: Exception) -> str:
    """Return the first line of the parser's message, without the terminal codes that underline places."""
    text = "it is nested too deeply." if isinstance(error, RecursionError) else str(error).split("\n")[0]
    return text.replace("\x1b[4m", "").replace("\x1b[0m", "")
