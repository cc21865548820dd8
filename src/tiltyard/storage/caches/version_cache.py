"""What is known of versions, which never change: to read it again would dominate a request's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import lance

from tiltyard.runtime.cache import lasting_facts
from tiltyard.storage.manifests.manifest_format import message_of, parse_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

P = ParamSpec("P")
T = TypeVar("T")


MAX_KEPT = 256
"""What is kept with an open version by keys of requests: less than a kilobyte each."""

Key: TypeAlias = tuple[str, str, str | None]
"""A table's location, a manifest's path below it, and the file's entity tag."""


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """When a version was created (milliseconds since 1970), and Lance's metadata of it as text."""

    timestamp: int
    metadata: dict[str, str]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> VersionInfo:
        """Convert one of pylance's dictionaries of a version."""
        metadata = {str(key): str(value) for key, value in entry["metadata"].items()}
        return cls(int(entry["timestamp"].timestamp() * 1000), metadata)

    @classmethod
    def of_manifest(cls, content: bytes, version: int) -> VersionInfo:
        """Read the content of a manifest, without the storage. Raises InvalidInputError, and what Lance raises."""
        parse_manifest(content, version)
        dataset = lance.LanceDataset("memory://manifest", version=version, serialized_manifest=message_of(content))
        return cls.of(dataset.get_version())


_UNREAD = object()


class CachedVersion:
    """A dataset at one version, which it never leaves, and the facts that were read of that version."""

    __slots__ = ("_facts", "_kept", "dataset")

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self.dataset = dataset
        self._facts: dict[Callable[..., Any], Any] = {}
        self._kept: dict[Hashable, Any] = {}

    def fact(self, read: Callable[Concatenate[lance.LanceDataset, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        """Return what `read` returns for the dataset; it is called once, and its result kept with the snapshot.

        Concurrent first calls may each call it. Raises what `read` raises.
        """
        fact: Any = self._facts.get(read, _UNREAD)
        if fact is _UNREAD:
            fact = self._facts[read] = read(self.dataset, *arguments, **options)
        return cast("T", fact)

    def known(self, key: Hashable) -> Any:
        """Return what `keep` has kept by a key; None where it has nothing."""
        return self._kept.get(key)

    def keep(self, key: Hashable, value: Any) -> None:
        """Keep what was read of the version for one of many keys, of requests: from MAX_KEPT on it begins anew."""
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = value

    def count_rows(self) -> int:
        """Return how many rows the version has; Lance is asked once, which takes ten times as long as a lookup."""
        return self.fact(_count_rows)


def _count_rows(dataset: lance.LanceDataset) -> int:
    return dataset.count_rows()


def version_info(key: Key, read: Callable[[], VersionInfo]) -> VersionInfo:
    """Return the metadata of a manifest, which is read once in a process. Raises what `read` raises.

    Without an entity tag nothing tells whether the file is the same: then it is read each time.
    """
    if key[-1] is None:
        return read()
    info: VersionInfo = lasting_facts.get_or_make(("version", *key), read)
    return info
