"""How the shares of a search are asked for: of whom, of whom else if one is slow or gone, and how they are merged."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from tiltyard.catalog.table_servers import Server, rank
from tiltyard.tables.query import segment_shares
from tiltyard.tables.query.segment_shares import ANSWERED_FOR, Spread, merge_nearest

OWN, SERVERS = "http://a", [Server(f"http://{name}", 1) for name in "abc"]
SEGMENTS = [f"segment-{number}" for number in range(30)]
REQUEST: Any = None


def answer(segments: Sequence[str]) -> pa.Table:
    """Return a row for each segment, whose id and distance are its number."""
    numbers = [int(segment.rpartition("-")[2]) for segment in segments]
    rows = pa.table({"_distance": pa.array(numbers, pa.float32()), "_rowid": pa.array(numbers, pa.uint64())})
    return rows.replace_schema_metadata({ANSWERED_FOR: ",".join(segments).encode()})


class Servers:
    """Three servers; `sub_queries` of them answer as `behaviour` says, by their URL."""

    own_url = OWN

    def __init__(self, **behaviour: Any) -> None:
        self.behaviour = {f"http://{name}": how for name, how in behaviour.items()}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.here: list[str] = []
        self.slow: list[str] = []
        self.repeats = True

    def ranked(self, path: Sequence[str]) -> list[Server]:
        return rank(SERVERS, path)

    def may_ask(self, url: str) -> bool:
        return self.behaviour.get(url) != "paused"

    def may_repeat(self) -> bool:
        return self.repeats

    def note_slow(self, url: str) -> None:
        self.slow.append(url)

    def ask(self, url: str, request: Any, segments: Sequence[str]) -> pa.Table:
        self.asked.append((url, tuple(segments)))
        how = self.behaviour.get(url)
        if isinstance(how, Exception):
            raise how
        if isinstance(how, threading.Event):
            how.wait(20)
        return answer(segments).replace_schema_metadata() if how == "unaware" else answer(segments)

    def find_here(self, segments: Sequence[str]) -> pa.Table:
        self.here += segments
        return answer(segments)

    def collect(self) -> list[int]:
        spread: Any = Spread(REQUEST, 7, self, self, lambda: None, 1)  # type: ignore[arg-type]  # as far as it is used
        found = spread.collect(REQUEST, SEGMENTS, self.find_here)
        return sorted(number for table in found for number in table["_rowid"].to_pylist())


def owned(url: str) -> list[str]:
    return [segment for segment in SEGMENTS if rank(SERVERS, ("7", segment))[0].url == url]


def test_each_segment_is_searched_once_by_its_owner() -> None:
    servers = Servers()
    assert servers.collect() == [*range(30)]
    assert sorted(servers.asked) == [(url, tuple(owned(url))) for url in ("http://b", "http://c")]
    assert servers.here == owned(OWN)


@pytest.mark.parametrize("how", [ServiceUnavailableError("gone"), "unaware", "paused"], ids=str)
def test_segments_of_a_server_without_a_good_answer_go_to_their_second_owners(how: Any) -> None:
    servers = Servers(c=how)
    assert servers.collect() == [*range(30)]
    second = {segment: rank(SERVERS, ("7", segment))[1].url for segment in owned("http://c")}
    assert set(servers.here) == {*owned(OWN), *(segment for segment, url in second.items() if url == OWN)}
    asked = {segment for url, segments in servers.asked if url == "http://b" for segment in segments}
    assert asked == {*owned("http://b"), *(segment for segment, url in second.items() if url == "http://b")}


def test_all_is_searched_here_where_no_other_server_answers() -> None:
    servers = Servers(b=ServiceUnavailableError("gone"), c=ServiceUnavailableError("gone"))
    assert servers.collect() == [*range(30)]
    assert sorted(servers.here) == sorted(SEGMENTS)


def test_a_server_that_does_not_answer_in_time_is_slow_and_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_shares, "MIN_PATIENCE_SECONDS", 0.05)
    stalled = threading.Event()
    servers = Servers(b=stalled)
    started = time.monotonic()
    try:
        assert servers.collect() == [*range(30)]
        assert time.monotonic() - started < 10
        assert servers.slow == ["http://b"]
    finally:
        stalled.set()


def test_others_are_asked_later_where_many_servers_were_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_shares, "MIN_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(segment_shares, "MAX_PATIENCE_SECONDS", 0.5)
    stalled, servers = threading.Event(), Servers()
    servers.behaviour["http://b"], servers.repeats = stalled, False
    started = time.monotonic()
    try:
        assert servers.collect() == [*range(30)]
        assert time.monotonic() - started >= 0.5
    finally:
        stalled.set()


def test_a_server_that_refuses_the_caller_refuses_the_search() -> None:
    with pytest.raises(UnauthenticatedError):
        Servers(b=UnauthenticatedError("revoked")).collect()


def test_rows_of_equal_distance_are_ordered_by_their_ids() -> None:
    parts = [
        pa.table({"_distance": pa.array([1, 2, 2], pa.float32()), "_rowid": pa.array([9, 4, 7], pa.uint64())}),
        pa.table({"_rowid": pa.array([3, 5], pa.uint64()), "_distance": pa.array([2, 1], pa.float32())}),
    ]
    assert merge_nearest(parts, 4)["_rowid"].to_pylist() == [5, 9, 3, 4]
