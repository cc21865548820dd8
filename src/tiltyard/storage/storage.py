"""The storage: locations, folders and files of tables, and their open datasets."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
)

from tiltyard.runtime.clocks import wall_clock
from tiltyard.runtime.outage_log import StorageUnavailableError
from tiltyard.storage.datasets import Datasets
from tiltyard.storage.errors import lance_errors, translated
from tiltyard.storage.files import Files, FileStat, LocalFiles
from tiltyard.storage.fsync import Disks
from tiltyard.storage.group_commit import Gathering
from tiltyard.storage.locations import (
    SUFFIX,
    as_on_disk,
    check_below,
    check_no_links,
    file_in,
    innermost,
    is_below,
    is_local,
    is_relative,
    new_folder,
)
from tiltyard.storage.locks import Locks
from tiltyard.storage.manifest_format import FINAL
from tiltyard.storage.manifest_store import Manifests, read_named
from tiltyard.storage.roots import Places, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tiltyard.config import Settings
    from tiltyard.model.ids import Id

T = TypeVar("T")


class Storage:
    """All that lies under the root and the further roots that are allowed. Safe to use from several threads.

    Methods raise ServiceUnavailableError and PermissionDeniedError for a storage that does not answer or refuses.
    """

    def __init__(self, settings: Settings, clock: Callable[[], int] = wall_clock) -> None:
        """Know the roots; `prepare` looks at them. Raises StorageError for a root that cannot be one."""
        self.places = Places(settings, clock)
        self.root = self.places.first.root
        self._roots = self.places.roots
        self.datasets = Datasets(settings.index_cache_bytes, settings.metadata_cache_bytes, settings.page_cache_bytes)
        self.appends = Gathering()
        self.locks = Locks()
        self._disks = Disks()
        self._largest = settings.max_manifest_bytes
        self._files: dict[str, Files] = {"": LocalFiles(self._largest)}
        self.manifests = Manifests(self.files, self._disks, self.datasets, self._largest)
        self.datasets.check_size = self.manifests.check_size
        self.datasets.check_references = self.manifests.check_references
        self._ignoring_case: dict[str, bool] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the roots ready, and try to write there. Raises StorageError."""
        for root in self._roots:
            try:
                self.files(root).prepare(root)
            except (FileExistsError, NotADirectoryError) as error:
                raise StorageError(f"The root {root} is no folder: choose another.") from error
            except BaseException as error:  # a panic of Rust is no Exception
                if translated(error) is None and not isinstance(error, OSError):
                    raise
                reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
                raise StorageError(f"The root {root} is not writable: {reason}.") from error

    def close(self) -> None:
        """Read nothing more ahead of queries."""
        self.datasets.pages.close()

    def probe(self) -> None:
        """Ask the storage of the root for real. Raises ServiceUnavailableError."""
        try:
            with lance_errors(self.root):
                self.files(self.root).probe(self.root)
        except (OSError, LanceNamespaceError) as error:
            raise StorageUnavailableError("The storage does not answer.", self.root) from error

    def files(self, location: str) -> Files:
        """What reads and writes the files at a location. Raises PermissionDeniedError outside the roots."""
        place = self.places.of(location)
        if is_local(location):
            return self._files[""]
        parts = urlsplit(location)
        base = f"{parts.scheme}://{parts.netloc}"
        key = f"{place.storage} {base}"
        with self._lock:
            if key not in self._files:
                from tiltyard.storage.objects import ObjectFiles  # noqa: PLC0415  # a local server needs none of it

                self._files[key] = ObjectFiles(base, place.options, self._largest)
            return self._files[key]

    def new_location(self, path: Id) -> str:
        """A location for a new table, right under the root."""
        return f"{self.root}/{new_folder(path)}"

    def check_location(self, location: str, *, relative: bool = False) -> str:
        """The canonical form of a location that a client names: the one check that all of them pass.

        With `relative`, one without scheme and leading slash is taken from the first root; else it is refused.
        Raises InvalidInputError unless it is a folder of its own below the root or an allowed root; whether it is
        another table's, or around or inside one, the catalog knows and checks when the table is entered.
        """
        if relative and is_relative(location):
            location = f"{self.root}/{location}"
        found = check_below(location, self._roots)
        with lance_errors():
            if is_local(found) and self._ignores_case(root := innermost(found, self._roots)):
                found = as_on_disk(found, root)
            files = self.files(found)
            if files.is_file(found):
                raise InvalidInputError("The location is a file: name a folder.")
            if any(name.endswith(SUFFIX) for name in files.names(found)):
                raise InvalidInputError("The location holds other tables: name the folder of one.")
        return found

    def _ignores_case(self, root: str) -> bool:
        if root not in self._ignoring_case:
            self._ignoring_case[root] = LocalFiles.ignores_case(root)
        return self._ignoring_case[root]

    def options(self, location: str) -> dict[str, str]:
        """Options with which Lance opens a location; those of its storage, none on local disks.

        Raises PermissionDeniedError for a location outside the roots: nothing there is read.
        """
        return dict(self.places.of(location).options)

    def public_options(self, location: str) -> dict[str, str]:
        """Options that any client may be told: the endpoint, the region, never a credential."""
        return self.places.of(location).public

    def table_uri(self, location: str) -> str:
        """A location as a URI with a scheme."""
        return Path(location).as_uri() if is_local(location) else location

    def has_table(self, location: str) -> bool:
        """Whether there is a table at a location: a manifest that is committed, not just staged."""
        with lance_errors(location):
            return any(FINAL.match(name) for name in self.files(location).names(f"{location}/_versions"))

    def at_hand(self, location: str) -> bool:
        """Whether a table's latest version is known at the cost of looking for a local file."""
        return is_local(location) and self.datasets.holds(location)

    def is_empty(self, location: str) -> bool:
        """Whether nothing at all lies at a location."""
        with lance_errors(location):
            return not self.files(location).names(location)

    def delete_folder(self, location: str) -> None:
        """Delete a table's folder with all that is in it; one that is gone is fine.

        Raises InvalidInputError for anything that is not below a root.
        """
        if not any(is_below(location, root) for root in self._roots) or location in self._roots:
            raise InvalidInputError("Only folders below the server's roots can be deleted.")
        if any(is_below(root, location) for root in self._roots):
            raise InvalidInputError("This folder holds one of the server's roots: it is not deleted.")
        with lance_errors(location):
            self.files(location).delete_folder(location)
        self.datasets.forget(location)

    def delete_files(self, locations: Iterable[str]) -> None:
        """Delete single files; missing ones are fine."""
        for location in locations:
            with lance_errors(location):
                self.files(location).delete([location])

    def inside(self, location: str, path: str) -> str:
        """The full location of a file that a client names, inside a table's folder.

        The path may be relative to the folder, or start with the folder's own path, with or without scheme, bucket
        and leading slash. Raises InvalidInputError if it leads elsewhere.
        """
        target = file_in(location, path)
        check_no_links(target)
        return target

    def foreign_bases(self, location: str) -> list[str]:
        """Where files of a table's latest version lie outside its folder: shallow clones have some.

        Raises InvalidInputError for a place outside the roots, and what opening a table raises.
        """
        bases = self.datasets.bases(location, self.options(location))
        if any(not innermost(base, self._roots) for base in bases):
            raise InvalidInputError("This table has files outside the server's roots: allow their root, or copy it.")
        return bases

    def read_file(self, location: str, path: str) -> bytes:
        """A file inside a table's folder. Raises InvalidInputError if there is none, or the path leads elsewhere."""
        return read_named(self.inside(location, path), self.files(location).read)

    def stat(self, location: str, path: str) -> FileStat | None:
        """Size and tag of a file inside a table's folder; None if there is none."""
        with lance_errors(location):
            return self.files(location).stat(self.inside(location, path))

    def may_have_gaps(self, location: str) -> bool:
        """Whether tags or branches of a table on a disk may keep versions behind which others were cleaned up.

        On an object store it costs each commit a request to know, and is not looked for.
        """
        return is_local(location) and os.access(f"{location}/_refs", os.F_OK)

    def syncing(self, places: Iterable[str]) -> AbstractContextManager[None]:
        """Have files, and the names in folders, survive a loss of power when the block has ended; it runs meanwhile.

        What is missing was moved or deleted meanwhile, and is fine. Objects are durable as soon as they are there.
        """
        local = [place for place in places if is_local(place)]
        return self._disks.syncing(local) if local else nullcontext()

    def sync(self, places: Iterable[str]) -> None:
        """Do just that, and return then."""
        local = [place for place in places if is_local(place)]
        with lance_errors(next(iter(local), "")):
            self._disks.sync(local)

    def writing_back(self, folder: str) -> AbstractContextManager[None]:
        """Have the disk begin with new files of a folder while the block writes them: less is left for `sync`."""
        return self._disks.writing_back(folder) if is_local(folder) else nullcontext()

    def sync_written(self, folders: Iterable[str], since: int = 0) -> None:
        """Do that for all below some folders that was written since a time (milliseconds since 1970)."""
        local = [folder for folder in folders if is_local(folder)]
        with lance_errors(next(iter(local), "")):
            self._disks.sync({place for folder in local for place in self._disks.written(folder, since)})
