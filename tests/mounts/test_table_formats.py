"""Formats of tables are loaded in parallel, each once while it is remembered; pages are cut out of others' pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from lance_namespace.errors import InvalidInputError, TableNotFoundError, ThrottlingError

from tiltyard.model.ids import Id
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.mounts.lookup_cache import TableFormats
from tiltyard.mounts.paged_lists import collect_page

TABLES = [Id(("ns", f"t{number}")) for number in range(6)]


class Loads:
    """Loads tables, of which those with an even number are Lance's."""

    def __init__(self) -> None:
        self.tables: list[Id] = []
        self.error: Exception | None = None

    def load(self, table: Id) -> None:
        """Load a table."""
        self.tables.append(table)
        if self.error:
            raise self.error
        if int(table.name[1:]) % 2:
            raise TableNotFoundError("another format")


def test_a_format_is_loaded_once_while_it_is_remembered() -> None:
    now, loads = [0.0], Loads()
    formats = TableFormats(loads.load, 4, 30, lambda: now[0])
    for seconds, loaded in ((0.0, 6), (29.0, 6), (31.0, 12)):
        now[0] = seconds
        assert formats.are_lance(TABLES) == [True, False] * 3
        assert len(loads.tables) == loaded
    formats.forget(TABLES[0])
    formats.add(TABLES[1])
    assert formats.are_lance(TABLES[:3]) == [True, True, True]
    assert loads.tables[12:] == TABLES[:1]


def test_formats_with_no_age_are_loaded_each_time() -> None:
    loads = Loads()
    formats = TableFormats(loads.load, 4, 0)
    for _ in range(2):
        assert formats.are_lance(TABLES[:2]) == [True, False]
    assert len(loads.tables) == 4


def test_a_load_that_fails_is_an_error_and_not_remembered() -> None:
    loads = Loads()
    formats = TableFormats(loads.load, 4, 30)
    loads.error = ThrottlingError("later")
    with pytest.raises(ThrottlingError):
        formats.are_lance(TABLES)
    loads.error = None
    assert formats.are_lance(TABLES) == [True, False] * 3


def test_tables_are_loaded_in_parallel() -> None:
    together = threading.Barrier(3)
    formats = TableFormats(lambda _: together.wait(10), 3, 30)
    assert formats.are_lance(TABLES) == [True] * 6


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("is_honoured", [True, False])
def test_pages_have_each_entry_once_whatever_the_pages_they_come_from(
    size: int,
    limit: int,
    is_honoured: bool,  # a parameter
) -> None:
    def fetch(page: str, asked: int | None) -> tuple[Sequence[int], str | None]:
        start = int(page or 0)
        end = start + (min(size, asked) if is_honoured and asked else size)
        return range(start, min(end, 10)), str(end) if end < 10 else None

    listed: list[int] = []
    token = None
    while True:
        entries, token = collect_page("It", fetch, limit, token, lambda chunk: [number % 3 == 0 for number in chunk])
        assert len(entries) <= limit
        listed += entries
        if token is None:
            break
    assert listed == [0, 3, 6, 9]


def test_pages_that_repeat_are_an_error_whatever_lies_between() -> None:
    with pytest.raises(MalformedAnswerError, match="repeats"):
        collect_page("It", lambda page, _: ([], {"": "a", "a": "b", "b": "a"}[page]), 1, None)


def test_a_token_that_is_none_is_refused() -> None:
    for token in ("x", "{}", '["a"]', '["a", "b"]'):
        with pytest.raises(InvalidInputError):
            collect_page("It", lambda page, _: ([], None), 1, token)


def list_all(fetch: Callable[[str, int | None], tuple[list[str], str | None]], limit: int) -> int:
    """Follow a list by its tokens to its end; return how many entries it had."""
    entries, token = collect_page("It", fetch, limit, None)
    total = len(entries)
    while token is not None:
        entries, token = collect_page("It", fetch, limit, token)
        total += len(entries)
    return total


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_list_whose_tokens_are_always_new_is_ended(limit: int, names: list[str]) -> None:
    tokens = count(1)
    with pytest.raises(MalformedAnswerError, match=r"repeats a page|does not end"):
        list_all(lambda page, _: (names, str(next(tokens))), limit)


def test_list_with_many_empty_pages_between_is_read_to_its_end() -> None:
    pages = {"": ["a"], **{str(number): [] for number in range(1, 90)}, "90": ["b"]}

    def fetch(page: str, _: int | None) -> tuple[list[str], str | None]:
        following = int(page or 0) + 1
        return pages[page], str(following) if following <= 90 else None

    assert list_all(fetch, 1) == 2
