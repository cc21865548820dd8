"""Open Lance datasets: one shared session, one cached handle per table and branch."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import lance
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.model.ids import MAIN_BRANCH, check_name
from tiltyard.storage.column_cache import PageCache, place_of
from tiltyard.storage.commit_route import Road
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import canonical, is_local, is_within
from tiltyard.storage.manifest_format import NamingScheme, manifest_name, versions_folder
from tiltyard.storage.version_cache import Facts

_MOST_HANDLES = 1024
_MOST_STEPS = 64
"""A handle that so many commits came after is opened anew."""
_SURELY_PAST_NS = 1_000_000_000
"""Two changes of a folder that lie so far apart leave different times; the clock of files is coarse."""


def nothing_shared(location: str, base: str) -> bool:
    """Every table has its files in its own folder."""
    return False


def any_size(location: str, branch: str | None, version: int | None = None) -> None:
    """Every manifest may be read."""


def any_references(location: str) -> None:
    """All tags and branches may be read."""


class Datasets:
    """Hands out datasets by location.

    `latest` handles are shared between threads and never mutated: they are replaced when the table's version moves,
    which is asked for each time, so that a commit made anywhere is seen by the next request.
    """

    def __init__(
        self,
        index_cache_bytes: int,
        metadata_cache_bytes: int,
        page_cache_bytes: int = 0,
        shares: Callable[[str, str], bool] = nothing_shared,
    ) -> None:
        """`shares(location, base)` says whether a table's files may lie at a base outside its folder."""
        self.shares = shares
        self.check_size: Callable[[str, str | None, int | None], None] = any_size
        """Raises InvalidInputError for a version, None being the latest, whose manifest is too large to be read."""
        self.check_references: Callable[[str], None] = any_references
        """Raises InvalidInputError for a table whose tags and branches are too large to be read."""
        self.facts = Facts()
        self.session = lance.Session(
            index_cache_size_bytes=index_cache_bytes, metadata_cache_size_bytes=metadata_cache_bytes
        )
        self.pages = PageCache(page_cache_bytes)
        self._handles: OrderedDict[tuple[str, str], lance.LanceDataset] = OrderedDict()
        self._lock = threading.Lock()

    def writer(
        self, location: str, options: Mapping[str, str], branch: str | None = None, road: Road | None = None
    ) -> lance.LanceDataset:
        """A handle of the latest version that the caller alone owns, and may write through; its commits take `road`.

        Raises InvalidTableStateError if there is no table there, TableBranchNotFoundError.
        """
        check_name(branch or MAIN_BRANCH, "branch")
        if road is None:  # else the catalog is asked which version is the latest, and looks at it
            self._check_latest(location, branch)
        with lance_errors(location):
            if road is None:
                dataset = lance.dataset(location, storage_options=dict(options), session=self.session)
            else:
                dataset = self._open_by_road(road)
            if branch and branch != MAIN_BRANCH:
                dataset = dataset.checkout_version((branch, None))
        return self.checked(location, dataset)

    def _open_by_road(self, road: Road) -> lance.LanceDataset:
        """As `lance.dataset` opens a table of a namespace, which imports a client of generated models for it."""
        table_id = list(road.table_id)
        table = road.client.describe_table({"id": table_id})
        return lance.LanceDataset(
            table["location"],
            storage_options=table["storage_options"],
            session=self.session,
            namespace_client=road.client,
            table_id=table_id,
            namespace_client_managed_versioning=table["managed_versioning"],
        )

    def _check_latest(self, location: str, branch: str | None) -> None:
        """Look at the size of what is opened next, unless it is open already: that costs less on a disk."""
        for line in {MAIN_BRANCH, branch or MAIN_BRANCH}:
            if not is_local(location) or self.current(location, line) is None:
                self.check_size(location, line, None)

    def checked(self, location: str, dataset: lance.LanceDataset) -> lance.LanceDataset:
        """A handle, if all files of its version lie in its table's folder, or where the catalog knows of.

        Whoever may write a table's files could name others in a manifest, for the server to read with its own rights.
        Raises PermissionDeniedError.
        """
        if not self._keeps_within(location, dataset):
            raise PermissionDeniedError(
                "This version has files outside the folder of its table, where the catalog knows of none: it is "
                "not read. Whoever administers the server can register the table anew."
            )
        return dataset

    def _keeps_within(self, location: str, dataset: lance.LanceDataset) -> bool:
        return all(self.may_use(location, base.path) for base in dataset.base_paths().values())

    def may_use(self, location: str, base: str) -> bool:
        """Whether files of a table may lie at a base: in its own folder, or where the catalog says so."""
        try:
            place = canonical(base)
        except InvalidInputError:
            return False
        return is_within(place, location) or self.shares(location, place)

    def bases(self, location: str, options: Mapping[str, str]) -> list[str]:
        """Where files of a table's latest version lie outside its folder. Raises what `writer` raises."""
        self._check_latest(location, None)
        with lance_errors(location):
            dataset = lance.dataset(location, storage_options=dict(options), session=self.session)
            places = [canonical(base.path) for base in dataset.base_paths().values()]
        return [place for place in places if not is_within(place, location)]

    def reader(
        self,
        location: str,
        options: Mapping[str, str],
        branch: str | None = None,
        version: int | None = None,
        tag: str | None = None,
    ) -> lance.LanceDataset:
        """A shared handle: read only, never mutate it.

        Raises what `writer` raises, TableVersionNotFoundError, TableTagNotFoundError, InvalidInputError for what is no
        name of a branch or tag.
        """
        latest = self._latest(location, options, check_name(branch or MAIN_BRANCH, "branch"))
        if tag is not None:
            self.check_references(location)
            return self.checked(location, self._tagged(latest, check_name(tag, "tag")))
        if version is None or version == latest.version:
            return latest
        line = None if not branch or branch == MAIN_BRANCH else branch
        self.check_size(location, line, version)
        try:
            with lance_errors(latest):
                return self.checked(location, latest.checkout_version((line, version)))
        except (TableVersionNotFoundError, InvalidTableStateError, InvalidInputError) as error:
            raise TableVersionNotFoundError(f"No version {version}: the latest is {latest.version}.") from error

    def _latest(self, location: str, options: Mapping[str, str], branch: str) -> lance.LanceDataset:
        handle = self.current(location, branch)
        if handle is None:
            handle = self._moved_on(location, branch) or self.writer(location, options, branch)
            self.keep(location, branch, handle)
        return handle

    def _moved_on(self, location: str, branch: str) -> lance.LanceDataset | None:
        """What a handle becomes that a few commits came after: to open a table anew, Lance lists all its versions.

        None for a table that is not on a local disk, or not open; with tags or branches there may be gaps.
        """
        handle = self._handles.get((location, branch))
        if handle is None or not is_local(location):
            return None
        places, first = _places_of(handle, location, branch), handle.version
        if os.access(places.references, os.F_OK):
            return None
        steps = range(first, first + _MOST_STEPS)
        version = next((at for at in steps if not os.access(_manifest(places.versions, at + 1), os.F_OK)), first)
        if version == first:
            return None
        line = None if branch == MAIN_BRANCH else branch
        self.check_size(location, line, version)
        try:
            with lance_errors():
                return self.checked(location, handle.checkout_version((line, version)))
        except (TableVersionNotFoundError, InvalidTableStateError):
            return None

    def keep(self, location: str, branch: str | None, handle: lance.LanceDataset) -> None:
        """Share a handle that a commit gave, so that the next request need not open the table again.

        A commit may have come on top of one that nobody has looked at, so one that `checked` would refuse is not kept.
        """
        if not self._keeps_within(location, handle):
            return
        key = place_of(location, branch)
        _know(handle, *key)
        with self._lock:
            self._handles[key] = handle
            self._handles.move_to_end(key)
            if len(self._handles) > _MOST_HANDLES:
                self._handles.popitem(last=False)

    def _tagged(self, dataset: lance.LanceDataset, tag: str) -> lance.LanceDataset:
        try:
            with lance_errors(dataset):
                return dataset.checkout_version(tag)
        except InvalidInputError as error:  # no tag can have such a name
            raise TableTagNotFoundError(f"No tag '{tag}' on this table.") from error

    def holds(self, location: str) -> bool:
        """Whether main's latest version, as far as this process knows, is open."""
        return (location, MAIN_BRANCH) in self._handles

    def current(self, location: str, branch: str = MAIN_BRANCH) -> lance.LanceDataset | None:
        """A shared handle of a branch's latest version, None where that is not open: see `reader`."""
        key = (location, branch)
        with self._lock:
            handle = self._handles.get(key)
            if handle is not None:
                self._handles.move_to_end(key)
        return handle if handle is not None and _is_latest(handle, location, branch) else None

    def forget(self, location: str) -> None:
        """Drop the cached handles and pages of a table that is gone."""
        self.pages.forget(location)
        with self._lock:
            for key in [key for key in self._handles if key[0] == location]:
                del self._handles[key]


