"""What an erasure reaches: the table, clones and tables made from it, dropped tables, what refers to old versions.

What protects any of it is found before anything is changed: legal holds, tags and snapshots of versions that have the
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

from tiltyard.access.authorization import (
    authorize_record,
    authorize_table,
    caller_rights,
    missing_privileges,
    require_decision,
)
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.ids import Id
from tiltyard.model.principals import Privilege
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.reference_files import list_references
from tiltyard.store.access.grants import TABLE
from tiltyard.store.repository import display_path
from tiltyard.tables.erasure.reach import MAX_DOWNSTREAM, Reach
from tiltyard.tables.upkeep.references import open_branches
from tiltyard.tables.versions.records import stored_versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import RemovedTable, TableRecord

PRIVILEGES = Privilege.READ | Privilege.WRITE | Privilege.ALTER | Privilege.DROP
"""What an erasure needs on each table that it changes: it deletes rows, rewrites files, and ends versions for good."""
_COMMITS = 200
"""Commits of lineage that are read of one table."""
_PAGE = 500


class ScopeKind(StrEnum):
    """What a table is to an erasure."""

    OWN = "table"
    CLONE = "clone"
    """A shallow clone, which uses files of another one."""
    DERIVED = "derived"
    """Made from other ones, with copies of the columns of the condition."""
    VIEW = "view"
    """A materialized view that is computed anew, since the condition cannot be told there."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is erased from: tables, clones before what they were cloned from, and dropped tables that have the rows.

    `kinds` says what each table is, by its id; `conditions` what selects the rows in it, which views that are computed
    anew have none of; these come last, each after its sources. `clones` has the table that each clone is of.
    `unsettled` are sentences about tables that lineage says were made from these, and that are not erased from, with
    what to do.
    """

    tables: tuple[TableRecord, ...]
    kinds: Mapping[int, ScopeKind]
    conditions: Mapping[int, str]
    clones: Mapping[int, int]
    dropped: tuple[RemovedTable, ...]
    unsettled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A tag of a version that has the rows, or had them before; `is_snapshot` says that it is a snapshot's."""

    tag: str
    branch: Branch
    version: int
    is_snapshot: bool


def find_scope(ctx: Context, table: TableRecord, path: Sequence[str], predicate: str) -> Scope:
    """Return what an erasure from a table reaches. Reads what dropped tables have. Raises ServiceUnavailableError."""
    removed = {each.id: each for each in _removed_tables(ctx)}
    reach = Reach(ctx, table, removed)
    kinds, conditions, settled, views = {table.id: ScopeKind.OWN}, {table.id: predicate}, [table], []
    for number in reach.order:
        condition = reach.derive_condition(number, conditions)
        if condition is not None:
            conditions[number] = condition
        found = reach.record_of(number)
        if found is not None and condition is not None:
            kinds[number] = ScopeKind.CLONE if number in reach.clones else ScopeKind.DERIVED
            settled.append(found)
        elif found is not None and reach.sources_of(number) <= kinds.keys() and reach.is_view(number):
            kinds[number] = ScopeKind.VIEW
            views.append(found)
    settled.sort(key=lambda each: each.id, reverse=True)  # a clone comes after its source
    dropped, unsettled = [], list[str]()
    for each in removed.values():
        is_namesake, source = (*each.namespace, each.name) == tuple(path), reach.clone_locations.get(each.location)
        if is_namesake or source is not None or each.id in reach.ids:
            condition = predicate if is_namesake else conditions.get(each.id if source is None else source)
            if condition is None and not each.dropped:
                name = display_path((*each.namespace, each.name))
                unsettled.append(f"{name} was deregistered, and was made from these tables: look at it by hand.")
            elif condition is None or has_rows(ctx, each.location, condition):
                dropped.append(each)
    unsettled += filter(None, map(reach.describe, sorted(reach.ids - kinds.keys() - removed.keys())))
    if reach.is_cut:
        unsettled.append(f"More than {MAX_DOWNSTREAM} tables were made from these: not all of them were looked at.")
    return Scope((*settled, *views), kinds, conditions, reach.clones, tuple(dropped), tuple(unsettled))


def _removed_tables(ctx: Context) -> Iterator[RemovedTable]:
    before: tuple[int, int] | None = None
    while page := ctx.store.list_removed_tables(before, _PAGE):
        yield from page
        before = page[-1].removed_at, page[-1].id


