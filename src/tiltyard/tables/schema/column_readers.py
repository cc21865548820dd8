"""Who would break if a column of a table were dropped, renamed or got another type.

Policies of the table, foreign keys in contracts of others, plain views, and materialized views that were made from it
(by lineage). Columns that computed columns read keep their names and types, and are not dropped, under these. Those
that the table's own contract reads are refused where versions are recorded (`tables/contracts/enforcement`).

A query reads a column here if it names the table, and the column's name is one of its words: `SELECT *` needs none.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from tiltyard.access.authorization import is_administrator, table_privileges
from tiltyard.access.policies import Policy
from tiltyard.contracts.contract import Contract
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, UdfDeclaration, read_declaration
from tiltyard.model.ids import Id
from tiltyard.model.refusals import RefusedError
from tiltyard.model.text.typed_ids import parse_typed_id
from tiltyard.model.views.definitions import ViewDefinition, plain_view_sources
from tiltyard.model.views.plain_views import PlainView
from tiltyard.tables.lance_sql.lexer import TOKEN
from tiltyard.tables.schema.field_paths import fold_names, path_names
from tiltyard.tables.views.view_sources import source_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.columns.computed_columns import Declaration
    from tiltyard.store import PolicyRecord, TableRecord


MAX_READERS = 1000
"""Views and contracts of each kind that are looked at."""
_TABLE = "table"
_NAMED = 5


def check_no_readers(ctx: Context, path: Id, record: TableRecord, columns: Sequence[str]) -> None:
    """Raise InvalidInputError if somebody reads one of these columns of a table's main branch; it names who does.

    Those that the caller may not see are counted.
    """
    for column in columns:
        name = path_names(column)[0].casefold()
        readers = list(dict.fromkeys(_readers(ctx, path, record, name)))
        if not readers:
            continue
        shown = [reader for reader in readers if reader]
        hidden = [f"{len(readers) - len(shown)} that you may not see"] if len(shown) < len(readers) else []
        more = [f"{len(shown) - _NAMED} more"] if len(shown) > _NAMED else []
        raise InvalidInputError(
            f"The column '{column}' is read by {', '.join([*shown[:_NAMED], *more, *hidden])}: change or drop these "
            "first, or say allow_breaking."
        )


def _readers(ctx: Context, path: Id, record: TableRecord, column: str) -> Iterator[str]:
    """Yield who reads a column, as text; "" for one that the caller may not see."""
    for policy in ctx.store.policies(record.id):
        if _policy_reads(policy, column):
            yield f"the policy '{policy.name}' of the table" if is_administrator(ctx) else "a policy of the table"
    for other, contract in ctx.store.tables_with_contracts(MAX_READERS):
        if other.id != record.id and (text := _foreign_key(contract, path, column)) is not None:
            yield _shown(ctx, other, f"the contract of {{name}} ({text})")
    for view in ctx.store.plain_views(MAX_READERS):
        plain = PlainView.from_properties(view.properties)
        if plain is not None and _has_word(plain.query, column):
            sources = plain_view_sources(plain.query)
            if any(tuple(path) in (source, (*plain.database, *source)) for source in sources):
                yield _shown(ctx, view, "the view {name}")
    made = ctx.store.lineage_from_table(record.id, MAIN.key, MAX_READERS)
    for number in dict.fromkeys(each.table_id for each in made):
        if number != record.id and (reader := _materialized_view(ctx, number, path, column)) is not None:
            yield _shown(ctx, reader, "the materialized view {name}")


def _policy_reads(record: PolicyRecord, column: str) -> bool:
    try:
        policy = Policy.from_record(record)
    except PermissionDeniedError:  # it cannot be read, and denies all rows whatever the columns are
        return False
    masked = {mask.column.casefold() for mask in policy.masks}
    texts = [policy.filter, *(mask.expression for mask in policy.masks)]
    return column in masked or any(_has_word(text, column) for text in texts if text)


def _foreign_key(contract: str, path: Id, column: str) -> str | None:
    """Return the check of a contract that refers to a column; None without one."""
    with suppress(RefusedError, ValueError):
        for each in Contract.from_json(contract).parsed():
            if each.check.kind == "foreign_key":
                *table, name = parse_typed_id(each.check.arguments[1])
                if tuple(table) == tuple(path) and name.casefold() == column:
                    return each.text
    return None


def _materialized_view(ctx: Context, number: int, path: Id, column: str) -> TableRecord | None:
    """Return the table of a materialized view whose query reads the column of a table; None for all else."""
    try:
        view = ctx.store.table_by_id(number)
        if ctx.store.describe_view(number) is None:
            return None
        schema = ctx.storage.datasets.open_for_reading(view.location).schema
    except LanceNamespaceError:  # it was dropped, or cannot be opened
        return None
    definition = ViewDefinition.from_metadata(schema.metadata)
    if definition is None or not _has_word(definition.query, column):
        return None
    with suppress(InvalidInputError):
        return view if str(path) in source_names(definition) else None
    return None


def _has_word(sql: str, column: str) -> bool:
    """Return whether a text has the name of a column, as a word or in quotes."""
    if not re.search(re.escape(column), sql, re.IGNORECASE):
        return False
    words = (token for token in TOKEN.finditer(sql) if token.lastgroup in ("word", "quoted"))
    return any(token[0].strip('"`').casefold() == column for token in words)


def _shown(ctx: Context, record: TableRecord, text: str) -> str:
    """Return the text with the table's name; "" for one that the caller may not see."""
    try:
        if not is_administrator(ctx) and not table_privileges(ctx, record):
            return ""
    except PermissionDeniedError:
        return ""
    found = ctx.store.object_path(_TABLE, record.id)
    return text.format(name=Id(found) if found is not None else record.name)


