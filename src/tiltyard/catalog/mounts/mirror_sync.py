"""Sync a mirror: make the entries in another catalog those that its tables of ours should have there.

Our tables are compared with what was written (`published_entries`), and the other catalog is called for differences
alone. Each change there is recorded before and after it: where a server stops in between, the next sync finds what was
begun, looks whether it is there, and goes on. So a sync may be repeated at any point, and ends in the same entries.

An entry is ours if it has the two properties that say so; where the other catalog keeps no properties, if we have begun
to write it and its location is that of our table. No other entry is changed or removed. Between the look at an entry
and its change another client may replace it: no catalog has a request that does both, but for Glue and Iceberg.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.runtime.lease import LEASE_MS, Lease
from tiltyard.storage.locations import canonical_location
from tiltyard.store import PublishedEntry, SyncOutcome, TableProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tiltyard.context import Context
    from tiltyard.mounts import MountedCatalog, MountedTable
    from tiltyard.store import MirrorRecord
    from tiltyard.store.mounts.mirrors import OwnNamespace, OwnTable

log = logging.getLogger("tiltyard.publications")

PUBLISH_TO = "tiltyard.publish_to"
"""The property of a table, or of a namespace for the tables below it, with names of publications, commas between."""
CATALOG_ID, TABLE_ID, ENTRY_COLUMNS = "tiltyard.catalog_id", "tiltyard.table_id", "tiltyard.columns"
"""Properties of an entry: which catalog and which table of it has written it, and what columns the table has."""
MAX_PROPERTY_LENGTH = 4000
"""Of a property's value: metastores keep no more."""

CHECK_MS = 60_000
"""How long after a sync the next one is due for what no change of our catalog tells: problems, columns of tables."""
VERIFY_MS = 3_600_000
"""How long it is relied on that entries in the other catalog are as they were written."""
FIRST_PAUSE_MS, MAX_PAUSE_MS = 2_000, 300_000
"""How long a catalog that has failed is left alone: twice as long after each further failure."""

_OUTAGES = (ServiceUnavailableError, ThrottlingError, UnauthenticatedError)
"""Errors of a whole catalog, and not of an entry."""
_CONFLICT = "The other catalog has an entry of somebody else under this name, {}: rename one of the two, or remove it."


class LeaseLostError(Exception):
    """Another server syncs the mirror now, or it was dropped."""


class _StoppedError(Exception):
    """There is no more time: whoever holds the lease next goes on."""


class _ConflictError(Exception):
    """The entry is somebody else's."""


class _Target(msgspec.Struct, frozen=True):
    """The entry that a table should have; its `digest` is None where it is not known to differ from what is there."""

    table_id: int
    path: Id
    entry: Id
    location: str
    properties: Mapping[str, str]
    digest: str | None


def is_due(mirror: MirrorRecord, fingerprint: str, now: int) -> bool:
    """Return whether a mirror is to be synced, if nobody does that already."""
    has_changes = mirror.error is None and mirror.fingerprint != fingerprint
    return mirror.due_at <= now or has_changes


def try_sync(ctx: Context, mirror_id: int, is_stopping: Callable[[], bool], *, verify: bool = False) -> bool:
    """Sync a mirror, unless another does so now or it is gone; return whether it was. Raises as `sync` does."""
    owner = uuid4().hex
    claimed = ctx.store.claim_mirror(mirror_id, owner, LEASE_MS)
    if claimed is not None:
        sync(ctx, claimed, owner, is_stopping, verify=verify)
    return claimed is not None


