"""Hashes of recent keys: found once they are added, within bounds, whatever the sizes in which they come."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.storage.caches import recent_keys
from tiltyard.storage.caches.recent_keys import RecentKeys


def hashes(*values: int) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def test_keys_are_found_whatever_the_sizes_in_which_they_come() -> None:
    chance, recent, model = random.Random(7), RecentKeys(), set[int]()
    for number in range(300):
        new = [chance.randrange(2**64) for _ in range(chance.choice([0, 1, 1, 1, 5, 2000]))]
        recent.add("t", [str(number)], hashes(*new))
        model.update(new)
        files = [str(each) for each in range(number + 1)]
        assert recent.missing("t", files) == []
        if new:
            assert recent.may_have("t", files, hashes(chance.randrange(2**64), chance.choice(new)))
    files = [str(number) for number in range(300)]
    assert all(recent.may_have("t", files, hashes(each)) for each in chance.sample(sorted(model), 500))
    absent = [each for each in (chance.randrange(2**64) for _ in range(500)) if each not in model]
    assert not recent.may_have("t", files, hashes(*absent))


def test_keys_of_a_file_that_is_not_known_may_be_there() -> None:
    recent = RecentKeys()
    assert recent.may_have("t", ["a"], hashes(1))
    recent.add("t", ["a"], hashes(2))
    assert not recent.may_have("t", ["a"], hashes(1))
    assert recent.may_have("t", ["a", "b"], hashes(1))
    assert recent.missing("t", ["a", "b"]) == ["b"]
    assert recent.may_have("other", ["a"], hashes(1))


def test_keys_of_the_least_recently_used_table_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_keys, "MAX_KEYS", 10)
    recent = RecentKeys()
    for name in ("a", "b"):
        recent.add(name, ["f"], hashes(*range(5)))
    assert recent.missing("a", ["f"]) == []
    recent.add("c", ["f"], hashes(9))
    assert (recent.missing("a", ["f"]), recent.missing("b", ["f"])) == ([], ["f"])
    recent.add("d", ["f"], hashes(*range(11)))
    assert [recent.missing(name, ["f"]) for name in "acd"] == [["f"]] * 3, "a table of too many keys is not kept"


def test_files_that_are_gone_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_keys, "_MAX_STALE", 3)
    recent = RecentKeys()
    for number in range(5):
        recent.add("t", [str(number)], hashes(number))
    assert recent.missing("t", ["4", "3"]) == []
    assert recent.missing("t", ["4"]) == ["4"], "all are read again"
    assert recent.may_have("t", ["4"], hashes(0))
