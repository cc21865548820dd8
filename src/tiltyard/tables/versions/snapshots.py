"""Snapshots: named, immutable sets of versions over tables.

Each version of a snapshot has a tag of the snapshot's name. So garbage collection keeps it, Lance's own as well, and
whatever reads a tag reads the snapshot. The set itself is a record in the catalog, made in three steps: the record,
incomplete; the tags; the record, complete. A server that is killed in between leaves no snapshot behind, but an
incomplete record, which says what tags there may be: they are removed by the next call that creates or drops that name,
or by a worker after ABANDONED_MS.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import are_allowed_outside, authorize_table, caller_rights, is_administrator
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import Id, check_ref, table_id
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import Privilege, privilege_names
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_format import tag_file
from tiltyard.storage.reference_files import list_references
from tiltyard.store.access.grants import TABLE
from tiltyard.store.tables.snapshots import SnapshotMember, SnapshotRecord
from tiltyard.tables.opening import check_version_number, find_table, open_for_reading, open_to_commit
from tiltyard.tables.versions.reference_changes import changing_reference
from tiltyard.tables.versions.removal_turns import confirm_reference
from tiltyard.tables.versions.tags import tags_of
from tiltyard.tables.versions.versions import list_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

MAX_TABLES = 1000
_MAX_TRIES = 50
"""How often the latest versions are looked up until no table has changed in between."""
_PAGE = 100
ABANDONED_MS = 10 * 60 * 1000
"""How long a call that makes or drops a snapshot may take: an incomplete one that is older is removed."""

log = logging.getLogger("tiltyard.snapshots")


# Who may do what


def _authorize_new(ctx: Context, request: models.CreateSnapshotRequest) -> Context:
    paths = [table_id(names) for names in request.tables]
    return ctx.with_resolved({path: authorize_table(ctx, path, Privilege.WRITE.value) for path in paths})


def _on_members(privilege: Privilege) -> Needs:
    """Need a privilege on all tables of the snapshot that exist; without `use` on one, there is no such snapshot."""

    def authorize(ctx: Context, request: Any) -> Context:
        record = ctx.store.find_snapshot(request.name)
        if record is None or not _is_visible(ctx, record):
            raise _not_found(request.name)
        for path in filter(None, _current_paths(ctx, record)):
            authorize_table(ctx, path, privilege.value)
        return ctx

    return Needs(f"`{privilege_names(privilege.value)[0]}` on each of its tables", authorize)


def _is_visible(ctx: Context, record: SnapshotRecord) -> bool:
    """Return whether the caller has `use` on all tables of a snapshot, and no policy of them binds it.

    A snapshot with a table that was dropped is seen by its creator alone.
    """
    if is_administrator(ctx) and ctx.services.decisions is None:
        return True
    tables = _tables(ctx, record)
    if not is_administrator(ctx):
        rights = caller_rights(ctx)
        if len(tables) < len(record.members) and record.created_by != ctx.principal.name:
            return False
        if not all(
            rights.allow(table, Privilege.USE.value) and rights.effective_policy(table.id) is None for table in tables
        ):
            return False
    return all(are_allowed_outside(ctx, TABLE, [table.id for table in tables]))


CREATE_SNAPSHOT = Needs("`write` on each table", _authorize_new)
SEE_SNAPSHOTS = Needs("nothing: the snapshots on all of whose tables the caller has `use`", lambda ctx, request: ctx)


# Operations


@operation(needs=CREATE_SNAPSHOT, entries="tables")
def create_snapshot(ctx: Context, request: models.CreateSnapshotRequest) -> models.CreateSnapshotResponse:
    """Name the latest versions of some tables, all as of one moment; with `at_millis` those that were it then.

    With `versions` those, one for each table. Raises InvalidInputError (a name that no tag can have; no table, one
    twice, or more than MAX_TABLES; a moment that is to come; not a version for each table), TableVersionNotFoundError
    (a table has no version of then, or not that one), TableTagAlreadyExistsError (a snapshot, or a tag of one of the
    tables, has the name), ConcurrentModificationError, UnsupportedOperationError (below a mount),
    NamespaceNotFoundError, TableNotFoundError, InvalidTableStateError.
    """
    name, paths = check_ref(request.name, "snapshot"), _member_paths(ctx, request)
    existing = ctx.store.find_snapshot(name)
    if existing is not None and existing.is_complete:
        raise _exists(name)
    token = uuid4().hex
    if existing is not None:
        if not ctx.store.claim_incomplete_snapshot(existing, token):
            raise _overtaken(name)
        _drop_tags(ctx, existing)
    members = _chosen_versions(ctx, request, paths)
    _check_no_tag(ctx, paths, name)
    if not ctx.store.begin_snapshot(name, token, ctx.principal.name, members):
        raise _exists(name)
    try:
        for path, member in zip(paths, members, strict=True):
            _create_tag(ctx, ctx.find_table(path), name, member.version)
        if not ctx.store.complete_snapshot(name, token):
            raise _overtaken(name)
    except LanceNamespaceError:
        _withdraw(ctx, SnapshotRecord(name, token, False, 0, ctx.principal.name, tuple(members)))
        raise
    return models.CreateSnapshotResponse(snapshot=_entry(ctx, _find(ctx, name)))


def _member_paths(ctx: Context, request: models.CreateSnapshotRequest) -> list[Id]:
    """Return the ids of the tables of a request. Raises as `create_snapshot` does."""
    paths = [table_id(names) for names in request.tables]
    if not 0 < len(set(paths)) == len(paths) <= MAX_TABLES:
        raise InvalidInputError(f"A snapshot has 1 to {MAX_TABLES} tables, each of them once.")
    for path in paths:
        if ctx.services.mounts.find(path) is not None:
            raise UnsupportedOperationError(f"{path} is below a mount: a snapshot has tables of this catalog alone.")
    return paths


@operation(needs=_on_members(Privilege.USE), changes=False)
def describe_snapshot(ctx: Context, request: models.DescribeSnapshotRequest) -> models.DescribeSnapshotResponse:
    """Return the tables of a snapshot by their present names, with their versions. Raises TableTagNotFoundError."""
    return models.DescribeSnapshotResponse(snapshot=_entry(ctx, _find(ctx, request.name)))


@operation(needs=SEE_SNAPSHOTS, changes=False)
def list_snapshots(ctx: Context, request: models.ListSnapshotsRequest) -> models.ListSnapshotsResponse:
    """List the snapshots that the caller sees, by name. Raises InvalidInputError."""
    records, token = ctx.paging.fetch_page(
        "snapshots",
        request.page_token,
        request.limit,
        ctx.store.list_snapshots,
        lambda record: record.name,
        is_listed=partial(_is_visible, ctx),
    )
    return models.ListSnapshotsResponse(snapshots=[_entry(ctx, record) for record in records], page_token=token)


@operation(needs=_on_members(Privilege.WRITE))
def drop_snapshot(ctx: Context, request: models.DropSnapshotRequest) -> models.DropSnapshotResponse:
    """Drop a snapshot, also an incomplete one, with its tags; the versions are kept no longer than others.

    Raises TableTagNotFoundError, ConcurrentModificationError.
    """
    record = ctx.store.find_snapshot(request.name)
    if record is None:
        raise _not_found(request.name)
    drop_snapshot_record(ctx, record, uuid4().hex)
    return models.DropSnapshotResponse()


def drop_snapshot_record(ctx: Context, record: SnapshotRecord, token: str) -> None:
    """Drop a snapshot with its tags; `token` is of this call alone. Raises as `drop_snapshot` does."""
    if not ctx.store.begin_snapshot_drop(record.name, token):
        raise _not_found(record.name)
    _drop_tags(ctx, record)
    if not ctx.store.drop_snapshot(record.name, token) and ctx.store.find_snapshot(record.name) is not None:
        raise _overtaken(record.name)


def sweep_snapshots(ctx: Context) -> int:
    """Remove snapshots that a call has left incomplete, with their tags; return how many.

    One whose tags cannot be deleted now is tried again after ABANDONED_MS.
    """
    removed = 0
    while (record := ctx.store.find_abandoned_snapshot(ctx.clock() - ABANDONED_MS)) is not None:
        token = uuid4().hex
        if not ctx.store.claim_incomplete_snapshot(record, token):
            continue
        try:
            _drop_tags(ctx, record)
        except LanceNamespaceError as error:
            log.warning("the tags of the incomplete snapshot '%s' are not deleted yet: %s", record.name, error)
        else:
            removed += ctx.store.drop_snapshot(record.name, token)
    return removed


def _latest_versions(ctx: Context, paths: Sequence[Id]) -> list[SnapshotMember]:
    """Return the latest version of each table, which all had at one moment. Raises ConcurrentModificationError.

    Versions only grow, so two rounds with the same ones say that none changed between them.
    """
    previous: list[SnapshotMember] | None = None
    for _ in range(_MAX_TRIES):
        opened = [open_for_reading(ctx, path) for path in paths]
        latest = [
            SnapshotMember(table.record.id, int(table.dataset.version), tuple(path))
            for path, table in zip(paths, opened, strict=True)
        ]
        if latest == previous or len(paths) == 1:
            return latest
        previous = latest
    raise ConcurrentModificationError("Commits to the tables do not pause: take the snapshot again.")


def _chosen_versions(ctx: Context, request: models.CreateSnapshotRequest, paths: Sequence[Id]) -> list[SnapshotMember]:
    """Return the versions that a request asks for. Raises as `create_snapshot` does."""
    if request.at_millis is not None and request.versions is not None:
        raise InvalidInputError("at_millis and versions both say which versions: leave one out.")
    if request.at_millis is not None:
        return [_version_at(ctx, path, request.at_millis) for path in paths]
    return _latest_versions(ctx, paths) if request.versions is None else _given_versions(ctx, paths, request.versions)


def _version_at(ctx: Context, path: Id, at_ms: int) -> SnapshotMember:
    """Return the version of a table that was its latest at a moment, by the times of versions.

    Raises InvalidInputError, TableVersionNotFoundError.
    """
    if at_ms > ctx.clock():
        raise InvalidInputError("The moment of a snapshot is to come: what is committed until then is not known yet.")
    record, token, newer = find_table(ctx, path), None, None
    while True:
        request = models.ListTableVersionsRequest(descending=True, limit=_PAGE, page_token=token)
        page = list_versions(ctx, record, request)
        for version in page.versions:
            if version.timestamp_millis is not None and version.timestamp_millis <= at_ms:
                if newer not in (None, version.version + 1):
                    raise TableVersionNotFoundError(f"The version of {path} of that moment was removed.")
                return SnapshotMember(record.id, version.version, tuple(path))
            newer = version.version
        if (token := page.page_token) is None:
            raise TableVersionNotFoundError(f"{path} has no version of that moment: the oldest one is younger.")


def _given_versions(ctx: Context, paths: Sequence[Id], versions: Sequence[int]) -> list[SnapshotMember]:
    """Return the versions that a request has, of which each exists. Raises as `create_snapshot` does."""
    if len(versions) != len(paths):
        raise InvalidInputError(f"There are {len(paths)} tables and {len(versions)} versions: give one for each table.")
    for version in versions:
        check_version_number(version)
    return [
        SnapshotMember(open_for_reading(ctx, path, version=version).record.id, version, tuple(path))
        for path, version in zip(paths, versions, strict=True)
    ]


def _check_no_tag(ctx: Context, paths: Sequence[Id], name: str) -> None:
    for path in paths:
        if name in tags_of(ctx, open_for_reading(ctx, path)):
            raise TableTagAlreadyExistsError(f"{path} has a tag '{name}': a snapshot needs a name that is free.")


def _create_tag(ctx: Context, record: TableRecord, name: str, version: int) -> None:
    """Create the tag of a member. Raises ConcurrentModificationError if it is elsewhere."""
    dataset = open_to_commit(ctx, record, MAIN)
    try:
        with changing_reference(ctx, record, tag_file(name)), lance_errors(dataset):
            dataset.tags.create(name, (None, version))
    except TableTagAlreadyExistsError as error:
        tag: Any = list_references(dataset.tags).get(name)
        if tag is None or tag["version"] != version:
            raise _overtaken(name) from error
    confirm_reference(ctx, record, MAIN, version, lambda: None)  # what a failure leaves is withdrawn by the caller


def _withdraw(ctx: Context, record: SnapshotRecord) -> None:
    """Delete what a call has made that cannot complete its snapshot, but for what is another call's of that name."""
    present = ctx.store.find_snapshot(record.name)
    is_own = present is not None and present.token == record.token
    if present is not None and is_own and present.is_complete:  # the database lost its answer, not the snapshot
        return
    others = () if present is None or is_own else present.members
    kept = {(member.table_id, member.version) for member in others}
    members = tuple(member for member in record.members if (member.table_id, member.version) not in kept)
    _drop_tags(ctx, replace(record, members=members))
    ctx.store.drop_snapshot(record.name, record.token)


