"""Keep results for later callers: within a bound, for a time, until something invalidates them."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from tiltyard.runtime.machinery import Kind, Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
D = TypeVar("D")
P = ParamSpec("P")

FOREVER = float("inf")
IDLE_SECONDS = 1800.0
"""What nobody has used for so long is nobody's share of a cache any more."""


class NoShareError(Exception):
    """Room could be made only at the cost of tenants that have less of the cache."""


@dataclass(frozen=True, slots=True)
class Kept(Generic[K]):
    """What a cache keeps for a tenant, its size in bytes, and when it was used last (`time.monotonic`)."""

    key: K
    tenant: str
    size: int
    used_at: float


def choose_dropped(kept: Iterable[Kept[K]], size: int, tenant: str, bound: int) -> list[K]:
    """Return what to drop so that `size` more bytes of a tenant fit within a bound; `kept` is the oldest use first.

    What is idle goes first, then always what is used least recently of the tenant that has most by then, the newcomer
    counted in (max-min fairness). So what one reads never costs another one what is within an equal share.
    Raises NoShareError.
    """
    queues: dict[str, deque[Kept[K]]] = {}
    sizes = Counter({tenant: size})
    dropped: list[K] = []
    idle_since = time.monotonic() - IDLE_SECONDS
    idle = deque[Kept[K]]()
    for each in kept:
        if each.size:
            (idle if each.used_at < idle_since else queues.setdefault(each.tenant, deque())).append(each)
            sizes[each.tenant] += each.size
    while sizes.total() > bound:
        if idle:
            each = idle.popleft()
        else:
            largest = max(sizes, key=lambda name: (sizes[name], name == tenant))
            if not queues.get(largest):
                raise NoShareError
            each = queues[largest].popleft()
        sizes[each.tenant] -= each.size
        dropped.append(each.key)
    return dropped


def _no_tenants(locations: Collection[str]) -> Mapping[str, str]:
    return {}


class CountedCache(Machine):
    """A cache with its own way to keep things, which counts its `hits` and `misses`, and tells its bytes.

    `tenants_of` tells whose tables at locations are, for one that tenants share by `choose_dropped`.
    """

    kind = Kind.CACHE
    unit = "bytes"
    tenants_of: Callable[[Collection[str]], Mapping[str, str]] = staticmethod(_no_tenants)

    def __init__(self, name: str, purpose: str, *, max_bytes: int, invalidated_by: str) -> None:
        """`max_bytes` is the bound, 0 for a cache that keeps nothing."""
        self.max_bytes = max_bytes
        self.invalidated_by = invalidated_by
        self.hits = self.misses = 0
        super().__init__(name, purpose)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(size for _, size in self.sizes())

    def sizes(self) -> Sequence[tuple[str, int]]:
        """Return the bytes that are kept by the locations of tables, for a cache that tenants share."""
        return ()

    def find_tenants(self) -> Mapping[str, str]:
        """Return whose the tables are that something is kept of, by location."""
        locations = {location for location, _ in self.sizes()}
        return self.tenants_of(locations) if locations else {}

    def sizes_by_tenant(self) -> Mapping[str, int]:
        """Return the bytes that are kept by tenant."""
        tenants, found = self.find_tenants(), Counter[str]()
        for location, size in self.sizes():
            found[tenants.get(location, "")] += size
        return found

    def figures(self) -> Mapping[str, float]:
        return {"size": self.size, "bound": self.max_bytes, "hits": self.hits, "misses": self.misses}


