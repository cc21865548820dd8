"""What Lance knows of versions, kept: a manifest never changes, and to read it again takes longer than all else."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST = 4096
"""Versions kept: about a kilobyte each."""

Key: TypeAlias = tuple[str, str, str | None]
"""A table's location, a manifest's path below it, and the file's tag."""


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """When a version was made (milliseconds since 1970), and Lance's figures of it as text."""

    timestamp: int
    metadata: dict[str, str]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> VersionFacts:
        """Read one of pylance's dictionaries."""
        metadata = {str(key): str(value) for key, value in entry["metadata"].items()}
        return cls(int(entry["timestamp"].timestamp() * 1000), metadata)


class Facts:
    """The versions asked for last. Safe to use from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, VersionFacts] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Key, read: Callable[[], VersionFacts]) -> VersionFacts:
        """What is known of a manifest; it is read if it is not kept. Raises what `read` raises.

        Without a tag nothing tells whether the file is the same: then nothing is kept.
        """
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found
        found = read()
        if key[-1] is not None:
            with self._lock:
                self._kept[key] = found
                if len(self._kept) > MOST:
                    self._kept.popitem(last=False)
        return found
