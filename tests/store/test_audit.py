"""The audit's rows, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tiltyard.store import AuditFilter, AuditRecord

if TYPE_CHECKING:
    from tiltyard.store import Store

NOON = 1_700_000_000_000


def record(at: int, id_: str = "a", **fields: Any) -> AuditRecord:
    defaults = {
        "principal": "ada",
        "method": "key",
        "operation": "CreateTable",
        "object": "library$books",
        "outcome": "ok",
        "status": 200,
        "code": None,
        "request_id": "r1",
        "address": "127.0.0.1",
        "duration_micros": 1500,
        "context": {"job": "nightly", "sign": "☃\u0000"},
    }
    return AuditRecord(at, id_, **(defaults | fields))


def test_add_audit_then_list_returns_the_same_newest_first(store: Store) -> None:
    old, new = record(NOON), record(NOON + 1, code=4, status=404, outcome="failed", context={})
    store.add_audit([old, new])
    assert store.list_audit(AuditFilter(), None, 10) == [new, old]


def test_add_audit_of_a_record_that_is_there_keeps_one(store: Store) -> None:
    store.add_audit([record(NOON)])
    store.add_audit([record(NOON), record(NOON, "b")])
    assert [entry.id for entry in store.list_audit(AuditFilter(), None, 10)] == ["b", "a"]


def test_list_audit_in_pages_returns_each_record_once(store: Store) -> None:
    store.add_audit([record(NOON + number // 3, f"{number:02}") for number in range(20)])
    seen: list[str] = []
    before = None
    while page := store.list_audit(AuditFilter(), before, 7):
        seen += [entry.id for entry in page]
        before = (page[-1].at, page[-1].id)
    assert seen == [f"{number:02}" for number in reversed(range(20))]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (AuditFilter(since=NOON + 2), "fedc"),
        (AuditFilter(until=NOON + 2), "ba"),
        (AuditFilter(principal="bob"), "b"),
        (AuditFilter(operation="DropTable"), "c"),
        (AuditFilter(outcome="refused"), "d"),
        (AuditFilter(object="library"), "edcba"),
        (AuditFilter(object="library$books"), "dcba"),
        (AuditFilter(object="$"), "fedcba"),
        (AuditFilter(object="library", principal="ada", since=NOON + 1), "edc"),
    ],
)
def test_list_audit_with_a_filter_returns_only_what_fits(store: Store, conditions: AuditFilter, expected: str) -> None:
    store.add_audit(
        [
            record(NOON, "a"),
            record(NOON + 1, "b", principal="bob"),
            record(NOON + 2, "c", operation="DropTable"),
            record(NOON + 3, "d", outcome="refused"),
            record(NOON + 4, "e", object="library"),
            record(NOON + 5, "f", object="library2$books"),
        ]
    )
    assert "".join(entry.id for entry in store.list_audit(conditions, None, 10)) == expected


def test_sweep_audit_deletes_the_oldest_up_to_the_limit(store: Store) -> None:
    store.add_audit([record(NOON + number, str(number)) for number in range(5)])
    assert [store.sweep_audit(NOON + 4, 3), store.sweep_audit(NOON + 4, 3), store.sweep_audit(NOON + 4, 3)] == [3, 1, 0]
    assert [entry.id for entry in store.list_audit(AuditFilter(), None, 10)] == ["4"]
