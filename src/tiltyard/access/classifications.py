"""What a table and its columns are classified as: by themselves, the namespaces above, what they were made from.

The nearest value of a key counts: that of a column before that of its table, that before the namespaces'. A column is
found in a version by Lance's id of its field or by its path: renaming keeps the one, a cast the other. A dropped column
is found by both together, so only in an earlier version that was restored.

A column of a view, a computed column, or one of a table that a job made inherits from its inputs, as the catalog's
index of lineage knows them. Where it is not known which columns a commit has read, each column that it made counts as
made from all of them. Nothing is known of a materialized view whose first refresh is not in the index yet: any policy
masks it. Values that a column has itself come before these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import PermissionDeniedError

from tiltyard.model.branches import MAIN
from tiltyard.model.columns.lineage import ANY_COLUMN, Derivation, inputs_of
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.store.access.classifications import COLUMN
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    import lance

    from tiltyard.store import ClassificationRecord, ClassifiedColumn, Store
    from tiltyard.store.access.classifications import Identity
    from tiltyard.store.tables.lineage import LineageRecord


@dataclass(frozen=True, slots=True)
class TableClassifications:
    """What is set on a table and above it, by key, and on its columns, each by key.

    `derived` are columns, keys and values that columns inherit from those that they were made from: the value is None,
    and the key "", of a column of which nothing is known.
    """

    inherited: Mapping[str, ClassificationRecord] = field(default_factory=dict)
    columns: Mapping[ClassifiedColumn, Mapping[str, ClassificationRecord]] = field(default_factory=dict)
    derived: tuple[tuple[str, str, str | None], ...] = ()


def classifications_of_namespace(store: Store, namespace_id: int) -> dict[str, ClassificationRecord]:
    """Return what a namespace is classified as, itself or above it, by key. Raises ServiceUnavailableError."""
    nearest: dict[str, ClassificationRecord] = {}
    for record in store.classifications_above(namespace_id):
        nearest.setdefault(record.key, record)
    return nearest


def classifications_of_table(store: Store, table_id: int) -> TableClassifications:
    """Return what a table and its columns are classified as. Raises ServiceUnavailableError."""
    namespace_id = store.namespace_of_table(table_id)
    above = {} if namespace_id is None else classifications_of_namespace(store, namespace_id)
    own = {record.key: record for record in store.classifications_on(TABLE, [table_id])}
    columns = store.classified_columns(table_id)
    by_id: dict[int, dict[str, ClassificationRecord]] = {}
    for record in store.classifications_on(COLUMN, [column.id for column in columns]):
        by_id.setdefault(record.object_id, {})[record.key] = record
    return TableClassifications(above | own, {column: by_id[column.id] for column in columns if column.id in by_id})


def is_column(column: ClassifiedColumn, identity: Identity) -> bool:
    """Return whether a classified column is the field of a version with this id and path."""
    number, path = identity
    if column.path is not None and (number == column.field_id or path.casefold() == column.path.casefold()):
        return True
    return any(number == old and path.casefold() == name.casefold() for old, name in column.earlier)


def field_identities(dataset: lance.LanceDataset) -> Iterator[Identity]:
    """Yield the id and the path of each field of a version, nested ones after those that they are in."""
    for each in dataset.lance_schema.fields():
        yield from identities_in(each)


def identities_in(each: Any, above: tuple[str, ...] = ()) -> Iterator[Identity]:  # pylance's stubs lack LanceField
    """Yield the id and the path of a field of Lance's, and of those in it."""
    path = (*above, each.name())
    yield each.id(), quote_path(path)
    for child in each.children():
        yield from identities_in(child, path)


MAX_TABLES_ABOVE = 500
"""Tables that one table was made from, step by step, whose classifications it inherits: of more it is not known."""
_COMMITS = 200
"""Commits of one table that are followed; jobs that recur are one each."""


@dataclass(frozen=True, slots=True)
class DerivedClassification:
    """A key and a value that a column inherits from a column of a table that it was made from.

    `column` and `source_column` are ANY_COLUMN where it is not known which; `value` is None, and there is no source,
    where nothing is known at all; the key is "" then.
    """

    column: str
    key: str
    value: str | None
    source_id: int | None = None
    source_column: str = ANY_COLUMN
    is_unknown: bool = False


_NOTHING_KNOWN = DerivedClassification(ANY_COLUMN, "", None, is_unknown=True)


@dataclass(frozen=True, slots=True)
class Derived:
    """What the columns of a table inherit by lineage, and the tables of which it is not known what they gave."""

    classifications: tuple[DerivedClassification, ...] = ()
    unknown_sources: frozenset[int] = frozenset()


