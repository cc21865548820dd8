"""A branch's latest version as requests share it, and what tells whether a commit came after it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from lance_namespace.errors import LanceNamespaceError

from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests.manifest_format import NamingScheme, manifest_name, versions_folder
from tiltyard.storage.reference_files import list_references

if TYPE_CHECKING:
    from collections.abc import Callable

    import lance

    from tiltyard.model.branches import Branch
    from tiltyard.storage.caches.version_cache import CachedVersion

_CONFIRMED_SECONDS = 5.0
"""How long the catalog's word suffices that a version is the latest, after a list of the object store said so, too: a
version that a commit bypassing the catalog put there is seen this much later at most."""
_MAX_EARLIER = 4
"""Earlier versions of a branch that requests share: each holds its manifest."""
_SETTLED_NS = 1_000_000_000
"""Two changes of a folder this far apart have different modification times; the clock of files is coarse."""


class RecordedVersion(NamedTuple):
    """The latest version of a managed table as the catalog has it, with its final name; no two have a staged path."""

    table_id: int
    version: int
    staged_path: str


class _LatestFiles(NamedTuple):
    """Paths that tell whether a version on a local disk is the latest; `identity` is that of its manifest's file."""

    manifest: str
    next_manifest: str
    versions: str
    references: str
    identity: tuple[int, int] | None


_UNKNOWN = object()


class SharedSnapshot:
    """The snapshot of a branch's latest version, and what tells whether a commit came after it."""

    __slots__ = (
        *("_branch", "_branch_contents", "_confirmed", "_confirmed_at", "_confirmed_until", "_earlier"),
        *("dataset", "files", "snapshot"),
    )

    def __init__(self, snapshot: CachedVersion, location: str, branch: Branch) -> None:
        self.snapshot = snapshot
        self.dataset = dataset = snapshot.dataset
        self.files = _latest_files(dataset, location, branch) if is_local(location) else None
        """None on an object store."""
        self._branch = branch
        self._branch_contents: Any = _UNKNOWN
        """Which branch this is, on an object store: by now another may have its name, and as many versions."""
        self._confirmed_at: int | None = None
        """Modification time of the folder of versions when Lance last listed it and this was the latest."""
        self._confirmed: RecordedVersion | None = None
        """On an object store: what the catalog has of this version, which a list found to be the latest."""
        self._confirmed_until = 0.0
        self._earlier: dict[int, tuple[tuple[int, int], CachedVersion]] = {}
        """Earlier versions on a local disk as requests share them, each with the identity of its manifest's file."""
        if self.files is None and not branch.is_main:
            with suppress(LanceNamespaceError):  # the dataset may come from a commit, which has been made
                self._branch_contents = _branch_contents(dataset, branch)

    def is_latest(self) -> bool:
        """Whether no commit came after; False for a table that cannot be looked at: opening it anew tells why.

        On local disks it is mostly enough to look for the next version's file: to list a folder of many versions takes
        longer than most queries.
        """
        files = self.files
        if files is None:
            return _lance_says_latest(self.dataset) and (self._branch.is_main or self._is_same_branch())
        if (identity := _file_identity(files.manifest)) != files.identity:
            return False
        if identity is None:  # as where manifests are named by the older scheme
            return _lance_says_latest(self.dataset)
        if os.access(files.next_manifest, os.F_OK):  # raises nothing for a missing file: a third of a stat's time
            return False
        return not os.access(files.references, os.F_OK) or self._is_last_in_folder(files.versions)

    def is_of_same_file(self, dataset: lance.LanceDataset) -> bool:
        """Whether the latest version, opened just now, is this one, by its manifest's file on a local disk."""
        is_known = self.files is not None and self.files.identity is not None
        return is_known and bool(dataset.version == self.dataset.version) and self.is_latest()

    def earlier(self, version: int, open_version: Callable[[], CachedVersion]) -> CachedVersion:
        """Return an earlier version, shared while its manifest's file stays; raises what opening it raises."""
        files = self.files
        identity = None if files is None else _file_identity(manifest_path(files.versions, version))
        if identity is None:
            return open_version()
        known = self._earlier.get(version)
        if known is not None and known[0] == identity:
            return known[1]
        snapshot = open_version()
        if len(self._earlier) >= _MAX_EARLIER:
            self._earlier = {}
        self._earlier[version] = (identity, snapshot)
        return snapshot

    def confirm(self, recorded: RecordedVersion | None) -> None:
        """Remember that storage and the catalog agree that this is the latest version, if they do."""
        if self.files is None and recorded is not None and recorded.version == self.dataset.version:
            self._confirmed, self._confirmed_until = recorded, time.monotonic() + _CONFIRMED_SECONDS

    def is_confirmed(self, recorded: RecordedVersion | None) -> bool:
        """Whether the catalog still has the latest version that storage confirmed a moment ago."""
        return recorded is not None and recorded == self._confirmed and time.monotonic() < self._confirmed_until

    def _is_last_in_folder(self, versions: str) -> bool:
        """Whether a version is the latest where tags or branches keep some: those right behind may be cleaned up.

        The folder is listed once for each change of it. A change within the last second is not relied on: another one
        may leave the same modification time.
        """
        try:
            changed = os.stat(versions).st_mtime_ns  # noqa: PTH116  # a third of the time of a Path's
        except FileNotFoundError:
            return False
        if self._confirmed_at == changed:
            return True
        is_latest = _lance_says_latest(self.dataset)
        if is_latest and time.time_ns() - changed > _SETTLED_NS:
            self._confirmed_at = changed
        return is_latest

    def _is_same_branch(self) -> bool:
        """Whether the branch of this name is still the one that the dataset was opened from."""
        if self._branch_contents is _UNKNOWN:
            return False
        try:
            return bool(_branch_contents(self.dataset, self._branch) == self._branch_contents)
        except LanceNamespaceError:
            return False


def _branch_contents(dataset: lance.LanceDataset, branch: Branch) -> Any:
    """Return what Lance stores of a branch when it is created; None for a branch that is gone."""
    with lance_errors(dataset):
        return list_references(dataset.branches).get(branch.name)


def _latest_files(dataset: lance.LanceDataset, location: str, branch: Branch) -> _LatestFiles:
    folder = f"{location}/{versions_folder(branch)}"
    manifest, next_manifest = (manifest_path(folder, dataset.version + more) for more in (0, 1))
    return _LatestFiles(manifest, next_manifest, folder, f"{location}/_refs", _file_identity(manifest))


def _file_identity(path: str) -> tuple[int, int] | None:
    """Return inode and modification time: another file of the same name, as of a recreated branch or a copy, differs.

    None for a missing file.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  # a third of the time of a Path's
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


def manifest_path(folder: str, version: int) -> str:
    """Return the path of a version's manifest in the folder of versions."""
    return f"{folder}/{manifest_name(version, NamingScheme.V2)}"


def _lance_says_latest(dataset: lance.LanceDataset) -> bool:
    """Whether Lance, which lists the versions, finds none after a dataset's; False if the storage does not answer."""
    try:
        with lance_errors():
            return bool(dataset.latest_version == dataset.version)
    except LanceNamespaceError:
        return False
