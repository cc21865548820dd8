"""The tables that a query in the server's SQL reads, for the lineage of what is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.model.views.definitions import MAX_QUERY_LENGTH

if TYPE_CHECKING:
    from sqlglot import exp

_OF_TABLES = frozenset({"table_version", "table_tag", "table_branch", "vector_search", "fts", "minhash_search"})
"""Functions of the server's SQL whose first argument names a table."""
_DEFAULT_NAMESPACE = "public"


def query_tables(query: Any) -> list[tuple[str, ...]]:
    """Return the ids of the tables that a query names. Raises InvalidInputError for what is not one SELECT."""
    import sqlglot  # noqa: PLC0415  # takes a third of a second, and queries alone need it
    from sqlglot import exp  # noqa: PLC0415  # the same
    from sqlglot.optimizer.scope import Scope, traverse_scope  # noqa: PLC0415  # the same

    if not isinstance(query, str) or not 0 < len(query.strip()) <= MAX_QUERY_LENGTH:
        raise InvalidInputError(f"query is one SELECT, of up to {MAX_QUERY_LENGTH} characters.")
    try:
        statements = sqlglot.parse(query, read="postgres")
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise InvalidInputError("query is one SELECT over tables of the catalog.")
        scopes = traverse_scope(statements[0])
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise InvalidInputError(f"query is not read as SQL: {str(error).splitlines()[0]}") from error
    found: dict[tuple[str, ...], None] = {}
    for scope in scopes:
        for table in scope.tables:
            if not isinstance(scope.sources.get(table.alias_or_name), Scope) and (names := _path(table)):
                found[names] = None
    return list(found)


def _path(table: exp.Table) -> tuple[str, ...]:
    """Return the id of a table, also of one that a function names; () for what is none."""
    from sqlglot import exp  # noqa: PLC0415  # as above

    named = table.this
    if isinstance(named, exp.Identifier):
        name = named.name if named.quoted else named.name.lower()
        namespaces = tuple(table.db.split("$")) if table.db and table.db != _DEFAULT_NAMESPACE else ()
        return (*namespaces, name)
    if isinstance(named, exp.Anonymous) and named.name.lower() in _OF_TABLES and named.expressions:
        first = named.expressions[0]
        return tuple(first.name.split("$")) if isinstance(first, exp.Literal) and first.is_string else ()
    return ()
