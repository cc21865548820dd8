"""Journals of attempts and their outcomes, and of reads: one file of JSON lines for each writer and reader."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = tuple[str, str]
"""A row's key, and the attempt that wrote it."""

FOR_EVER = 1 << 62


class Kind(StrEnum):
    """The kind of a write."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    MERGE = "merge"
    DELETE = "delete"
    RESTORE = "restore"
    TAG = "tag"
    BATCH = "batch"


class Outcome(StrEnum):
    """The outcome of a write, as its client reported it."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write. `keys` are those it writes, or deletes, by table; `target` is the version it restores or tags."""

    name: str
    kind: Kind
    keys: Mapping[str, tuple[str, ...]]
    target: int = 0
    client: str = ""
    start: int = 0
    end: int = FOR_EVER
    outcome: Outcome = Outcome.UNKNOWN
    versions: Mapping[str, int] = field(default_factory=dict)
    """The versions in the response, by table."""
    error: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self.keys)

    def rows(self, table: str) -> list[Row]:
        """Return the rows that it writes to a table."""
        return [(key, self.name) for key in self.keys[table]]


@dataclass(frozen=True, slots=True)
class Read:
    """A read of one table; `version` is 0 where the client does not return it."""

    reader: str
    table: str
    start: int
    end: int
    digest: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """The entries of all journals."""

    attempts: Mapping[str, Attempt]
    reads: tuple[Read, ...] = ()


def digest_of(rows: Iterable[Row]) -> str:
    """Compute a text that is equal only for equal multisets of rows."""
    return hashlib.sha256("\n".join(sorted("\t".join(row) for row in rows)).encode()).hexdigest()[:24]


class Journal:
    """A file that one thread writes before and after each attempt."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, entry: Attempt | Read) -> None:
        """Write an entry; the later entry of an attempt replaces the earlier one."""
        record = {"type": type(entry).__name__, **asdict(entry)}
        self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def load(folder: Path) -> History:
    """Load the journals of a folder; they may still be written, so their last lines may be incomplete."""
    attempts: dict[str, Attempt] = {}
    reads: list[Read] = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().split("\n")[:-1]:
            record: dict[str, Any] = json.loads(line)
            if record.pop("type") == Read.__name__:
                reads.append(Read(**record))
            else:
                attempt = _attempt(record)
                attempts[attempt.name] = attempt
    return History(attempts, tuple(reads))


def _attempt(record: dict[str, Any]) -> Attempt:
    keys = {table: tuple(names) for table, names in record.pop("keys").items()}
    kind, outcome = Kind(record.pop("kind")), Outcome(record.pop("outcome"))
    return Attempt(keys=keys, kind=kind, outcome=outcome, **record)


def now() -> int:
    """Return a time that all processes of a machine share, in nanoseconds."""
    return time.monotonic_ns()