def sync(
    ctx: Context, claimed: MirrorRecord, owner: str, is_stopping: Callable[[], bool], *, verify: bool = False
) -> None:
    """Sync a mirror that `owner` has claimed, and release it; errors of the other catalog are recorded.

    With `verify` each entry is looked at, whatever is known of it. Where `is_stopping` becomes true, the publication
    stays due, to be verified likewise. Raises ServiceUnavailableError where our own database does not answer.
    """
    fingerprint, now = ctx.store.tables_fingerprint(), ctx.clock()
    verify = verify or now - claimed.verified_at >= VERIFY_MS
    run = _Sync(ctx, claimed, owner, is_stopping, verify=verify, is_full=claimed.due_at <= now or verify)
    outcome = SyncOutcome("", claimed.synced_at, claimed.verified_at, 0, None, now)
    problems: dict[int, TableProblem] | None = None
    try:
        run.run()
    except LeaseLostError:
        return
    except _StoppedError:
        outcome = structs.replace(outcome, verified_at=0 if verify else claimed.verified_at)
    except LanceNamespaceError as error:
        outcome = _failed(outcome, claimed, str(error), now)
    except Exception:
        log.exception("the publication %s cannot be synced", claimed.name)
        outcome = _failed(outcome, claimed, "The sync has failed: the server's log has the details.", now)
    else:
        problems = run.problems
        verified_at = now if verify else claimed.verified_at
        is_checked = bool(problems) or claimed.has_columns
        due_at = now + CHECK_MS if is_checked else verified_at + VERIFY_MS
        outcome = SyncOutcome(fingerprint, now, verified_at, 0, None, due_at)
    finally:
        run.close()
    if claimed.removing and problems == {}:
        ctx.store.delete_mirror(claimed.id)
        return
    ctx.store.finish_sync(claimed.id, owner, outcome, problems)


def _failed(outcome: SyncOutcome, before: MirrorRecord, error: str, now: int) -> SyncOutcome:
    pause = min(FIRST_PAUSE_MS * 2 ** min(before.failures, 16), MAX_PAUSE_MS)
    log.warning("the publication %s waits for %.0f s: %s", before.name, pause / 1000, error)
    return structs.replace(outcome, failures=before.failures + 1, error=error, due_at=now + pause)


def entry_id(mirror: MirrorRecord, path: Id) -> Id:
    """Return the id in the other catalog for a table of ours. Raises InvalidInputError where it has none."""
    if mirror.target:
        scope = mirror.namespace or ()
        below = path.parent[len(scope) :] if path.parent[: len(scope)] == scope else ()
        return Id((*mirror.target, *below, path.name))
    if mirror.levels is None:
        return path
    if len(path.parent) < mirror.levels:
        raise InvalidInputError(
            f"The other catalog has tables below {mirror.levels} levels of namespaces, and this one has "
            f"{len(path.parent)}: name the namespace there, as the publication's target."
        )
    return Id((*path.parent[len(path.parent) - mirror.levels :], path.name))


