"""Open Lance datasets with one session, and share one dataset per table and branch between requests."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping

import lance
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.ids import check_name
from tiltyard.runtime.cache import Cache, CountedCache
from tiltyard.storage.caches.column_cache import BranchKey, ColumnCache
from tiltyard.storage.caches.openings import Opening, Openings
from tiltyard.storage.caches.shared_snapshots import RecordedVersion, SharedSnapshot, manifest_path
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.commit_route import CommitRoute
from tiltyard.storage.disk_cache.cache import DiskCache
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import canonical_location, is_local, is_within
from tiltyard.storage.vector_cache.cache import VectorCache

log = logging.getLogger("tiltyard.storage")

_MAX_SHARED = 1024
"""Datasets kept open."""
_CACHED_BYTES = re.compile(r"_cache_size_bytes=(\d+)")
_MAX_STEPS = 64
"""A dataset that is this many versions behind is opened anew."""


def no_shared_bases(location: str, base: str) -> bool:
    """Allow no base outside a table's folder: every table has its files in its own folder."""
    return False


def no_options(location: str) -> Mapping[str, str]:
    """Return no storage options: every table is on a local disk."""
    return {}


def no_size_limit(location: str, branch: Branch, version: int | None = None) -> None:
    """Allow manifests of every size."""


def no_references_limit(location: str) -> None:
    """Allow tags and branches of every size."""