def name_of(ctx: Context, number: int) -> str:
    """Return the id of a table as messages show it; "" for one that is gone."""
    path = ctx.store.object_path(TABLE, number)
    return "" if path is None else str(Id(path))


def sources_of(ctx: Context, table: TableRecord) -> list[str]:
    """Return the tables and places that a table was made from, as lineage has them, each once."""
    names = dict[str, None]()
    for record in ctx.store.lineage_of(table.id, MAIN.key, None, _COMMITS):
        names.update(dict.fromkeys(source.name for source in record.sources))
    return list(names)


# Which versions have the rows


def has_rows(ctx: Context, location: str, predicate: str) -> bool:
    """Return whether any version of a table at a location has rows that match, deleted ones included.

    One that cannot be read, or lacks a column of the condition, may have them. Raises ServiceUnavailableError.
    """
    try:
        branches = open_branches(ctx, location)
        for branch, dataset in branches.items():
            with lance_errors(dataset):
                numbers = [int(entry["version"]) for entry in dataset.version_refs()]
            if any(version_has_rows(dataset, branch, number, predicate) for number in sorted(numbers)):
                return True
    except TableNotFoundError:
        return False
    except LanceNamespaceError:
        return True
    return False


def version_has_rows(dataset: lance.LanceDataset, branch: Branch, version: int, predicate: str) -> bool:
    """Return whether the files of a version have rows that match, also such as its deletion files hide.

    True where it cannot be told: the version lacks a column, or is not whole.
    """
    try:
        with lance_errors(dataset):
            return count_stored(dataset.checkout_version((branch.lance_name, version)), predicate) > 0
    except LanceNamespaceError:
        return True


def count_stored(dataset: lance.LanceDataset, predicate: str, limit: int | None = 1) -> int:
    """Return how many rows of a version's files match, up to `limit`, deleted ones included. Raises Lance's errors."""
    scanner = dataset.scanner(
        columns=[],
        filter=predicate,
        with_row_id=True,
        include_deleted_rows=True,
        use_scalar_index=False,
        late_materialization=False,
        limit=limit,
    )
    return int(scanner.to_table().num_rows)


def find_references(
    ctx: Context,
    table: TableRecord,
    predicate: str | None,
    branches: Mapping[Branch, lance.LanceDataset],
    first_clean: Mapping[Branch, int] | None = None,
) -> list[Reference]:
    """Return the tags of versions that have the rows, or follow one that has.

    An index of a later version may have values of rows that are in its data no more. Of a view without a condition, any
    version of main may have the rows. Those from `first_clean` on have none, by branch.
    """
    if MAIN not in branches:
        return []
    with lance_errors(branches[MAIN]):
        tags: dict[str, Any] = list_references(branches[MAIN].tags)
    firsts: dict[Branch, int | None] = {}
    found = []
    for name, tag in sorted(tags.items()):
        branch = Branch.parse(tag["branch"])
        if branch not in branches:
            continue
        version = int(tag["version"])
        if first_clean is not None and version >= first_clean.get(branch, version + 1):
            continue
        if predicate is None:
            has_any = branch.is_main
        else:
            if branch not in firsts:
                firsts[branch] = _first_with_rows(ctx, table, branch, branches, predicate)
            has_any = version >= first if (first := firsts[branch]) is not None else False
        if has_any:
            is_snapshot = ctx.store.is_in_snapshot(name, table.id)
            found.append(Reference(name, branch, version, is_snapshot))
    return found


def _first_with_rows(
    ctx: Context, table: TableRecord, branch: Branch, branches: Mapping[Branch, lance.LanceDataset], predicate: str
) -> int | None:
    """Return the first version of a branch that has rows which match; None without one.

    A branch that began at a version of another one with the rows may have their values in its indexes: all of it
    counts.
    """
    versions = sorted(stored_versions(ctx, table, branch))
    if not branch.is_main:
        with lance_errors(branches[MAIN]):
            about: Any = list_references(branches[MAIN].branches).get(branch.name)
        parent = Branch.parse(about["parent_branch"]) if about else MAIN
        first = _first_with_rows(ctx, table, parent, branches, predicate) if parent in branches else None
        if about and first is not None and int(about["parent_version"]) >= first:
            return versions[0] if versions else None
    dataset = branches[branch]
    return next((each for each in versions if version_has_rows(dataset, branch, each, predicate)), None)


# What is refused