def derived_classifications(
    store: Store, table_id: int, lineage_of_view: Callable[[int], Sequence[LineageRecord]] | None = None
) -> Derived:
    """Return what the columns of a table inherit by lineage; of a plain view, by what `lineage_of_view` says.

    Raises ServiceUnavailableError, PermissionDeniedError for a table that was made from too many.
    """
    made = _commits_above(store, table_id, lineage_of_view or (lambda number: ()))
    steps = {number: [step for record in records for step in _steps(record)] for number, records in made.items()}
    found: dict[int, set[DerivedClassification]] = {
        number: {_NOTHING_KNOWN} if _is_unknown(store, number, records) else set() for number, records in made.items()
    }
    if any(steps.values()):
        tables = {number: list(_set_on(classifications_of_table(store, number))) for number in made}
        _spread(steps, tables, found)
    unread = (record for record in made[table_id] if record.columns is None)
    unknown = frozenset(source for record in unread for source in record.source_ids if source is not None)
    entries = sorted(found[table_id], key=lambda each: (each.column, each.key, each.value or "", each.source_column))
    return Derived(tuple(entries), unknown)


def _commits_above(
    store: Store, table_id: int, lineage_of_view: Callable[[int], Sequence[LineageRecord]]
) -> dict[int, Sequence[LineageRecord]]:
    """Return the commits of a table and of those that it was made from, step by step, the nearest first."""
    made: dict[int, Sequence[LineageRecord]] = {}
    waiting = deque([table_id])
    while waiting:
        number = waiting.popleft()
        if number in made:
            continue
        if len(made) >= MAX_TABLES_ABOVE:
            raise PermissionDeniedError(
                f"This table was made from more than {MAX_TABLES_ABOVE} others, whose classifications it inherits: "
                "nothing is shown to those whom a policy by a classification binds."
            )
        made[number] = lineage_of_view(number) or store.lineage_of(number, MAIN.key, None, _COMMITS + 1)
        waiting += [step.source for record in made[number] for step in _steps(record)]
    return made


def _is_unknown(store: Store, table_id: int, records: Sequence[LineageRecord]) -> bool:
    return len(records) > _COMMITS or (not records and store.describe_view(table_id) is not None)


def _spread(
    steps: Mapping[int, Sequence[_Step]],
    tables: Mapping[int, Sequence[_Value]],
    found: dict[int, set[DerivedClassification]],
) -> None:
    """Add what tables inherit to `found`, the farthest first, until nothing comes any more: they may be in a circle."""
    is_changed = True
    while is_changed:
        is_changed = False
        for number in reversed(list(steps)):
            before = len(found[number])
            for step in steps[number]:
                values = (_Value(each.column, each.key, each.value) for each in found[step.source])
                found[number].update(_inherited(step, [*tables[step.source], *values]))
            is_changed |= len(found[number]) > before


@dataclass(frozen=True, slots=True)
class _Step:
    """A column that a commit made, and one of a table that it was made from."""

    column: str
    source: int
    source_column: str
    how: Derivation


@dataclass(frozen=True, slots=True)
class _Value:
    """What a column is classified as; ANY_COLUMN is each that has not the key `is_own`, by itself."""

    column: str
    key: str
    value: str | None
    is_own: bool = False


def _inherited(step: _Step, values: Sequence[_Value]) -> Iterator[DerivedClassification]:
    """Yield what a column inherits in a step: the values of the column that it was made from, or of each."""
    is_any = step.source_column == ANY_COLUMN
    is_copy = step.column == ANY_COLUMN and is_any and step.how is Derivation.DIRECT
    is_unknown = step.how is Derivation.UNKNOWN
    own = {each.key for each in values if each.is_own and _is_same(each.column, step.source_column)}
    for each in values:
        if not (is_any or each.column == ANY_COLUMN or _is_same(each.column, step.source_column)):
            continue
        if each.key not in own or each.is_own:
            to, source_column = (each.column, each.column) if is_copy else (step.column, step.source_column)
            if is_any and not is_copy:
                source_column = each.column
            yield DerivedClassification(to, each.key, each.value, step.source, source_column, is_unknown)


def _set_on(table: TableClassifications) -> Iterator[_Value]:
    """Yield what is set on the columns of a table, as those of its top-level columns, and what they inherit from it."""
    for column, by_key in table.columns.items():
        path = column.path or ANY_COLUMN  # a dropped column is in versions that others were made from
        top = path.partition(".")[0].strip("`")
        for record in by_key.values():
            yield _Value(top, record.key, record.value, path != ANY_COLUMN and "." not in path)
    for inherited in table.inherited.values():
        yield _Value(ANY_COLUMN, inherited.key, inherited.value)


def _steps(record: LineageRecord) -> Iterator[_Step]:
    """Yield the columns that a commit made, each with one of a table's main branch that it was made from."""
    if record.columns is None:
        pairs = [(ANY_COLUMN, each) for each in inputs_of(None, len(record.sources), ANY_COLUMN)]
    else:
        pairs = [(origin.column, each) for origin in record.columns for each in origin.inputs]
    for column, each in pairs:
        source = record.source_ids[each.source]
        if source is not None and each.how is not Derivation.CONSTANT:
            yield _Step(column, source, each.column, each.how)


def _is_same(name: str, column: str) -> bool:
    return name.casefold() == column.casefold()
