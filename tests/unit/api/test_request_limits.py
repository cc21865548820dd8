"""Limits of requests, with a fake clock."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from tiltyard.api.errors import HttpError
from tiltyard.api.limits import rates, requests
from tiltyard.api.limits.rates import ProcessBuckets, RateLimit, open_buckets, shared_rates
from tiltyard.api.limits.requests import Limits, depth
from tiltyard.bootstrap import register_operations
from tiltyard.config import Settings
from tiltyard.context import Context, Services
from tiltyard.model.operations import bound_operations
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.model.spec import models

ANN, BOB = Principal("ann"), Principal("bob")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def asked_by(principal: Principal) -> Context:
    return Context(cast("Services", None), principal=principal)


def test_bucket_lets_a_burst_through_then_the_rate() -> None:
    clock = Clock()
    bucket = RateLimit({}, 10, 2, clock)
    assert [bucket.take("ann") for _ in range(20)] == [0.0] * 20
    assert bucket.take("ann") == pytest.approx(0.1)
    assert bucket.take("bob") == 0.0
    clock.now += 0.1
    assert [bucket.take("ann") == 0.0, bucket.take("ann") == 0.0] == [True, False]


def test_bucket_of_a_slow_rate_lets_one_through_after_a_pause() -> None:
    clock = Clock()
    bucket = RateLimit({}, 0.1, 2, clock)
    assert bucket.take("ann") == 0.0
    assert bucket.take("ann") == pytest.approx(10)
    clock.now += 10
    assert bucket.take("ann") == 0.0


def test_bucket_forgets_callers_whose_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_BUCKETS", 10)
    clock, times = Clock(), ProcessBuckets()
    bucket = RateLimit({}, 1, 2, clock, times)
    for number in range(100):
        clock.now += 1
        assert bucket.take(str(number)) == 0.0
    assert len(times._full_at) <= 10


def test_buckets_of_several_processes_are_one() -> None:
    clock = Clock()
    with shared_rates():
        processes = [RateLimit({}, 10, 2, clock, open_buckets()) for _ in range(4)]
    assert [processes[number % 4].take("ann") for number in range(20)] == [0.0] * 20
    assert all(process.take("ann") == pytest.approx(0.1) for process in processes)
    assert [process.take("bob") for process in processes] == [0.0] * 4
    clock.now += 0.1
    assert [process.take("ann") == 0.0 for process in processes] == [True, False, False, False]


def test_shared_buckets_of_many_callers_do_not_mix_and_those_of_the_past_make_room() -> None:
    clock = Clock()
    with shared_rates():
        bucket = RateLimit({}, 1, 1, clock, open_buckets())
    for _ in range(8):
        for number in range(10_000):
            assert bucket.take(f"{clock.now} {number}") == 0.0
        assert all(bucket.take(f"{clock.now} {number}") for number in range(0, 10_000, 97))
        clock.now += 10


def test_rate_limits_by_name_stand_in_place_of_the_general_one() -> None:
    limits = Limits(Settings(rate_limit=1, rate_limits={"bob": 3}, rate_burst=1), Clock())

    def refused(principal: Principal) -> HttpError | None:
        try:
            limits.check_rate(asked_by(principal), "1.2.3.4")
        except HttpError as error:
            return error
        return None

    refusals = {caller.name: [refused(caller) for _ in range(5)] for caller in (ANN, BOB)}
    assert [refusals["ann"].count(None), refusals["bob"].count(None)] == [1, 3]
    refusal = refusals["bob"][-1]
    assert refusal is not None and (refusal.status, refusal.code, refusal.headers) == (
        429,
        21,
        ((b"retry-after", b"1"),),
    )


def test_rate_limit_where_nobody_is_asked_counts_addresses() -> None:
    limits = Limits(Settings(rate_limit=1, rate_burst=1), Clock())
    limits.check_rate(asked_by(EVERYBODY), "1.2.3.4")
    limits.check_rate(asked_by(EVERYBODY), "5.6.7.8")
    with pytest.raises(HttpError, match="too many requests"):
        limits.check_rate(asked_by(EVERYBODY), "1.2.3.4")


def test_rate_limit_in_all_counts_everybody_together() -> None:
    limits = Limits(Settings(rate_limit_total=2, rate_burst=1), Clock())
    limits.check_rate(asked_by(ANN), "")
    limits.check_rate(asked_by(BOB), "")
    with pytest.raises(HttpError, match="The server gets too many"):
        limits.check_rate(asked_by(Principal("eve")), "")


def test_query_places_are_given_back_once_all_their_work_has_ended() -> None:
    class Work:
        def add_done_callback(self, callback: Any) -> None:
            self.end = lambda: callback(None)

    limits, work = Limits(Settings(max_queries=1, max_queries_total=2)), Work()
    slot = limits.acquire_slot(asked_by(ANN), "")
    assert slot is not None
    with pytest.raises(HttpError, match="1 queries of yours"):
        limits.acquire_slot(asked_by(ANN), "")
    assert limits.acquire_slot(asked_by(BOB), "") is not None
    with pytest.raises(HttpError, match="2 queries run already"):
        limits.acquire_slot(asked_by(Principal("eve")), "")
    slot.hold_until(work)
    slot.release()
    with pytest.raises(HttpError):
        limits.acquire_slot(asked_by(ANN), "")
    work.end()
    assert limits.acquire_slot(asked_by(ANN), "") is not None


def test_queries_with_large_bodies_run_within_the_bytes_of_two_and_small_ones_beside_them() -> None:
    most = 1 << 20
    limits = Limits(Settings(max_json_bytes=most, max_queries=0, max_queries_total=0))
    first, second = (limits.acquire_slot(asked_by(ANN), "", most) for _ in range(2))
    assert first is not None
    with pytest.raises(HttpError, match=f"have {2 * most} bytes together"):
        limits.acquire_slot(asked_by(BOB), "", requests.SMALL_QUERY_BYTES + 1)
    assert limits.acquire_slot(asked_by(BOB), "", requests.SMALL_QUERY_BYTES) is None
    first.release()
    assert limits.acquire_slot(asked_by(BOB), "", most) is not None
    assert second is not None
    lonely = Limits(Settings(max_json_bytes=most))
    assert lonely.acquire_slot(asked_by(ANN), "", 3 * most) is not None  # one runs in any case


JSON = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(JSON)
def test_depth_of_json_is_how_deep_it_is(value: Any) -> None:
    def deep(one: Any) -> int:
        if isinstance(one, dict):
            return 1 + max(map(deep, one.values()), default=0)
        return 1 + max(map(deep, one), default=0) if isinstance(one, list) else 0

    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert depth(text.encode("utf-8", "surrogatepass")) == deep(value)


def test_depth_beyond_the_limit_is_refused_and_brackets_in_texts_do_not_count() -> None:
    limits = Limits(Settings(max_json_depth=8))
    limits.check_depth(b'{"a": "' + b"[" * 1000 + b'"}')
    limits.check_depth(b"[" * 8 + b"]" * 8 + b", []" * 100)
    for body in (b"[" * 9 + b"]" * 9, b'{"a":' * 9 + b"1" + b"}" * 9, b"[" * 10**6):
        with pytest.raises(InvalidInputError, match="deeper than 8"):
            limits.check_depth(body)


def test_entries_beyond_the_limit_are_refused() -> None:
    limits = Limits(Settings(max_operations=2))
    operation = models.CommitTableOperation()
    limits.check_entries("operations", models.BatchCommitTablesRequest(operations=[operation] * 2))
    with pytest.raises(InvalidInputError, match="3 operations: at most 2"):
        limits.check_entries("operations", models.BatchCommitTablesRequest(operations=[operation] * 3))
    limits.check_entries(None, models.DescribeTableRequest())


def test_every_field_of_entries_is_one_of_its_request() -> None:
    register_operations()
    fields = {name: handler.entries for name, (_, handler) in bound_operations().items() if handler and handler.entries}
    assert len(fields) == 8
    for operation, field in fields.items():
        assert field in getattr(models, f"{operation}Request").__struct_fields__, operation
    assert sys.getrecursionlimit() > Settings().max_json_depth


@pytest.mark.parametrize("end", [b"", b"\\", b"\\\n", b'"'])
@pytest.mark.parametrize("inside", [b'\\"', b"a", b'\\"a\\\n'])
def test_depth_of_a_text_that_never_ends_is_told_in_no_time(inside: bytes, end: bytes) -> None:
    started_at = time.process_time()
    assert depth(b"[[" + b'"' + inside * 200_000 + end) == 2
    assert time.process_time() - started_at < 2  # a look from each quote to the end would take minutes
