"""The server's storage: locations, folders and files of tables below its roots, and their open datasets."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
)

from tiltyard.runtime.batcher import Batcher
from tiltyard.runtime.durability import Durability, WrittenFile
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.outage_log import StorageUnavailableError
from tiltyard.runtime.process import wall_clock
from tiltyard.storage.availability import AvailabilityMonitor
from tiltyard.storage.datasets import Datasets
from tiltyard.storage.errors import lance_errors, translate_error
from tiltyard.storage.files import Files, FileStat, LocalFiles
from tiltyard.storage.locations import (
    TABLE_SUFFIX,
    check_no_links,
    check_table_location,
    innermost_root,
    is_below,
    is_local,
    is_relative,
    new_folder_name,
    path_in_table,
    with_existing_case,
)
from tiltyard.storage.locks import Locks
from tiltyard.storage.manifests.manifest_format import FINAL_NAME
from tiltyard.storage.manifests.manifest_store import ManifestStore
from tiltyard.storage.reference_files import ReferenceFiles
from tiltyard.storage.roots import Roots, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tiltyard.config import Settings
    from tiltyard.model.branches import Branch
    from tiltyard.model.ids import Id
    from tiltyard.storage.vending.vendor import VendedCredentials


def bucket_of(location: str) -> str:
    """Return the part of a location on an object store before its path."""
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc}"


def _vend_nothing(location: str) -> None:
    """Return None: no catalog is mounted that vends credentials."""


class Storage:
    """Everything below the root and the additional allowed roots. Safe to use from several threads.

    Methods raise ServiceUnavailableError and PermissionDeniedError for a storage that does not answer or refuses.
    """

    def __init__(self, settings: Settings, clock: Callable[[], int] = wall_clock) -> None:
        """Parse the roots; `prepare` accesses them. Raises StorageError for a root that cannot be one."""
        self.roots = Roots(settings, clock)
        self.availability = AvailabilityMonitor()
        """Refuses requests at once while an object store does not respond; a server starts it."""
        self.root = self.roots.first.location
        self._root_locations = self.roots.locations
        # What is automatic is decided where a server starts, which drops vectors where memory is short.
        vector_cache_bytes = 0 if settings.vector_cache_bytes == "auto" else settings.vector_cache_bytes
        self.datasets = Datasets(
            settings.index_cache_bytes,
            settings.metadata_cache_bytes,
            settings.page_cache_bytes,
            vector_cache_bytes=vector_cache_bytes // settings.workers,
            processors=max(1, (os.cpu_count() or 1) // settings.workers),
            disk_cache_bytes=settings.disk_cache_bytes,
            disk_cache_folder=settings.disk_cache_folder,
        )
        self.datasets.disk_cache.open_files = self.files
        if settings.disk_cache_bytes and not settings.disk_cache_folder:
            raise StorageError("disk_cache_bytes needs a folder: set disk_cache_folder, or leave it out.")
        self.append_batcher = Batcher("appends", "Small appends to a table at once, which become one commit")
        self.locks = Locks()
        self.disks = Durability()
        self._max_file_bytes = settings.max_manifest_bytes
        self._local_files = LocalFiles(self._max_file_bytes)
        self._object_files: dict[str, Files] = {}
        """Clients of the roots' buckets."""
        self.vended_credentials: Callable[[str], VendedCredentials | None] = _vend_nothing
        """Credentials that another catalog vends to this server for a table of its own, by the table's location."""
        self._references = ReferenceFiles(self.make_durable, self.locks, settings.conflict_timeout)
        self.manifests = ManifestStore(
            self.files, self.make_durable, self.datasets, self._max_file_bytes, self._references.set_broken_aside
        )
        self.datasets.options_of = self.options
        self.datasets.check_size = self.manifests.check_size
        self.datasets.check_references = self.manifests.check_references
        self._root_ignores_case: dict[str, bool] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Create the roots, and try to write there. Raises StorageError."""
        for root in self.roots.own_locations:
            try:
                if is_local(root):
                    self.disks.make_folder(root)
                self.files(root).prepare(root)
            except (FileExistsError, NotADirectoryError) as error:
                raise StorageError(f"The root {root} is not a folder: choose another.") from error
            except BaseException as error:  # a panic of Rust is no Exception
                if translate_error(error) is None and not isinstance(error, OSError):
                    raise
                reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
                raise StorageError(f"The root {root} is not writable: {reason}.") from error

    def close(self) -> None:
        """Stop asking object stores, and reading columns, vectors and files into the caches."""
        self.availability.stop()
        self.datasets.column_cache.close()
        self.datasets.vector_cache.close()
        self.datasets.disk_cache.close()

    def probe(self) -> None:
        """Check with a real request that the storage of the root answers. Raises ServiceUnavailableError."""
        try:
            with lance_errors(self.root):
                self.files(self.root).probe(self.root)
        except (OSError, LanceNamespaceError) as error:
            raise StorageUnavailableError("The storage does not respond.", self.root) from error

    def check_available(self, location: str) -> None:
        """Raise StorageUnavailableError while the object store of a location is known not to respond."""
        if not is_local(location):
            root = self.roots.root_of(location)
            self.availability.check(root.location, root.options)

    def files(self, location: str) -> Files:
        """Return what reads and writes the files at a location. Raises PermissionDeniedError outside the roots."""
        root = self.roots.root_of(location)
        if is_local(location):
            return self._local_files
        base = bucket_of(location)
        vended = self.vended_credentials(location)
        if vended is not None:
            return self._vended_files(location, vended)
        self.check_available(location)
        with self._lock:
            key = f"{root.storage} {base}"
            if key not in self._object_files:
                self._object_files[key] = self._open_files(base, root.options)
            return self._object_files[key]

    def _vended_files(self, location: str, vended: VendedCredentials) -> Files:
        """Return what reads and writes the files of a table by what another catalog vends for it.

        Open datasets have the credentials before: after new ones, which have no client yet, they are opened again.
        """
        if not vended.clients:
            self.datasets.evict(location)
            base, options = bucket_of(location), {**self.roots.root_of(location).options, **vended.options}
            vended.clients.append(self._open_files(base, options))
        return vended.clients[0]

    def _open_files(self, base: str, options: Mapping[str, str]) -> Files:
        from tiltyard.storage.objects import ObjectFiles  # noqa: PLC0415  # a local server needs none of it

        return ObjectFiles(base, options, self._max_file_bytes)

    def new_location(self, path: Id) -> str:
        """Choose a location for a new table, directly below the root."""
        return f"{self.root}/{new_folder_name(path)}"

    def check_location(self, location: str, *, relative: bool = False) -> str:
        """Return the canonical form of a location that a client names: the one check that all of them pass.

        With `relative`, a location without scheme and leading slash is resolved against the first root; else it is
        refused. Raises InvalidInputError unless it is a folder of its own below the root or an allowed root. Whether
        it is, contains or is inside another table's folder, the catalog checks when the table is created.
        """
        if relative and is_relative(location):
            location = f"{self.root}/{location}"
        folder = check_table_location(location, self._root_locations)
        with lance_errors():
            if is_local(folder) and self._ignores_case(root := innermost_root(folder, self._root_locations)):
                folder = with_existing_case(folder, root)
            files = self.files(folder)
            if files.is_file(folder):
                raise InvalidInputError("The location is a file: name a folder.")
            if any(name.endswith(TABLE_SUFFIX) for name in files.list_names(folder)):
                raise InvalidInputError("The location holds other tables: name the folder of one.")
        return folder

    def _ignores_case(self, root: str) -> bool:
        if root not in self._root_ignores_case:
            self._root_ignores_case[root] = LocalFiles.ignores_case(root)
        return self._root_ignores_case[root]

    def options(self, location: str) -> dict[str, str]:
        """Return Lance's storage options for a location, with the server's credentials; empty on local disks.

        Raises PermissionDeniedError for a location outside the roots: nothing there is read.
        """
        root = self.roots.root_of(location)
        options = dict(root.options)
        vended = self.vended_credentials(location)
        if vended is None:
            self.check_available(location)
            return options
        if not is_local(location):
            self._vended_files(location, vended)
        return {**options, **vended.options}

    def table_uri(self, location: str) -> str:
        """Format a location as a URI with a scheme."""
        return Path(location).as_uri() if is_local(location) else location

    def has_table(self, location: str) -> bool:
        """Whether there is a table at a location: a manifest that is committed, not just staged."""
        with lance_errors(location):
            return any(FINAL_NAME.match(name) for name in self.files(location).list_names(f"{location}/_versions"))

    def check_table(self, location: str) -> tuple[str, list[str]]:
        """Return the canonical form of the location of a table that is to be registered, and its foreign bases.

        Raises InvalidInputError where there is none, and as `check_location` and `list_foreign_bases` do.
        """
        location = self.check_location(location, relative=True)
        if not self.has_table(location):
            raise InvalidInputError("There is no Lance table at this location: name the folder that holds `_versions`.")
        return location, self.list_foreign_bases(location)

    def is_latest_cached(self, location: str) -> bool:
        """Whether a table's latest version can be looked up at the cost of checking for a local file."""
        return is_local(location) and self.datasets.is_open(location)

    def is_empty(self, location: str) -> bool:
        """Whether a location has no files at all."""
        with lance_errors(location):
            return not self.files(location).list_names(location)

    def delete_folder(self, location: str) -> None:
        """Delete a table's folder recursively; ignore a missing one.

        Raises InvalidInputError for anything that is not below a root.
        """
        if not any(is_below(location, root) for root in self._root_locations) or location in self._root_locations:
            raise InvalidInputError("Only folders below the server's roots can be deleted.")
        if any(is_below(root, location) for root in self._root_locations):
            raise InvalidInputError("This folder holds one of the server's roots: it is not deleted.")
        with lance_errors(location):
            self.files(location).delete_folder(location)
        self.datasets.evict(location)

    def delete_files(self, locations: Iterable[str]) -> None:
        """Delete single files; ignore missing ones."""
        for location in locations:
            with lance_errors(location):
                self.files(location).delete([location])

    def list_foreign_bases(self, location: str) -> list[str]:
        """List the bases outside its folder where files of a table's latest version lie: shallow clones have some.

        Raises InvalidInputError for a base outside the roots, and what opening a table raises.
        """
        bases = self.datasets.list_foreign_bases(location)
        if any(not innermost_root(base, self._root_locations) for base in bases):
            raise InvalidInputError("This table has files outside the server's roots: allow their root, or copy it.")
        return bases

    def stat(self, location: str, path: str) -> FileStat | None:
        """Return size and entity tag of a file inside a table's folder; None if there is none.

        The path, which a client names, may be relative to the folder, or start with the folder's own path, with or
        without scheme, bucket and leading slash. Raises InvalidInputError if it leads elsewhere.
        """
        target = path_in_table(location, path)
        with lance_errors(location):
            check_no_links(target)
            return self.files(location).stat(target)

    def may_have_version_gaps(self, location: str) -> bool:
        """Whether tags or branches of a table on a disk may keep versions while later ones were cleaned up.

        False on an object store: there the lookup would cost each commit a request.
        """
        return is_local(location) and os.access(f"{location}/_refs", os.F_OK)

    def make_durable(
        self, files: Iterable[WrittenFile | str], *, folders: Iterable[str] = (), missing_ok: bool = False
    ) -> None:
        """Check that files are whole, and make them durable, as `Durability.make_durable`, up to their roots.

        Nothing is done for objects: what is stored there is whole and durable. Raises IncompleteFileError for a file
        that is not whole, InvalidTableStateError for a missing one, ServiceUnavailableError.
        """
        reach(Point.WRITE)  # Lance has written files, which Python has not seen, and nothing names them yet
        by_root = dict[str, tuple[list[WrittenFile | str], list[str]]]()
        for file in files:
            location = file if isinstance(file, str) else file.location
            if is_local(location):
                by_root.setdefault(self._root_above(location), ([], []))[0].append(file)
        for folder in folders:
            if is_local(folder):
                by_root.setdefault(self._root_above(folder), ([], []))[1].append(folder)
        for root, (written, changed) in by_root.items():
            with lance_errors(root):
                self.disks.make_durable(written, root, folders=changed, missing_ok=missing_ok)

    def make_version_durable(self, location: str, branch: Branch, version: int) -> None:
        """Check a version that is in storage, and make it durable: one whose commit did not go through the catalog.

        Raises as `make_durable`, InvalidInputError for a damaged manifest.
        """
        self.make_durable(self.manifests.version_files(location, branch, version), missing_ok=True)

    def changing_reference(self, location: str, path: str) -> AbstractContextManager[None]:
        """Make a file of a tag or a branch durable that Lance changes in the block: see ReferenceFiles."""
        return self._references.changing(location, path)

    def _root_above(self, location: str) -> str:
        """Return the root that a location is below, whose own name is durable."""
        return innermost_root(location, self._root_locations) or location

    def settle_manifests(self, manifests: Iterable[tuple[str, str, str]]) -> None:
        """Leave final manifests with one name, and durable: each is a table's location, the staged name, the final one.

        On a disk their files and names are made so; on an object store the staged objects are deleted, which are no
        longer needed, with the credentials for the table.
        """
        finals, staged_by_files = list[str](), dict[Files, list[str]]()
        for location, staged, final in manifests:
            if is_local(location):
                finals.append(final)
            elif staged != final:
                staged_by_files.setdefault(self.files(location), []).append(staged)
        for files, names in staged_by_files.items():
            with lance_errors(names[0]):
                files.delete(names)
        self.make_durable(finals, missing_ok=True)

    def writing_back(self, folder: str) -> AbstractContextManager[None]:
        """Start write-back of a folder's new files while the block writes them: less is left to sync."""
        return self.disks.writing_back(folder) if is_local(folder) else nullcontext()