_rows: weakref.WeakKeyDictionary[lance.LanceDataset, int] = weakref.WeakKeyDictionary()


def rows_of(handle: lance.LanceDataset) -> int:
    """How many rows a handle's version has: asked of Lance once, which takes ten times as long as to remember it."""
    rows = _rows.get(handle)
    if rows is None:
        rows = _rows[handle] = handle.count_rows()
    return rows


class _Places(NamedTuple):
    """Where to look whether a handle is the latest version, on a local disk; `file` is which file `this` was."""

    this: str
    following: str
    versions: str
    references: str
    file: tuple[int, int] | None


_places: weakref.WeakKeyDictionary[lance.LanceDataset, _Places] = weakref.WeakKeyDictionary()
_confirmed: weakref.WeakKeyDictionary[lance.LanceDataset, int] = weakref.WeakKeyDictionary()
"""When the folder of versions last changed, for handles found the latest since then."""
_branches: weakref.WeakKeyDictionary[lance.LanceDataset, Any] = weakref.WeakKeyDictionary()
"""Which branch a handle on an object store is of: another one may have its name by now, and as many versions."""


def _know(handle: lance.LanceDataset, location: str, branch: str) -> None:
    """Note what a handle is of, for as long as it is shared; one that nothing is noted of is opened anew."""
    if is_local(location):
        _places_of(handle, location, branch)
    elif branch != MAIN_BRANCH:
        with suppress(LanceNamespaceError):  # it may come from a commit, which has been made
            _branches[handle] = _contents(handle, branch)