class _Sync:
    """One sync of a publication; `problems` is what it has found, by tables' ids."""

    def __init__(
        self,
        ctx: Context,
        mirror: MirrorRecord,
        owner: str,
        is_stopping: Callable[[], bool],
        *,
        verify: bool,
        is_full: bool,
    ) -> None:
        self.problems: dict[int, TableProblem] = {}
        self._ctx = ctx
        self._mirror = mirror
        self._owner = owner
        self._is_stopping = is_stopping
        self._verify = verify
        self._is_full = is_full
        self._catalog_id = ctx.store.shared_secret("catalog id").hex()[:16]
        self._table_ids: frozenset[int] = frozenset()
        self._backend: MountedCatalog | None = None
        self._namespaces: set[Id] = set()
        self._held: set[Id] = set()
        renew = partial(ctx.store.renew_mirror, mirror.id, owner, LEASE_MS)
        self._lease = Lease(f"publication {mirror.name}", renew)

    def run(self) -> None:
        """Bring all entries in step. Raises LeaseLostError, _StoppedError, and errors of the whole other catalog."""
        entries = {Id(entry.path): entry for entry in self._ctx.store.published_entries(self._mirror.id)}
        targets = self._targets(entries)
        if self._verify:
            self._forget_missing(entries)
        new_ids = {target.table_id: target for target in targets.values() if target.entry not in entries}
        for path, entry in list(entries.items()):
            target = targets.get(path)
            if path not in self._held and (target is None or target.table_id != entry.table_id):
                self._check_lease()
                self._move_or_remove(entries, path, new_ids.get(entry.table_id))
        for path, target in targets.items():
            before = entries.get(path)
            if before is None or not _is_in_step(before, target):
                self._check_lease()
                with self._problems_of(target):
                    self._write(entries, target)

    def close(self) -> None:
        """Renew the lease no longer, and close the connections to the other catalog."""
        self._lease.close()
        if self._backend is not None:
            self._backend.close()

    # What there should be

    def _targets(self, entries: Mapping[Id, PublishedEntry]) -> dict[Id, _Target]:
        """Return the entries that there should be, by their ids."""
        tables = self._ctx.store.own_tables()
        self._table_ids = frozenset(table.id for table in tables)
        if self._mirror.removing:
            return {}
        targets: dict[Id, _Target] = {}
        for table, path in self._selected(tables):
            try:
                entry = entry_id(self._mirror, path)
            except InvalidInputError as error:
                self._add_problem(table.id, path, str(error))
                continue
            if (other := targets.get(entry)) is not None:
                self._add_problem(table.id, path, f"The table {other.path} has the same name there, {entry}.")
                continue
            try:
                targets[entry] = self._target(table, path, entry, entries.get(entry))
            except LanceNamespaceError as error:  # it cannot be opened: its entry stays as it is
                self._add_problem(table.id, path, str(error))
                self._held.add(entry)
        return targets

    def _selected(self, tables: Collection[OwnTable]) -> Iterator[tuple[OwnTable, Id]]:
        """Yield the tables that are published, with their ids."""
        namespaces = {namespace.id: namespace for namespace in self._ctx.store.own_namespaces()}
        scopes: dict[int, tuple[Id, bool] | None] = {}
        for table in tables:
            if table.namespace_id not in scopes:
                scopes[table.namespace_id] = self._scope(namespaces, table.namespace_id)
            if (scope := scopes[table.namespace_id]) is None:  # its namespace was made since the tables were read
                continue
            path, is_published = scope
            text = table.properties.get(PUBLISH_TO)
            if is_published or (text is not None and self._is_named(text)):
                yield table, Id((*path, table.name))

    def _scope(self, namespaces: Mapping[int, OwnNamespace], namespace_id: int) -> tuple[Id, bool] | None:
        """Return the id of a namespace, and whether all tables in it are published; None if it is not there."""
        names: list[str] = []
        ids: list[int] = []
        is_named = False
        following: int | None = namespace_id
        while following is not None:
            namespace = namespaces.get(following)
            if namespace is None:
                return None
            ids.append(namespace.id)
            is_named = is_named or self._is_named(namespace.properties.get(PUBLISH_TO, ""))
            if namespace.parent_id is not None:
                names.append(namespace.name)
            following = namespace.parent_id
        return Id(reversed(names)), is_named or self._mirror.namespace_id in ids

    def _is_named(self, text: str) -> bool:
        return self._mirror.name in (name.strip() for name in text.split(","))

    def _target(self, table: OwnTable, path: Id, entry: Id, before: PublishedEntry | None) -> _Target:
        """Return the entry that a table should have. Raises what opening the table raises."""
        properties = {CATALOG_ID: self._catalog_id, TABLE_ID: str(table.id)}
        if self._mirror.has_columns:
            is_written = before is not None and before.table_id == table.id and before.digest
            if is_written and not self._is_full:
                return _Target(table.id, path, entry, table.location, properties, None)
            properties |= self._columns(table.location)
        text = json.dumps([table.location, properties], sort_keys=True)
        return _Target(table.id, path, entry, table.location, properties, hashlib.sha256(text.encode()).hexdigest())

    def _columns(self, location: str) -> dict[str, str]:
        """Return the property that lists a table's columns; none where it would be too long."""
        self._check_lease()
        storage = self._ctx.storage
        schema = storage.datasets.open_snapshot(location).dataset.schema
        text = json.dumps([{"name": field.name, "type": str(field.type)} for field in schema], ensure_ascii=False)
        return {ENTRY_COLUMNS: text} if len(text.encode()) <= MAX_PROPERTY_LENGTH else {}

    # What there is

    def _forget_missing(self, entries: dict[Id, PublishedEntry]) -> None:
        """Look at each entry; forget those that are gone, or are somebody else's by now."""
        for path, entry in list(entries.items()):
            self._check_lease()
            try:
                found = self._find(path)
            except _OUTAGES:
                raise
            except LanceNamespaceError as error:
                self._add_problem(entry.table_id, path, f"Its entry {path} cannot be read: {error}")
                continue
            if found is None or not self._is_ours(found, entry.table_id, entry):
                self._forget(entries, path)
            elif _location_of(found) != entry.location:
                entries[path] = structs.replace(entry, digest="")

    def _move_or_remove(self, entries: dict[Id, PublishedEntry], path: Id, target: _Target | None) -> None:
        """Rename the entry of a table that has another name now, where the other catalog can; remove it otherwise."""
        entry = entries[path]
        try:
            found = self._find(path)
            if found is not None and self._is_ours(found, entry.table_id, entry):
                if target is not None and self._rename(entries, path, target):
                    return
                with suppress(TableNotFoundError):
                    self._open().deregister_table(path)
            self._forget(entries, path)
        except _OUTAGES:
            raise
        except LanceNamespaceError as error:
            self._add_problem(entry.table_id, path, f"Its entry {path} cannot be removed: {error}")

    def _rename(self, entries: dict[Id, PublishedEntry], path: Id, target: _Target) -> bool:
        """Rename an entry; return whether that was done."""
        entry = entries[path]
        if self._find(target.entry) is not None:
            return False
        try:
            self._ensure_namespace(target.entry.parent)
            self._record(entries, target, digest="", marked=entry.marked)
            self._open().rename_table(path, target.entry)
        except _OUTAGES:
            raise
        except LanceNamespaceError:  # it cannot rename, or not to this: what follows says why, for the new entry
            self._forget(entries, target.entry)
            return False
        self._record(entries, target, digest=entry.digest, marked=entry.marked)
        self._forget(entries, path)
        return True

    def _write(self, entries: dict[Id, PublishedEntry], target: _Target) -> None:
        """Create or update an entry. Raises _ConflictError, and what the other catalog raises."""
        digest = target.digest or ""
        found = self._find(target.entry)
        if found is not None:
            if not self._is_ours(found, target.table_id, entries.get(target.entry)):
                self._forget(entries, target.entry)
                raise _ConflictError
            if self._update(target, found):
                self._record(entries, target, digest=digest, marked=CATALOG_ID in found.properties)
                return
            self._open().deregister_table(target.entry)
        self._ensure_namespace(target.entry.parent)
        self._record(entries, target, digest="", marked=True)
        try:
            marked = self._declare(entries, target)
        except TableAlreadyExistsError as error:  # of another format, or made a moment ago
            self._forget(entries, target.entry)
            raise _ConflictError from error
        except _OUTAGES:
            raise  # it may be there
        except LanceNamespaceError:
            self._forget(entries, target.entry)
            raise
        self._record(entries, target, digest=digest, marked=marked)

    def _declare(self, entries: dict[Id, PublishedEntry], target: _Target) -> bool:
        """Declare a table in the other catalog; return whether that keeps properties."""
        backend = self._open()
        try:
            declared, marked = backend.declare_table(target.entry, target.location, target.properties), True
        except UnsupportedOperationError:
            self._record(entries, target, digest="", marked=False)
            declared, marked = backend.declare_table(target.entry, target.location, {}), False
        if _location_of(declared) != target.location:
            backend.deregister_table(target.entry)
            raise InvalidInputError(f"The other catalog puts a table at a location of its own: {declared.location}.")
        return marked

    def _update(self, target: _Target, found: MountedTable) -> bool:
        """Update an entry of ours to what it should be; return False if it has to be written anew."""
        if _location_of(found) != target.location:
            return False
        if CATALOG_ID not in found.properties:
            return True
        changes: dict[str, str | None] = {
            key: target.properties.get(key) for key in (CATALOG_ID, TABLE_ID, ENTRY_COLUMNS)
        }
        changes = {key: value for key, value in changes.items() if found.properties.get(key) != value}
        if not changes:
            return True
        try:
            self._open().update_table_properties(target.entry, changes)
        except UnsupportedOperationError:
            return False
        return True

    def _is_ours(self, found: MountedTable, table_id: int, known: PublishedEntry | None) -> bool:
        """Return whether an entry is that of a table, or was of one that is gone."""
        catalog = found.properties.get(CATALOG_ID)
        if catalog is None:
            return known is not None and not known.marked and _location_of(found) == known.location
        writer = found.properties.get(TABLE_ID, "")
        is_gone = writer.isdecimal() and int(writer) not in self._table_ids
        return catalog == self._catalog_id and (writer == str(table_id) or is_gone)

    def _find(self, path: Id) -> MountedTable | None:
        try:
            return self._open().get_table(path)
        except (TableNotFoundError, NamespaceNotFoundError):
            return None

    def _ensure_namespace(self, namespace: Id) -> None:
        """Create a namespace in the other catalog, and those around it, where it is missing."""
        if not namespace or namespace in self._namespaces:
            return
        backend = self._open()
        try:
            backend.get_namespace(namespace)
        except NamespaceNotFoundError:
            self._ensure_namespace(namespace.parent)
            with suppress(NamespaceAlreadyExistsError):
                backend.create_namespace(namespace, {})
        self._namespaces.add(namespace)

    # What is recorded of it

    def _record(self, entries: dict[Id, PublishedEntry], target: _Target, *, digest: str, marked: bool) -> None:
        entry = PublishedEntry(target.entry, target.table_id, target.location, digest, marked)
        self._write_leased(self._ctx.store.write_published_entry, entry)
        entries[target.entry] = entry

    def _forget(self, entries: dict[Id, PublishedEntry], path: Id) -> None:
        if path in entries:
            self._write_leased(self._ctx.store.delete_published_entry, path)
            del entries[path]

    def _check_lease(self) -> None:
        """Raise _StoppedError where there is no more time, LeaseLostError where another has the lease."""
        if self._is_stopping():
            raise _StoppedError
        if not self._lease.check():
            raise LeaseLostError

    def _write_leased(self, write: Callable[..., None], *values: object) -> None:
        """Write to this catalog, which renews the lease. Raises LeaseLostError."""
        if not self._lease.write(lambda: write(self._mirror.id, self._owner, LEASE_MS, *values)):
            raise LeaseLostError

    def _open(self) -> MountedCatalog:
        """Return the other catalog. Raises ServiceUnavailableError where it cannot be opened."""
        if self._backend is None:
            try:
                self._backend = open_catalog(self._mirror.kind, self._mirror.settings)
            except InvalidInputError as error:  # a secret or a package is missing on this host
                raise ServiceUnavailableError(str(error)) from error
        return self._backend

    @contextmanager
    def _problems_of(self, target: _Target) -> Iterator[None]:
        """Note errors that are of one entry alone, and go on."""
        try:
            yield
        except _ConflictError:
            self._add_problem(target.table_id, target.path, _CONFLICT.format(target.entry))
        except _OUTAGES:
            raise
        except LanceNamespaceError as error:
            self._add_problem(target.table_id, target.path, str(error))

    def _add_problem(self, table_id: int, path: Id, problem: str) -> None:
        self.problems.setdefault(table_id, TableProblem(path, problem))


def _is_in_step(entry: PublishedEntry, target: _Target) -> bool:
    is_written = entry.table_id == target.table_id and entry.digest != ""
    return is_written and target.digest in (None, entry.digest)


def _location_of(found: MountedTable) -> str | None:
    """Return an entry's location in our own form; None where it can be none of ours."""
    try:
        return canonical_location(found.location)
    except InvalidInputError:
        return None
