"""One mount in one process: its backend, behind a cache of look-ups, a circuit breaker and threads of its own.

What is below a mount is looked up in the other catalog, and gets an id of ours (`tiltyard.store.mounts`): what grants,
policies, jobs and versions refer to. Name, location and properties are always the other catalog's.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.mounts.lance_entries import new_table_location
from tiltyard.mounts.lookup_cache import LookupCache
from tiltyard.mounts.mounted_catalog import ConvertsUnsafeTables
from tiltyard.mounts.registry.backend_vendor import BackendVendor, NothingVendedError
from tiltyard.mounts.registry.circuit_breaker import CircuitBreaker, MountPausedError
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.pool import Pool
from tiltyard.runtime.process import wall_clock
from tiltyard.storage.errors import StorageThrottledError
from tiltyard.storage.locations import canonical_location, is_local, is_within
from tiltyard.storage.vending.credential_cache import CredentialCache
from tiltyard.storage.vending.vendor import VendedCredentials
from tiltyard.store import LocationDroppedError, LocationTakenError, NamespaceRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tiltyard.mounts.mounted_catalog import MountedCatalog, MountedTable, NamePage, Properties, StorageCredentials
    from tiltyard.store import Creator, MountRecord, Store, TableRecord

T = TypeVar("T")

THREADS = 8
"""Of one mount in one process: so many requests below it may wait for its backend, and no thread of anybody else."""
MAX_GONE_TABLES = 16
"""Tables that are gone in the other catalog, whose records one look-up removes since they overlap its location."""
MAX_WAITING = 64
"""Requests that wait for a thread; further ones are refused at once."""


class LocationInUseError(InvalidTableStateError):
    """The location of an entry is not free for it: it is in, at or around a folder that something else has."""

    def __init__(self, message: str, location: str) -> None:
        super().__init__(message)
        self.location = location


class Mount:
    """A mount. Safe to use from several threads.

    Methods raise what `MountedCatalog` raises, and ServiceUnavailableError at once where the backend did not answer
    lately. Ids are relative to the mount.
    """

    def __init__(self, record: MountRecord, store: Store, check_foreign: Callable[[str], None]) -> None:
        """Open nothing yet. `check_foreign` raises for locations that are the server's own (`Roots.check_foreign`)."""
        self.record = record
        self.path = Id(record.path)
        self.pool = Pool("mount", "Requests below a mount, which wait for its catalog and for nobody else", THREADS)
        self._store = store
        self._check_foreign = check_foreign
        self._cache = LookupCache(record.max_age_ms / 1000)
        self._breaker = CircuitBreaker()
        self._lock = threading.Lock()
        self._backend: MountedCatalog | None = None
        self._calls = 0
        self._is_retired = False
        self._last_error: str | None = None
        itself: Mount = weakref.proxy(self)  # no cycle: threads end with the last use of a mount

        def vend(table: Id, writable: bool) -> StorageCredentials | None:
            return itself.call(lambda backend: backend.vend_credentials(table, writable=writable))

        self._vendor = BackendVendor(self.path, vend, store)
        self._credentials = CredentialCache(self._vendor, wall_clock)

    @property
    def id(self) -> int:
        """The id of its namespace."""
        return self.record.id

    @property
    def kind(self) -> str:
        """What messages call the backend."""
        return self.record.kind

    @property
    def own_locations(self) -> list[str]:
        """Where its settings say that its tables are put."""
        root = self.record.settings.get("root")
        try:
            return [canonical_location(root)] if isinstance(root, str) and root else []
        except InvalidInputError:
            return []

    @property
    def outage(self) -> str | None:
        """Why the backend is not called at the moment; None if it is."""
        return self._last_error if self._breaker.is_open else None

    def check_queue(self) -> None:
        """Raise ServiceUnavailableError if too many requests wait for a thread."""
        if self.pool.waiting >= MAX_WAITING:
            raise ServiceUnavailableError(
                f"Too many requests wait for the catalog behind {self.path}: try again later."
            )

    # Namespaces

    def list_namespaces(self, parent: Id, limit: int, token: str | None) -> NamePage:
        """List namespaces, at most `limit` of them."""
        return self.call(lambda backend: backend.list_namespaces(parent, limit, token))

    def namespace_properties(self, namespace: Id) -> Properties:
        """Return the properties of a namespace, which may be as old as `max_age`."""
        return self._cache.get(
            ("namespace", namespace), lambda: self.call(lambda backend: backend.get_namespace(namespace))
        )

    def find_namespace(self, namespace: Id) -> NamespaceRecord:
        """Return the record of a namespace, which may have been looked up `max_age` ago."""
        properties = self.namespace_properties(namespace)
        found = self._store.find_mounted_namespace(self.id, namespace)
        id_ = self._store.keep_mounted_namespace(self.id, namespace) if found is None else found
        return NamespaceRecord(id_, None, namespace.name, dict(properties), 0)

    def create_namespace(self, namespace: Id, properties: Properties, creator: Creator | None) -> int:
        """Create a namespace; return the id of ours for it."""
        self._change(lambda backend: backend.create_namespace(namespace, properties))
        return self._store.keep_mounted_namespace(self.id, namespace, creator)

    def drop_namespace(self, namespace: Id) -> Properties:
        """Drop an empty namespace; return the properties that it had."""
        properties = self.call(lambda backend: backend.get_namespace(namespace))
        self._change(lambda backend: backend.drop_namespace(namespace))
        namespace_id = self._store.find_mounted_namespace(self.id, namespace)
        if namespace_id is not None:
            self._store.forget_mounted_namespace(namespace_id)
        return properties

    # Tables

    def list_tables(self, namespace: Id, limit: int, token: str | None) -> NamePage:
        """List Lance tables, at most `limit` of them."""
        return self.call(lambda backend: backend.list_tables(namespace, limit, token))

    def find_table(self, table: Id) -> TableRecord:
        """Return the record of a table, which may have been looked up `max_age` ago.

        Raises besides InvalidTableStateError (its location cannot be used, or overlaps that of another table) and
        PermissionDeniedError (its location is outside the mount's `allowed_locations`).
        """
        if not table:
            raise TableNotFoundError(f"Table not found: {self.path}")
        return self._record_of(self._cache.get(("table", table), lambda: self._look_up(table)))

    def _look_up(self, table: Id) -> MountedTable:
        """Return a table as the backend describes it, once its location is found to be its own."""
        found = self.call(lambda backend: backend.get_table(table))
        self.check_own_location(self._location_of(found))
        return found

    def check_own_location(self, location: str) -> None:
        """Check that nothing else lies in or around the folder of an entry, and nothing dropped there.

        Whoever writes entries into the other catalog could reach any folder by one. Raises LocationInUseError.
        """
        self._check_foreign(location)
        for _ in range(MAX_GONE_TABLES):
            try:
                self._store.check_foreign_location(self.id, location)
            except LocationTakenError as error:
                is_gone = error.is_same_mount and not self._is_there(error.path, error.record.location)
                if not (is_gone and self._store.forget_table_without_policies(error.record.id)):
                    raise LocationInUseError(
                        "The entry's location is inside or around the folder of another table: give it a folder of its "
                        "own, or deregister it.",
                        location,
                    ) from error
            except LocationDroppedError as error:
                raise LocationInUseError(
                    "The entry's location is at, inside or around the folder of a table that was dropped, and is kept "
                    "for a while: give it a folder of its own, or deregister it.",
                    location,
                ) from error
            else:
                return
        raise LocationInUseError("The entry's location is around the folders of many tables: deregister it.", location)

    def peek_table(self, table: Id) -> TableRecord | None:
        """Return the record of a table that was looked up lately, by reads of the catalog alone; else None."""
        if not self._store.inline_reads or (found := self._cache.peek(("table", table))) is None:
            return None
        return self._known_record(found, self._location_of(found))

    def declare_table(
        self,
        table: Id,
        location: str | None,
        properties: Properties,
        creator: Creator | None,
        holds_table: Callable[[str], bool],
    ) -> TableRecord:
        """Add a table without data; return its record.

        Without a location the backend chooses one. If that is taken, by a table that was dropped or renamed or is in no
        catalog (`holds_table`), a folder beside it is named. Raises what `find_table` raises, InvalidInputError where
        the backend has no other place for the name; then the table is not added.
        """
        self.check_allowed(location)
        if location is not None:
            return self._declare(table, location, properties, creator, None)
        try:
            return self._declare(table, None, properties, creator, holds_table)
        except LocationInUseError as error:
            taken = error.location
            beside = new_table_location(taken.rpartition("/")[0], table)
        try:
            return self._declare(table, beside, properties, creator, holds_table)
        except (InvalidInputError, UnsupportedOperationError) as error:
            raise InvalidInputError(
                f"The {self.kind} catalog would put the table where another lies, or one that was dropped a while ago, "
                f"{taken}: register that one, or choose another name or location."
            ) from error

    def _declare(
        self,
        table: Id,
        location: str | None,
        properties: Properties,
        creator: Creator | None,
        holds_table: Callable[[str], bool] | None,
    ) -> TableRecord:
        """Add a table at a location; take it back if that cannot be used, or with `holds_table` is not empty."""
        declared = self._change(lambda backend: backend.declare_table(table, location, properties))
        try:
            place = self._location_of(declared)
            self.check_own_location(place)
            if holds_table is not None and self._store.is_deletion_scheduled(place):
                raise LocationInUseError("The folder of the new table is to be deleted.", place)
            record = self._record_of(declared, creator)
        except LanceNamespaceError:
            self._change(lambda backend: backend.deregister_table(table))
            raise
        if holds_table is not None and holds_table(record.location):
            self.deregister_table(table, record.id)
            raise LocationInUseError("The folder of the new table has a table already.", place)
        return record

    def withdraw_table(self, table: Id, record: TableRecord) -> bool:
        """Take back the declaration of a table that got no data; return whether it was taken back.

        It is not if somebody has written the table's first version, or the name has another entry by now.
        """
        if not self._store.forget_declared_table(record.id):
            return False
        with suppress(TableNotFoundError, NamespaceNotFoundError):
            _, location = self.read_entry(table)
            if location != record.location:
                return False
            self._change(lambda backend: backend.deregister_table(table))
        return True

    def update_properties(self, table: Id, changes: Mapping[str, str | None]) -> Properties:
        """Set properties of a table, and remove those that are None; return all."""
        return self._change(lambda backend: backend.update_table_properties(table, changes)).properties

    def rename_table(self, table: Id, new_id: Id, record: TableRecord) -> TableRecord:
        """Give a table another name, or another namespace of the mount. What refers to its id stays."""
        renamed = self._change(lambda backend: backend.rename_table(table, new_id))
        self._store.move_mounted_table(self.id, new_id, self._location_of(renamed), record.id)
        return self._record_of(renamed)

    def deregister_table(self, table: Id, table_id: int) -> MountedTable:
        """Remove a table's entry; its files stay, and what is kept for its id goes."""
        gone = self._change(lambda backend: backend.deregister_table(table))
        self._store.forget_mounted_table(table_id)
        return gone

    def read_entry(self, table: Id) -> tuple[MountedTable, str]:
        """Return a table as the other catalog describes it now, and its location. Raises as `find_table` does."""
        found = self._change(lambda backend: backend.get_table(table))
        return found, self._location_of(found)

    def add_entry(self, table: Id, location: str, properties: Properties) -> tuple[MountedTable, str]:
        """Add the entry of a table of this catalog at its location; return it, and where the other catalog has put it.

        Its record follows by `Store.give_to_mount`. Raises as `declare_table` does.
        """
        added = self._change(lambda backend: backend.declare_table(table, location, properties))
        return added, self._location_of(added)

    def remove_entry(self, table: Id) -> MountedTable:
        """Remove the entry of a table that has no record below the mount, and return it; its files stay."""
        return self._change(lambda backend: backend.deregister_table(table))

    def find_unsafe_tables(self, namespace: Id, names: Collection[str]) -> Mapping[str, str]:
        """Return those of these tables whose files another program may delete with their entries, and why."""

        def call(backend: MountedCatalog) -> Mapping[str, str]:
            return backend.find_unsafe_tables(namespace, names) if isinstance(backend, ConvertsUnsafeTables) else {}

        return self.call(call)

    def convert_table(self, table: Id) -> None:
        """Make the entry of a table that `find_unsafe_tables` has named safe."""

        def call(backend: MountedCatalog) -> None:
            if isinstance(backend, ConvertsUnsafeTables):
                backend.convert_table(table)

        self._change(call)

    def check_allowed(self, location: str | None) -> None:
        """Raise PermissionDeniedError for a location outside the mount's `allowed_locations`."""
        if location is not None and not self._allows(location):
            raise PermissionDeniedError(
                f"The location is outside of what {self.path} may open: add it to the mount's allowed_locations."
            )

    def _allows(self, location: str) -> bool:
        allowed = self.record.allowed_locations
        return not allowed or any(is_within(location, each) for each in allowed)

    def vend_credentials(self, location: str, *, writable: bool) -> VendedCredentials | None:
        """Return credentials for a table's folder as the other catalog vends them; None where it vends none.

        Raises PermissionDeniedError where it cannot narrow them to reading.
        """
        if not self.record.vends_credentials or is_local(location) or not self._allows(location):
            return None
        try:
            return self._credentials.vend(self._vendor.folder(location), writable=writable)
        except NothingVendedError:
            return None

    def retire(self) -> None:
        """Close the backend once nothing calls it: the mount was removed or altered while the server goes on.

        Requests that have come to it by then are answered by it.
        """
        self._is_retired = True
        self._close_if_unused()

    def close(self) -> None:
        """Start nothing more, and close the backend: the server stops."""
        self.pool.close()
        with self._lock:
            backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _record_of(self, found: MountedTable, creator: Creator | None = None) -> TableRecord:
        """Return the record of a table as the backend describes it."""
        location = self._location_of(found)
        record = self._known_record(found, location)
        return self._complete(self._keep(found, location, creator), found) if record is None else record

    def _known_record(self, found: MountedTable, location: str) -> TableRecord | None:
        """Return the record of a table, if it has one that says what the backend says."""
        record = self._store.find_mounted_table(self.id, found.id, location, found.stable_id)
        return None if record is None else self._complete(record, found)

    def _complete(self, record: TableRecord, found: MountedTable) -> TableRecord:
        """Return a record with what the backend alone knows."""
        declared = record.declared and found.is_declared is not False
        return structs.replace(record, properties=dict(found.properties), declared=declared, mount_id=self.id)

    def _keep(self, found: MountedTable, location: str, creator: Creator | None) -> TableRecord:
        """Give a table an id of ours, and take it from a table that had the location and is gone."""
        gone: int | None = None
        while True:
            try:
                return self._store.keep_mounted_table(
                    self.id,
                    found.id,
                    location,
                    found.stable_id,
                    managed=self.record.managed,
                    gone=gone,
                    creator=creator,
                )
            except LocationTakenError as error:
                other = error.record
                if other.location != location:
                    self.check_own_location(location)  # raises, unless the other one is gone
                    continue
                if gone == other.id or not error.is_same_mount or self._is_there(error.path, location):
                    raise LocationInUseError(
                        f"The entry {Id((*self.path, *found.id))} has the location of another table: use that one.",
                        location,
                    ) from error
                gone = other.id
            except LocationDroppedError:
                self.check_own_location(location)

    def _is_there(self, path: tuple[str, ...], location: str) -> bool:
        """Return whether a table is still at a location in the other catalog."""
        table = Id(path[len(self.path) :])
        try:
            return self._location_of(self.call(lambda backend: backend.get_table(table))) == location
        except (TableNotFoundError, NamespaceNotFoundError, InvalidTableStateError, PermissionDeniedError):
            return False

    def _location_of(self, found: MountedTable) -> str:
        """Return the location of a table, if it may be opened."""
        if not found.location:
            raise InvalidTableStateError(
                f"The entry {Id((*self.path, *found.id))} has no location: name one there, or deregister it."
            )
        try:
            location = canonical_location(found.location)
        except InvalidInputError as error:
            raise InvalidTableStateError(
                f"The entry {Id((*self.path, *found.id))} has a location that cannot be used: {error}"
            ) from error
        self.check_allowed(location)
        return location

    def _change(self, call: Callable[[MountedCatalog], T]) -> T:
        """Call the backend for something that changes it; what was looked up before is out of date then."""
        reach(Point.WRITE)
        try:
            return self.call(call)
        finally:
            self._cache.clear()

    def call(self, call: Callable[[MountedCatalog], T]) -> T:
        """Call the backend. Raises ServiceUnavailableError at once if it did not answer lately."""
        if seconds := self._breaker.try_enter():
            raise MountPausedError(
                f"The catalog behind {self.path} does not answer ({self._last_error}): it is tried again in "
                f"{seconds:.0f} s.",
                seconds,
            )
        try:
            with self._opened() as backend:
                result = call(backend)
        except (MalformedAnswerError, StorageThrottledError):  # it answers
            self._breaker.succeed()
            raise
        except ServiceUnavailableError as error:
            self._last_error = str(error)
            self._breaker.fail()
            raise
        except LanceNamespaceError:
            self._breaker.succeed()
            raise
        self._breaker.succeed()
        return result

    @contextmanager
    def _opened(self) -> Iterator[MountedCatalog]:
        """Keep the backend open within a block."""
        with self._lock:
            if self._backend is None:
                self._backend = open_catalog(self.record.kind, self.record.settings)
            self._calls += 1
            backend = self._backend
        try:
            yield backend
        finally:
            with self._lock:
                self._calls -= 1
            if self._is_retired:
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        with self._lock:
            if self._calls or self._backend is None:
                return
            backend, self._backend = self._backend, None
        backend.close()