def _drop_tags(ctx: Context, record: SnapshotRecord) -> None:
    """Delete the tags of a snapshot that are there; tables may be dropped, and tags be missing."""
    versions = {member.table_id: member.version for member in record.members}
    for table in _tables(ctx, record):
        dataset = open_to_commit(ctx, table, MAIN)
        ctx.storage.manifests.check_references(table.location)
        with lance_errors(dataset):
            tag = list_references(dataset.tags).get(record.name)
        if tag is not None and tag["version"] == versions[table.id] and not tag["branch"]:
            removing = changing_reference(ctx, table, tag_file(record.name))
            with suppress(TableTagNotFoundError, TableNotFoundError), removing, lance_errors(dataset):
                dataset.tags.delete(record.name)


# Reading


def _find(ctx: Context, name: str) -> SnapshotRecord:
    record = ctx.store.find_snapshot(name)
    if record is None or not record.is_complete:
        raise _not_found(name)
    return record


def _tables(ctx: Context, record: SnapshotRecord) -> list[TableRecord]:
    """Return the tables of a snapshot that exist."""
    tables = []
    for member in record.members:
        with suppress(TableNotFoundError):
            tables.append(ctx.store.table_by_id(member.table_id))
    return tables


def _current_paths(ctx: Context, record: SnapshotRecord) -> list[Id | None]:
    """Return the present ids of a snapshot's tables, None for one that was dropped."""
    paths = [ctx.store.object_path(TABLE, member.table_id) for member in record.members]
    return [None if path is None else Id(path) for path in paths]


def _entry(ctx: Context, record: SnapshotRecord) -> models.SnapshotEntry:
    tables = [
        models.SnapshotTable(id=list(member.path if path is None else path), version=member.version)
        for member, path in zip(record.members, _current_paths(ctx, record), strict=True)
    ]
    return models.SnapshotEntry(
        name=record.name, tables=tables, created_at_millis=record.created_at, created_by=record.created_by
    )


def _not_found(name: str) -> TableTagNotFoundError:
    return TableTagNotFoundError(f"There is no snapshot '{name}': list the snapshots to see which there are.")


def _exists(name: str) -> TableTagAlreadyExistsError:
    return TableTagAlreadyExistsError(
        f"There is a snapshot '{name}', and it is immutable: drop it, or use another name."
    )


def _overtaken(name: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Another call makes or drops the snapshot '{name}': look at it, or try again.")
