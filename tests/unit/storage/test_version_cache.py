"""What is known of a version is read once for each snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from tiltyard.storage.caches.version_cache import MAX_KEPT, CachedVersion

if TYPE_CHECKING:
    import lance


class Dataset:
    """A dataset that counts how often its rows are counted."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.counts = 0

    def count_rows(self) -> int:
        self.counts += 1
        return self.rows


def snapshot(dataset: Any) -> CachedVersion:
    return CachedVersion(cast("lance.LanceDataset", dataset))


def test_fact_is_read_once_and_kept_with_its_snapshot() -> None:
    reads: list[tuple[Any, ...]] = []

    def read(dataset: Any, *arguments: str, suffix: str = "") -> str:
        reads.append((dataset.rows, *arguments))
        return f"{dataset.rows}{suffix}"

    first, second = snapshot(Dataset(1)), snapshot(Dataset(2))
    assert [first.fact(read, "a", suffix="!"), first.fact(read, "b"), second.fact(read, "c")] == ["1!", "1!", "2"]
    assert reads == [(1, "a"), (2, "c")]


@pytest.mark.parametrize("fact", [None, 0, "", {}])
def test_fact_that_is_empty_is_read_once(fact: Any) -> None:
    reads = []

    def read(dataset: Any) -> Any:
        reads.append(dataset)
        return fact

    one = snapshot(Dataset(1))
    assert (one.fact(read), one.fact(read), len(reads)) == (fact, fact, 1)


def test_what_is_kept_by_keys_of_requests_is_bounded() -> None:
    one = snapshot(Dataset(1))
    for number in range(2 * MAX_KEPT + 1):
        one.keep(number, str(number))
    kept = [number for number in range(2 * MAX_KEPT + 1) if one.known(number) == str(number)]
    assert kept == [2 * MAX_KEPT]


def test_fact_that_cannot_be_read_is_read_again() -> None:
    results = iter([KeyError("not yet"), 7])

    def read(dataset: Any) -> int:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    one = snapshot(Dataset(1))
    with pytest.raises(KeyError, match="not yet"):
        one.fact(read)
    assert one.fact(read) == 7


def test_count_rows_asks_lance_once() -> None:
    dataset = Dataset(5)
    one = snapshot(dataset)
    assert [one.count_rows(), one.count_rows(), dataset.counts] == [5, 5, 1]
