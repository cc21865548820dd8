"""Caches: their bounds, their time to live, what removes values, and their figures."""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import dataclass

import pytest

from tiltyard.runtime.cache import Cache, cached, held_bytes
from tiltyard.runtime.machinery import MachineFigures, read_figures

NEVER = "nothing"


def value_bytes(_: object, value: bytes) -> int:
    return len(value)


def figures_of(name: str) -> MachineFigures | None:
    gc.collect()
    return next((found for found in read_figures() if found.name == name), None)


def test_get_counts_hits_and_misses_and_keeps_what_was_used_last() -> None:
    cache = Cache[str, int]("test", "Of a test", max_entries=2, invalidated_by=NEVER)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert (cache.hits, cache.misses, len(cache)) == (3, 1, 2)


def test_get_none_as_a_value_is_told_from_nothing() -> None:
    cache = Cache[str, None]("test", "Of a test", max_entries=2, invalidated_by=NEVER)
    cache.put("a", None)
    assert cache.get("a", "nothing") is None
    assert cache.get("b", "nothing") == "nothing"


def test_put_with_a_bound_in_bytes_drops_the_oldest_until_it_fits() -> None:
    dropped: list[bytes] = []
    cache = Cache[str, bytes](
        "test", "Of a test", max_bytes=10, size_of=value_bytes, invalidated_by=NEVER, dropped=dropped.append
    )
    cache.put("a", b"1234")
    cache.put("b", b"12345")
    cache.put("c", b"123")
    assert (cache.bytes, dropped) == (8, [b"1234"])
    cache.put("b", b"1")
    assert (cache.bytes, dropped) == (4, [b"1234", b"12345"])
    cache.put("d", b"x" * 11)  # more than all may have: nothing of it stays
    assert (cache.bytes, len(cache)) == (0, 0)


def test_get_after_the_time_to_live_finds_nothing() -> None:
    now = [0.0]
    cache = Cache[str, int]("test", "Of a test", max_entries=9, seconds=5, clock=lambda: now[0], invalidated_by=NEVER)
    cache.put("a", 1)
    cache.put("b", 2, seconds=10)
    now[0] = 5
    assert ("a" in cache, "b" in cache) == (False, True)
    assert (cache.get("a"), cache.get("b")) == (None, 2)


def test_remove_and_clear_drop_values_and_pop_gives_one_away() -> None:
    dropped: list[int] = []
    cache = Cache[str, int]("test", "Of a test", max_entries=9, invalidated_by=NEVER, dropped=dropped.append)
    for number, key in enumerate("abcd"):
        cache.put(key, number)
    assert cache.pop("a") == 0
    cache.remove(lambda key: key == "b")
    assert dropped == [1]
    cache.clear()
    assert (dropped, len(cache)) == ([1, 2, 3], 0)


def test_get_or_make_makes_once_and_keeps_no_failure() -> None:
    cache = Cache[str, int]("test", "Of a test", max_entries=9, invalidated_by=NEVER)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get_or_make("a", fail)
    assert cache.get_or_make("a", lambda: 1) == 1
    assert cache.get_or_make("a", fail) == 1


def test_cache_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="no bound"):
        Cache[str, int]("test", "Of a test", invalidated_by=NEVER)


def test_held_bytes_are_those_of_all_that_is_held_each_once() -> None:
    @dataclass(frozen=True, slots=True)
    class Fact:
        sizes: tuple[float, ...]
        texts: dict[str, str]

    class Estimated:
        def __init__(self) -> None:
            self.texts = ["x" * 10_000]

        def __sizeof__(self) -> int:
            return 500

    text, sizes = "v" * 10_000, tuple(float(number) for number in range(100, 200))
    fact = Fact(sizes, {"first": text, "second": text})
    held = [fact, sizes, *sizes, fact.texts, "first", "second", text]
    assert held_bytes(fact) == sum(map(sys.getsizeof, held))
    assert held_bytes((fact, fact), fact) == held_bytes(fact) + sys.getsizeof((fact, fact))
    assert 500 <= held_bytes(Estimated()) < 600


def test_put_from_several_threads_keeps_the_sum_of_sizes() -> None:
    cache = Cache[int, bytes]("test", "Of a test", max_bytes=500, size_of=value_bytes, invalidated_by=NEVER)

    def work(seed: int) -> None:
        for number in range(2000):
            cache.put((number * seed) % 97, b"x" * (number % 50))
            cache.get(number % 97)
            if number % 100 == 0:
                cache.remove(lambda key: key % 3 == 0)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.bytes == sum(len(entry[0]) for entry in cache._entries.values()) <= 500


def test_read_figures_adds_up_what_lives_by_name() -> None:
    one = Cache[str, int]("counted twice", "Of a test", max_entries=4, invalidated_by=NEVER)
    other = Cache[str, int]("counted twice", "Of a test", max_entries=4, invalidated_by=NEVER)
    one.put("a", 1)
    other.get("a")
    found = figures_of("counted twice")
    assert found is not None
    assert (found.kind, found.pieces, found.unit) == ("cache", 2, "entries")
    assert found.figures == {"size": 1, "bound": 8, "hits": 0, "misses": 1}
    del one, other
    assert figures_of("counted twice") is None


def test_cached_function_is_counted() -> None:
    @cached("doubles", "Of a test", max_entries=2)
    def double(number: int) -> int:
        return 2 * number

    assert [double(number) for number in (1, 1, 2, 3)] == [2, 2, 4, 6]
    found = figures_of("doubles")
    assert found is not None
    assert found.figures == {"size": 2, "bound": 2, "hits": 1, "misses": 3}