Path = tuple[str, ...]
"""The case-folded names of a field and the fields that it is in: Lance finds columns without case."""


def check_no_source(dataset: lance.LanceDataset, paths: Sequence[str], dropped: Sequence[str] = ()) -> None:
    """Check that no computed column reads the fields at these paths, besides the columns that are `dropped` with them.

    Raises InvalidInputError, which names the computed column.
    """
    changed = [fold_names(path_names(path)) for path in paths]
    for field in dataset.schema:
        declaration = None if field.name in dropped else read_declaration(field.metadata)
        if declaration is None:
            continue
        for source in source_paths(declaration):
            for path, text in zip(changed, paths, strict=True):
                if source[: len(path)] == path[: len(source)]:
                    raise InvalidInputError(
                        f"The column '{field.name}' is computed from '{text}': drop it first, or in the same request."
                    )


def source_paths(declaration: Declaration) -> Iterator[Path]:
    """Yield the paths of the fields that a declaration reads; of an expression, all names that may be fields."""
    if isinstance(declaration, ExpressionDeclaration):
        yield from _names_in(declaration.expression)
        return
    for path in declaration.inputs if isinstance(declaration, UdfDeclaration) else declaration.columns:
        with suppress(InvalidInputError):  # what a client wrote into the metadata is no path of any field
            yield fold_names(path_names(path))


def _names_in(expression: str) -> Iterator[Path]:
    """Yield the dotted names in an SQL expression, but for those of functions."""
    names: list[str] = []
    is_after_dot = False
    for token in TOKEN.finditer(expression):
        kind, text = token.lastgroup, token[0]
        if kind == "space":
            continue
        if kind in ("word", "quoted"):
            if names and not is_after_dot:
                yield tuple(names)
                names = []
            names.append((text[1:-1] if kind == "quoted" else text).casefold())
            is_after_dot = False
        elif text == "." and names:
            is_after_dot = True
        else:
            if names and kind != "open":
                yield tuple(names)
            names, is_after_dot = [], False
    if names:
        yield tuple(names)