def _contents(handle: lance.LanceDataset, branch: str) -> Any:
    """What Lance notes of a branch when it is made; None for one that is no more."""
    with lance_errors(handle):
        return handle.branches.list().get(branch)


def _places_of(handle: lance.LanceDataset, location: str, branch: str) -> _Places:
    """Made once for a handle."""
    places = _places.get(handle)
    if places is None:
        folder = f"{location}/{versions_folder(branch)}"
        this, following = (_manifest(folder, handle.version + more) for more in (0, 1))
        places = _places[handle] = _Places(this, following, folder, f"{location}/_refs", _file(this))
    return places


def _file(path: str) -> tuple[int, int] | None:
    """Which file has a path: another one with the same name, as of a branch made anew or a copy, is not the same."""
    try:
        found = os.stat(path)  # noqa: PTH116  # a third of the time of a Path's
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns


def _manifest(folder: str, version: int) -> str:
    return f"{folder}/{manifest_name(version, NamingScheme.V2)}"


def _is_latest(handle: lance.LanceDataset, location: str, branch: str) -> bool:
    """Whether no commit came after a handle; a table that cannot be asked is opened anew, which tells why.

    On local disks it is mostly enough to look for the next version's file: to list a folder of many versions takes
    longer than most queries.
    """
    if not is_local(location):
        return _says_latest(handle) and (branch == MAIN_BRANCH or _is_branch(handle, branch))
    places = _places_of(handle, location, branch)
    if (file := _file(places.this)) != places.file:
        return False
    if file is None:  # as where manifests have other names
        return _says_latest(handle)
    if os.access(places.following, os.F_OK):  # which raises nothing for what is not there: a third of a stat's time
        return False
    return not os.access(places.references, os.F_OK) or _none_beyond(handle, places.versions)


def _none_beyond(handle: lance.LanceDataset, versions: str) -> bool:
    """Whether a version that a tag or a branch may keep is the latest: those right behind it may have been cleaned up.

    What is there is listed once for each change of the folder. One of the last moment is not relied on: another may
    leave the same time.
    """
    try:
        changed = os.stat(versions).st_mtime_ns  # noqa: PTH116  # a third of the time of a Path's
    except FileNotFoundError:
        return False
    if _confirmed.get(handle) == changed:
        return True
    latest = _says_latest(handle)
    if latest and time.time_ns() - changed > _SURELY_PAST_NS:
        _confirmed[handle] = changed
    return latest


def _is_branch(handle: lance.LanceDataset, branch: str) -> bool:
    """Whether the branch of this name is the one that a handle is of."""
    try:
        return handle in _branches and _contents(handle, branch) == _branches[handle]
    except LanceNamespaceError:
        return False


def _says_latest(handle: lance.LanceDataset) -> bool:
    try:
        with lance_errors():
            return bool(handle.latest_version == handle.version)
    except LanceNamespaceError:
        return False