class Datasets:
    """Open datasets by location.

    Datasets from `open_for_reading` are shared between threads and never mutated: they are replaced when the table's
    version moves, which is looked up each time, so that a commit made anywhere is seen by the next request. On an
    object store it is looked up in the catalog alone where callers pass the latest version that it has recorded, and a
    list has confirmed that a moment ago.
    """

    def __init__(
        self,
        index_cache_bytes: int,
        metadata_cache_bytes: int,
        column_cache_bytes: int = 0,
        has_shared_base: Callable[[str, str], bool] = no_shared_bases,
        vector_cache_bytes: int = 0,
        processors: int = 1,
        disk_cache_bytes: int = 0,
        disk_cache_folder: str = "",
    ) -> None:
        """`has_shared_base(location, base)` says whether a table's files may lie at a base outside its folder."""
        self.has_shared_base = has_shared_base
        self.processors = processors
        """Searches that run at once without waiting for others."""
        self.options_of: Callable[[str], Mapping[str, str]] = no_options
        """Lance's storage options for a location. Raises PermissionDeniedError for one that nothing is read of, and
        ServiceUnavailableError while its store is known to be away.
        """
        self.check_size: Callable[[str, Branch, int | None], None] = no_size_limit
        """Raises InvalidInputError for a version, None being the latest, whose manifest is too large to be read."""
        self.check_references: Callable[[str], None] = no_references_limit
        """Raises InvalidInputError for a table whose tags and branches are too large to be read."""
        self.session = lance.Session(
            index_cache_size_bytes=index_cache_bytes, metadata_cache_size_bytes=metadata_cache_bytes
        )
        self.column_cache = ColumnCache(column_cache_bytes)
        self.vector_cache = VectorCache(vector_cache_bytes, processors)
        self.disk_cache = DiskCache(disk_cache_folder, disk_cache_bytes, self.session)
        self._shared: Cache[BranchKey, SharedSnapshot] = Cache(
            "open versions",
            "The latest version of a branch as requests share it, with what was read of it",
            max_entries=_MAX_SHARED,
            invalidated_by="a later version, which each request looks for; a drop or restore of its table",
        )
        self.openings = Openings()

    def share_out(self, tenants_of: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        """Let tenants share the caches of tables; `tenants_of` tells whose the tables at some locations are."""

        def known(locations: Collection[str]) -> Mapping[str, str]:
            try:
                return tenants_of(locations)
            except ServiceUnavailableError as error:
                log.warning("caches are not shared out by namespaces while the catalog does not answer: %s", error)
                return {}

        for cache in self.shared_caches:
            cache.tenants_of = known

    @property
    def shared_caches(self) -> tuple[CountedCache, ...]:
        """The caches that tenants share."""
        return self.column_cache, self.vector_cache, self.disk_cache

    @property
    def session_bytes(self) -> int:
        """Bytes of index pages and of metadata that the session caches.

        They stand in its text in a microsecond; `size_bytes` counts them one by one, for some milliseconds or more.
        """
        return sum(map(int, _CACHED_BYTES.findall(repr(self.session))))

    def open_for_writing(
        self,
        location: str,
        branch: Branch = MAIN,
        commit_route: CommitRoute | None = None,
    ) -> lance.LanceDataset:
        """Open the latest version as a dataset of the caller's own, to write through; its commits take `commit_route`.

        Raises InvalidTableStateError if there is no table there, TableBranchNotFoundError.
        """
        branch.check()
        options = self.options_of(location)
        if commit_route is None:  # else the catalog says which version is the latest, and checks it
            self._check_latest(location, branch)
        with lance_errors(location):
            if commit_route is None:
                dataset = lance.dataset(location, storage_options=dict(options), session=self.session)
            else:
                dataset = self._open_by_route(commit_route)
            if not branch.is_main:
                dataset = dataset.checkout_version((branch.lance_name, None))
        return self.check_bases(location, dataset)

    def _open_by_route(self, commit_route: CommitRoute) -> lance.LanceDataset:
        """Open a table of a namespace as `lance.dataset` does, which would import a client of generated models."""
        table_id = list(commit_route.table_id)
        table = commit_route.client.describe_table({"id": table_id})
        return lance.LanceDataset(
            table["location"],
            storage_options=table["storage_options"],
            session=self.session,
            namespace_client=commit_route.client,
            table_id=table_id,
            namespace_client_managed_versioning=table["managed_versioning"],
        )

    def _check_latest(self, location: str, branch: Branch) -> None:
        """Check the size of the manifests opened next, unless they are open already, which is cheaper on a disk."""
        for opened in {MAIN, branch}:
            if not is_local(location) or self.cached_snapshot(location, opened) is None:
                self.check_size(location, opened, None)

    def check_bases(self, location: str, dataset: lance.LanceDataset) -> lance.LanceDataset:
        """Return a dataset if all files of its version lie in its table's folder, or at bases in the catalog.

        Clients that can write a table's files could name other files in a manifest, for the server to read with its
        own rights. Raises PermissionDeniedError.
        """
        if not self._has_allowed_bases(location, dataset):
            raise PermissionDeniedError(
                "This version has files outside the folder of its table, which the catalog does not record: it is "
                "not read. An administrator can register the table again."
            )
        return dataset

    def _has_allowed_bases(self, location: str, dataset: lance.LanceDataset) -> bool:
        return all(self.allows_base(location, base.path) for base in dataset.base_paths().values())

    def allows_base(self, location: str, base: str) -> bool:
        """Whether files of a table may lie at a base: in its own folder, or where the catalog says so."""
        try:
            base_location = canonical_location(base)
        except InvalidInputError:
            return False
        return is_within(base_location, location) or self.has_shared_base(location, base_location)

    def list_foreign_bases(self, location: str) -> list[str]:
        """List the bases of a table's latest version outside its folder. Raises what `open_for_writing` raises."""
        options = self.options_of(location)
        self._check_latest(location, MAIN)
        with lance_errors(location):
            dataset = lance.dataset(location, storage_options=dict(options), session=self.session)
            bases = [canonical_location(base.path) for base in dataset.base_paths().values()]
        return [base for base in bases if not is_within(base, location)]

    def open_for_reading(
        self,
        location: str,
        branch: Branch = MAIN,
        version: int | None = None,
        tag: str | None = None,
        recorded: RecordedVersion | None = None,
    ) -> lance.LanceDataset:
        """Return the dataset of `open_snapshot`: shared, so never mutate it. Raises the same."""
        return self.open_snapshot(location, branch, version, tag, recorded).dataset

    def open_snapshot(
        self,
        location: str,
        branch: Branch = MAIN,
        version: int | None = None,
        tag: str | None = None,
        recorded: RecordedVersion | None = None,
    ) -> CachedVersion:
        """Return a snapshot with a shared dataset, the latest version by default: read only, never mutate it.

        `recorded` is the latest version of the branch as the catalog had it when this was called.
        Raises what `open_for_writing` raises, TableVersionNotFoundError, TableTagNotFoundError, InvalidInputError for
        an invalid name of a branch or tag.
        """
        self.options_of(location)  # raises for a version that is open, too
        latest = self._open_latest(location, branch.check(), recorded)
        if tag is not None:
            self.check_references(location)
            return CachedVersion(self.check_bases(location, _checkout_tag(latest.dataset, check_name(tag, "tag"))))
        if version is None or version == latest.dataset.version:
            return latest
        self.check_size(location, branch, version)

        def open_version() -> CachedVersion:
            with lance_errors(latest.dataset):
                checked_out = latest.dataset.checkout_version((branch.lance_name, version))
                return CachedVersion(self.check_bases(location, checked_out))

        shared = self._shared.get((location, branch))
        try:
            if shared is not None and shared.snapshot is latest:
                return shared.earlier(version, open_version)
            return open_version()
        except (TableVersionNotFoundError, InvalidTableStateError, InvalidInputError) as error:
            raise TableVersionNotFoundError(f"No version {version}: the latest is {latest.dataset.version}.") from error

    def _open_latest(self, location: str, branch: Branch, recorded: RecordedVersion | None) -> CachedVersion:
        snapshot = self.cached_snapshot(location, branch, recorded)
        if snapshot is None:
            dataset = self._advance(location, branch) or self.open_for_writing(location, branch)
            snapshot = self.cache(location, branch, dataset, recorded)
        return snapshot

    def _advance(self, location: str, branch: Branch) -> lance.LanceDataset | None:
        """Check out the latest version from a shared dataset that is a few commits behind.

        To open a table anew, Lance lists all its versions. None for a table that is not on a local disk, or not open,
        or has tags or branches: with those there may be gaps between versions.
        """
        shared = self._shared.get((location, branch))
        if shared is None or shared.files is None:
            return None
        files, first = shared.files, shared.dataset.version
        if os.access(files.references, os.F_OK):
            return None
        steps = range(first, first + _MAX_STEPS)
        version = next((at for at in steps if not os.access(manifest_path(files.versions, at + 1), os.F_OK)), first)
        if version == first:
            return None
        self.check_size(location, branch, version)
        try:
            with lance_errors():
                return self.check_bases(location, shared.dataset.checkout_version((branch.lance_name, version)))
        except (TableVersionNotFoundError, InvalidTableStateError):
            return None

    def cache(
        self, location: str, branch: Branch, dataset: lance.LanceDataset, recorded: RecordedVersion | None = None
    ) -> CachedVersion:
        """Share the dataset of a commit, so that the next request need not open the table again; return its snapshot.

        `recorded` is the latest version as the catalog has it, read before the dataset was opened, or after its commit.
        The commit may have rebased on a version that nobody has checked, so a dataset that `check_bases` would refuse
        is not shared. The snapshot that a reader has opened of this version meanwhile stays: what was read of it is not
        read again.
        """
        opened = self._shared.get((location, branch))
        if opened is not None and opened.is_of_same_file(dataset):
            return opened.snapshot
        snapshot = CachedVersion(dataset)
        if not self._has_allowed_bases(location, dataset):
            return snapshot
        shared = SharedSnapshot(snapshot, location, branch)
        shared.confirm(recorded)
        self._shared.put((location, branch), shared)
        return snapshot

    def cache_when_open(
        self,
        location: str,
        base: lance.LanceDataset | None,
        version: int,
        open_version: Callable[[], lance.LanceDataset],
        recorded: RecordedVersion | None,
    ) -> None:
        """Open a version of main in a thread, and share it as `cache` does. It came after `base`, and has its columns.

        Readers wait for it; appends meanwhile use `base`, if there is one. Where it cannot be opened, the next reader
        tries again.
        """
        opening = Opening(base, version, open_version, lambda dataset: self.cache(location, MAIN, dataset, recorded))
        self.openings.start(location, opening)

    def is_open(self, location: str) -> bool:
        """Whether main's latest version, as far as this process knows, is open."""
        return (location, MAIN) in self._shared

    def shares(self, location: str, branch: Branch, snapshot: CachedVersion) -> bool:
        """Whether a snapshot is the shared one, of a branch's latest version as far as this process knows."""
        shared = self._shared.get((location, branch))
        return shared is not None and shared.snapshot is snapshot

    def cached_snapshot(
        self, location: str, branch: Branch = MAIN, recorded: RecordedVersion | None = None
    ) -> CachedVersion | None:
        """Return the shared snapshot of a branch's latest version, None where that is not open."""
        if branch.is_main and (opening := self.openings.get(location)) is not None:
            opening.wait()
        shared = self._shared.get((location, branch))
        if shared is None:
            return None
        if not shared.is_confirmed(recorded):
            if not shared.is_latest():
                return None
            shared.confirm(recorded)
        return shared.snapshot

    def recorded_dataset(
        self, location: str, recorded: RecordedVersion, *, is_open: bool = False
    ) -> lance.LanceDataset | None:
        """Return a shared dataset to write to the version that the catalog has, without a look at storage.

        It is of that version, or of an earlier one with the same columns, while that is being opened; with `is_open` it
        waits for that. None where neither is open. Who writes with it calls `is_in_storage` before the commit.
        """
        opening = self.openings.get(location)
        if opening is not None and is_open:
            opening.wait()
        elif opening is not None:
            return opening.base if opening.version == recorded.version else None
        shared = self._shared.get((location, MAIN))
        return shared.dataset if shared is not None and shared.dataset.version == recorded.version else None

    def is_in_storage(self, location: str, dataset: lance.LanceDataset, version: int) -> bool:
        """Whether storage has a version of a dataset of main, or later ones; forget the table where it has neither.

        It has neither where the folder was restored from a copy. Raises ServiceUnavailableError.
        """
        with lance_errors(dataset):
            is_there = int(dataset.latest_version) >= version
        if not is_there:
            self.forget(location, MAIN)
        return is_there

    def forget(self, location: str, branch: Branch) -> None:
        """Drop the shared dataset of a branch, so that its latest version is looked up anew."""
        if branch.is_main:
            self.openings.forget(location)
        self._shared.pop((location, branch))

    def evict(self, location: str) -> None:
        """Drop the shared datasets, cached columns, vectors and files of a table that was deleted."""
        self.column_cache.evict(location)
        self.vector_cache.evict(location)
        self.disk_cache.evict(location)
        self.openings.forget(location)
        self._shared.remove(lambda key: key[0] == location)


def _checkout_tag(dataset: lance.LanceDataset, tag: str) -> lance.LanceDataset:
    try:
        with lance_errors(dataset):
            return dataset.checkout_version(tag)
    except InvalidInputError as error:  # no tag can have such a name
        raise TableTagNotFoundError(f"No tag '{tag}' on this table.") from error