class Cache(Machine, Generic[K, V]):
    """Values by key; those that were used least recently go where there are too many. Safe to use from any thread.

    A bound of 0 keeps nothing. A value that alone is larger than the bound is not kept.
    """

    kind = Kind.CACHE

    def __init__(
        self,
        name: str,
        purpose: str,
        *,
        invalidated_by: str,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        size_of: Callable[[K, V], int] | None = None,
        seconds: float = FOREVER,
        clock: Callable[[], float] = time.monotonic,
        dropped: Callable[[V], object] | None = None,
    ) -> None:
        """Bound it by `max_entries`, or by `max_bytes`, of which `size_of` says how many a key and its value have.

        A value is kept for `seconds` of `clock`. `invalidated_by` says to readers what else removes one. `dropped` is
        called with each value that goes, whatever removes it, outside of the lock.
        """
        if max_entries is None and (max_bytes is None or size_of is None):
            raise ValueError(f"The cache '{name}' has no bound.")
        self.invalidated_by = invalidated_by
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self.seconds = seconds
        self.unit = "entries" if max_bytes is None else "bytes"
        self.hits = self.misses = self.bytes = 0
        self._size_of, self._clock, self._dropped = size_of, clock, dropped
        self._entries: OrderedDict[K, tuple[V, float, int]] = OrderedDict()
        self._is_filling = False
        self._lock = threading.Lock()
        super().__init__(name, purpose)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        entry = self._entries.get(key)
        return entry is not None and (entry[1] == FOREVER or entry[1] > self._clock())

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, which counts as its use; `default` where there is none any more.

        Uses are put in order once half of the room is taken: until then no call waits for another.
        """
        entry = self._entries.get(key)
        if entry is None or (entry[1] != FOREVER and entry[1] <= self._clock()):
            self.misses += 1
            return default
        if self._is_filling:
            with self._lock, suppress(KeyError):  # it was removed meanwhile
                self._entries.move_to_end(key)
        self.hits += 1
        return entry[0]

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, or make and keep it. Callers at once may each make it. Raises what `make` does."""
        value: V = self.get(key, _NONE)
        if value is _NONE:
            value = make()
            self.put(key, value)
        return value

    def put(self, key: K, value: V, seconds: float | None = None) -> None:
        """Keep a value, for as many seconds as others unless told, and drop others where there are too many."""
        life = self.seconds if seconds is None else seconds
        expires = FOREVER if life == FOREVER else self._clock() + life
        size = 0 if self._size_of is None else self._size_of(key, value)
        with self._lock:
            gone = [self._entries.pop(key)] if key in self._entries else []
            self._entries[key] = value, expires, size
            self.bytes += size - sum(entry[2] for entry in gone)
            while self._entries and self._is_over():
                _, oldest = self._entries.popitem(last=False)
                self.bytes -= oldest[2]
                gone.append(oldest)
            self._is_filling = self._is_over(half=True)
        self._drop(gone)

    def pop(self, key: K) -> V | None:
        """Remove the value of a key, and return it; it is the caller's then, and not dropped."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self.bytes -= entry[2]
        return entry[0]

    def remove(self, matches: Callable[[K], bool]) -> None:
        """Remove the values of all keys that match."""
        with self._lock:
            gone = [self._entries.pop(key) for key in [key for key in self._entries if matches(key)]]
            self.bytes -= sum(entry[2] for entry in gone)
        self._drop(gone)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            gone = list(self._entries.values())
            self._entries.clear()
            self.bytes = 0
        self._drop(gone)

    def figures(self) -> Mapping[str, float]:
        size, bound = (len(self), self.max_entries) if self.max_bytes is None else (self.bytes, self.max_bytes)
        return {"size": size, "bound": bound or 0, "hits": self.hits, "misses": self.misses}

    def close(self) -> None:
        self.clear()

    def _is_over(self, *, half: bool = False) -> bool:
        """Return whether there is more than the bound allows, or than a `half` of it."""
        return (self.max_entries is not None and len(self._entries) > self.max_entries >> half) or (
            self.max_bytes is not None and self.bytes > self.max_bytes >> half
        )

    def _drop(self, gone: list[tuple[V, float, int]]) -> None:
        if self._dropped is not None:
            for value, _, _ in gone:
                self._dropped(value)


_NONE: Any = object()


def held_bytes(*objects: object) -> int:
    """Return how many bytes objects take with all that they hold, each once; classes are no part of them.

    An object whose class has a `__sizeof__` in Python says by that what it holds.
    """
    seen: set[int] = set()
    size, left = 0, [*objects]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        size += sys.getsizeof(each)
        if not isinstance(type(each).__sizeof__, FunctionType):
            left += gc.get_referents(each)
            left += each if isinstance(each, dict) else ()  # its keys: a dict of texts refers to its values alone
    return size


MAX_FACTS_BYTES = 32 << 20
"""What is kept of things that never change: of 25,000 versions, of 35,000 data files, or of 50,000 folders."""
_ENTRY_BYTES = 256
"""What an entry of a cache takes, without its key and its value."""

lasting_facts: Cache[tuple[Hashable, ...], Any] = Cache(
    "lasting facts",
    "What was read of things that never change: manifests, data files, schemas; how synced folders looked",
    max_bytes=MAX_FACTS_BYTES,
    size_of=lambda key, fact: _ENTRY_BYTES + held_bytes(key, fact),
    invalidated_by="nothing: a manifest in the place of another has another entity tag, a folder that changed looks so",
)
"""By what was read, and of what."""


class _FunctionCache(Machine):
    """The results of a function, which `lru_cache` keeps."""

    kind = Kind.CACHE

    def __init__(self, name: str, purpose: str, function: Any) -> None:
        self._function = function
        super().__init__(name, purpose)

    def figures(self) -> Mapping[str, float]:
        known = self._function.cache_info()
        return {"size": known.currsize, "bound": known.maxsize, "hits": known.hits, "misses": known.misses}

    def close(self) -> None:
        self._function.cache_clear()


_functions: list[_FunctionCache] = []
"""They live as long as their modules."""


def cached(name: str, purpose: str, *, max_entries: int) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Decorate a function whose results depend on its arguments alone: the last ones are kept, by `lru_cache`.

    That takes a tenth of the time of a `Cache`. Nothing invalidates them.
    """

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        kept = lru_cache(maxsize=max_entries)(function)
        _functions.append(_FunctionCache(name, purpose, kept))
        return cast("Callable[P, V]", update_wrapper(kept, function))

    return decorate
