"""What became final a moment ago is noted in the catalog together, in the background.

Nobody waits for this: a version that is recorded and durable but not noted as final is made final again by whoever
comes across it, which changes nothing. It is noted only once the manifest and the folder that names it are durable,
too, so that a record never calls a manifest final which a loss of power took back.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import LanceNamespaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tiltyard.store import FinalManifest, VersionRecord

log = logging.getLogger("tiltyard.versions")

Key: TypeAlias = tuple[int, str, int, str]

GATHER_SECONDS = 0.5
"""How long a note waits for others. To make manifests durable keeps the disk from commits, and many at once take it
hardly longer than few. So long other processes look whether a manifest is in place, or make it final once more.
"""


_NONE = -1, ""


class Finished:
    """The notes that one process has yet to write. Safe to use from several threads."""

    def __init__(self, sync: Callable[[Iterable[str]], None], write: Callable[[Iterable[FinalManifest]], None]) -> None:
        """`sync(places)` makes files durable, and what folders name; `write` is the store's `mark_final`."""
        self._sync = sync
        self._write = write
        self._noted: dict[Key, FinalManifest] = {}
        self._latest: dict[tuple[int, str], tuple[int, str]] = {}
        self._waking = False
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def note(self, found: Iterable[FinalManifest]) -> None:
        """Have the catalog told soon."""
        with self._lock:
            for one in found:
                self._noted[_key(one.record)] = one
                record = one.record
                self._latest[record.table_id, record.branch] = record.version, record.naming_scheme
            if self._waking or not self._noted:
                return
            self._waking = True
        timer = threading.Timer(GATHER_SECONDS, self.close)
        timer.daemon = True
        timer.start()

    def holds(self, record: VersionRecord) -> bool:
        """Whether this process knows a record's manifest to be in its final place."""
        return _key(record) in self._noted

    def placed(self, table_id: int, branch: str, version: int, scheme: str) -> bool:
        """Whether a version, so named, is the last one of its branch that this process has put into its place, a moment
        ago.
        """
        return self._latest.get((table_id, branch)) == (version, scheme)

    def flush(self) -> None:
        """Tell the catalog now. Raises what the storage and the store raise; what was noted is then given up."""
        with self._writing:
            with self._lock:
                taken = dict(self._noted)
                self._waking = False
            if not taken:
                return
            try:
                self._sync(_places(taken.values()))
                self._write(taken.values())
            finally:
                with self._lock:
                    for key in taken:
                        self._noted.pop(key, None)
                        if self._latest.get(key[:2], _NONE)[0] == key[2]:
                            del self._latest[key[:2]]

    def close(self) -> None:
        """Write what waits; what cannot be written is said in the log, and left to whoever reads the table next."""
        try:
            self.flush()
        except LanceNamespaceError as error:
            log.warning("versions that are final are not noted as such, and will be checked again: %s", error)


def _key(record: VersionRecord) -> Key:
    return record.table_id, record.branch, record.version, record.staged_path


def _places(found: Iterable[FinalManifest]) -> set[str]:
    """The final manifests, and the folders that name them; a staged one lies in the same folder."""
    places = set[str]()
    for record in (one.record for one in found):
        folder = record.staged_path.rpartition("/")[0]
        places.update((folder, f"{folder}/{record.manifest_path.rpartition('/')[2]}"))
    return places
