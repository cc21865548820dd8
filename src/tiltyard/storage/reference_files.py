"""The files of tags and branches on disks: changed by one at a time, and set aside where they are not whole."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from tiltyard.runtime.cache import lasting_facts
from tiltyard.runtime.durability import MISSING, describe_fault
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.locks import LockKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tiltyard.storage.files import FileEntry
    from tiltyard.storage.locks import Locks

log = logging.getLogger("tiltyard.storage")

_SETTLED_MS = 500
"""Files that changed more recently are waited for: whoever copies a table there may be writing them."""

_WHOLE = "whole references"
"""The fact of a table how its files of tags and branches looked when all of them were whole."""
_MAX_LISTINGS = 20
"""How often tags or branches are listed until none of them is deleted meanwhile."""
_GONE = re.compile(r"Not found: \S*_refs/")
"""What Lance says of a file that it has found in a list, and that is not there any more when it is read."""


class References(Protocol):
    """The tags, or the branches, of a dataset."""

    def list(self) -> dict[str, Any]: ...


def list_references(references: References) -> dict[str, Any]:
    """Return all tags, or all branches other than main, by name. Raises what Lance raises.

    Lance fails where one is deleted between its list of the files and its reading of that one: then all are read again.
    """
    tries = 0
    while True:
        try:
            return dict(references.list())
        except (OSError, ValueError) as error:
            tries += 1
            if tries == _MAX_LISTINGS or not _GONE.search(str(error)):
                raise


class ReferenceFiles:
    """The files in `_refs` of all tables of a storage. Safe to use from several threads and processes of a machine.

    Lance writes each to a temporary file, which it links or renames: with its final name a file is whole, as long as
    the machine runs and its disk is not full. After a loss of power it may be empty or torn if it was not durable yet,
    so never acknowledged, and then Lance can read none of the table's tags, or branches.
    """

    def __init__(self, make_durable: Callable[..., None], locks: Locks, timeout: float) -> None:
        """`make_durable` is the storage's; a change waits for others for `timeout` seconds."""
        self._make_durable = make_durable
        self._locks = locks
        self._timeout = timeout

    @contextmanager
    def changing(self, location: str, path: str) -> Iterator[None]:
        """Make a file of a tag or a branch durable that Lance writes or deletes in the block; `path` is in the table.

        On a full disk Lance may leave an empty file: then the one that was there is put back. Raises as `make_durable`,
        TooBusyError while others change tags or branches of the table.
        """
        if not is_local(location):
            yield
            return
        with self._locks.hold(LockKind.REFERENCES, location, self._timeout):
            file, saved = f"{location}/{path}", f"{location}/_refs/.{uuid4().hex}"
            with lance_errors(location), suppress(FileNotFoundError):
                _delete_if_broken(file)
                os.link(file, saved)
            try:
                yield
                self._make_durable([file], missing_ok=True)
            except BaseException:
                if os.path.lexists(file) and describe_fault(file) is not None:
                    Path(file).unlink(missing_ok=True)
                    with suppress(FileNotFoundError):
                        os.rename(saved, file)  # noqa: PTH104  # as its link
                raise
            finally:
                Path(saved).unlink(missing_ok=True)

    def set_broken_aside(self, location: str, entries: Iterable[FileEntry]) -> None:
        """Delete those files of a table's tags and branches that are not whole; `entries` are the files in `_refs`.

        Only what is no JSON is deleted, which nobody can read: never a file that is too large to be looked at. Raises
        TooBusyError, ServiceUnavailableError.
        """
        if not is_local(location):
            return
        files = [entry for entry in entries if entry.path.endswith(".json")]
        looks = hash(tuple((entry.path, entry.size, entry.modified) for entry in files))
        if lasting_facts.get((_WHOLE, location)) == looks:
            return
        with lance_errors(location):
            broken = [entry for entry in files if _is_broken(f"{location}/_refs/{entry.path}")]
            for entry in broken:
                age = abs(time.time_ns() // 1_000_000 - entry.modified)
                time.sleep(max(_SETTLED_MS - age, 0) / 1000)
                self._delete_broken(location, f"{location}/_refs/{entry.path}")
        if not broken:
            lasting_facts.put((_WHOLE, location), looks)

    def _delete_broken(self, location: str, file: str) -> None:
        with self._locks.hold(LockKind.REFERENCES, location, self._timeout):
            _delete_if_broken(file)


def _delete_if_broken(file: str) -> None:
    """Delete a file that is there and not whole; the caller holds the lock, so nobody has replaced it meanwhile."""
    if _is_broken(file):
        Path(file).unlink(missing_ok=True)
        log.warning("%s was not whole, as after a loss of power: it is deleted", file)


def _is_broken(file: str) -> bool:
    """Whether a file is there and not whole."""
    return describe_fault(file) not in (None, MISSING)