def check_rights(ctx: Context, scope: Scope) -> None:
    """Check that the caller may erase from all that is in the scope. Raises PermissionDeniedError, …NotFoundError."""
    if ctx.is_unchecked:
        return
    for table in scope.tables:
        path = ctx.store.object_path(TABLE, table.id)
        if path is not None:
            _check_table(ctx, Id(path), table)
    for removed in scope.dropped:
        missing = PRIVILEGES.value & ~caller_rights(ctx).on_table(removed.id, removed.namespace_id)
        if missing:
            raise missing_privileges(missing, f"a dropped table that has these rows ({removed.id})")
        require_decision(ctx, TABLE, (*removed.namespace, removed.name), PRIVILEGES.value)


def _check_table(ctx: Context, path: Id, table: TableRecord) -> None:
    """Check the rights on a table that the caller has not named, and may not see. Raises PermissionDeniedError."""
    try:
        authorize_record(ctx, path, table, PRIVILEGES.value)
    except (TableNotFoundError, NamespaceNotFoundError):
        raise PermissionDeniedError(
            "Another table, which you may not see, uses files of this one or was made from it: ask somebody who may "
            "erase from both. Nothing was changed."
        ) from None


def refuse_held(ctx: Context, scope: Scope) -> None:
    """Raise PermissionDeniedError for a table under a legal hold, dropped ones included: it names who has set it."""
    for number, what in (
        *((table.id, f"Rows of {name_of(ctx, table.id)}") for table in scope.tables),
        *((each.id, f"The dropped table {display_path((*each.namespace, each.name))}") for each in scope.dropped),
    ):
        ctx.store.refuse_under_hold(number, what)


def refuse_protected(ctx: Context, scope: Scope, *, end_protected: bool, supersede_tags: bool) -> None:
    """Check that nothing of the scope keeps rows which match. Nothing is changed.

    Raises PermissionDeniedError (a legal hold), InvalidInputError (tags and snapshots, unless they are to be ended, or
    tags to be superseded; a branch or a clone on which the condition cannot be computed), and with `end_protected` as
    DropSnapshot does for its tables.
    """
    refuse_held(ctx, scope)
    for removed in scope.dropped:
        if not removed.dropped:
            name = display_path((*removed.namespace, removed.name))
            raise InvalidInputError(
                f"{name} was deregistered, and has these rows: register it again and erase from it, or delete its "
                "files. Nothing was changed."
            )
    names = []
    for table in scope.tables:
        branches, predicate = open_branches(ctx, table.location), scope.conditions.get(table.id)
        if predicate is not None:
            for branch, dataset in branches.items():
                _check_condition(ctx, table, branch, dataset, predicate)
        for reference in find_references(ctx, table, predicate, branches):
            kind = "snapshot" if reference.is_snapshot else "tag"
            if kind == "tag" and supersede_tags and predicate is not None:
                continue
            names.append(f"the {kind} '{reference.tag}' of {name_of(ctx, table.id)} (version {reference.version})")
            if reference.is_snapshot and end_protected and not ctx.is_unchecked:
                _check_snapshot_rights(ctx, reference.tag)
    if names and not end_protected:
        raise InvalidInputError(
            f"These versions have the rows, or had them before, and are kept: {'; '.join(names)}. Nothing was changed. "
            "Delete them first, or say that they end, too (end_protected, --end-protected), or that tags move to what "
            "is left of their versions (supersede_tags, --supersede-tags)."
        )


def _check_condition(
    ctx: Context, table: TableRecord, branch: Branch, dataset: lance.LanceDataset, predicate: str
) -> None:
    """Raise InvalidInputError if a condition cannot be planned on a branch: it may have a column under another name."""
    try:
        with lance_errors(dataset):
            dataset.scanner(columns=[], filter=predicate, with_row_id=True).explain_plan()
    except LanceNamespaceError as error:
        raise InvalidInputError(
            f"The condition finds no rows on the branch '{branch.name}' of {name_of(ctx, table.id)}: {error} "
            "Nothing was changed. Give its columns the same names there, or delete it."
        ) from error


def _check_snapshot_rights(ctx: Context, name: str) -> None:
    """Check that the caller may drop a snapshot: that takes `write` on each of its tables."""
    snapshot = ctx.store.find_snapshot(name)
    for member in snapshot.members if snapshot else ():
        path = ctx.store.object_path(TABLE, member.table_id)
        if path is not None:
            authorize_table(ctx, Id(path), Privilege.WRITE.value)
