"""Events: every change of the catalog has one, in its transaction, and they are kept for a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lance_namespace.errors import ConcurrentModificationError, NamespaceAlreadyExistsError

from tests.store.conftest import Clock
from tiltyard.events.cloudevents import encode_event
from tiltyard.model.modes import TransactionStatus
from tiltyard.store import NewVersion, Store, UnitOfWork, load_dump, open_store
from tiltyard.store.events.sinks import DeadLetter
from tiltyard.store.tables.lineage import LineageRecord

KEEP_MS = 100_000


def types(store: Store, after: int = 0) -> list[str]:
    while store.number_events():
        pass
    return [event.type for event in store.list_events(after, 1000)]


@pytest.fixture
def recording(store: Store) -> Store:
    store.start_recording(["hook"])
    return store


def test_changes_of_the_catalog_have_their_events_with_the_names_of_then(recording: Store) -> None:
    path = ("n", 'ü"m', "t")
    recording.create_namespace(path[:1], {})
    recording.create_namespace(path[:2], {})
    table = recording.insert_table(path, "one", {}, managed=True)
    recording.rename_table(path, ("n", "u"))
    recording.change_table_properties(table.id, {"secret": "value"})
    recording.record_version(NewVersion(table.id, 1, "staged", "final"))
    recording.remove_table(("n", "u"), delete_folder=True, keep_ms=KEEP_MS)
    recording.restore_table(("n", "u"))
    recording.drop_namespace(("n",), cascade=True, keep_ms=KEEP_MS)
    recording.restore_namespace(("n",))
    recording.remove_table(("n", "u"), delete_folder=False, keep_ms=KEEP_MS)
    recording.drop_namespace(("n",), cascade=True)
    assert types(recording) == [
        "namespace.created",
        "namespace.created",
        "table.created",
        "table.renamed",
        "table.altered",
        "table.version.created",
        "table.dropped",
        "table.undropped",
        "table.dropped",
        "namespace.dropped",
        "namespace.dropped",
        "namespace.undropped",
        "namespace.undropped",
        "table.undropped",
        "table.deregistered",
        "namespace.dropped",
        "namespace.dropped",
    ]
    events = recording.list_events(0, 1000)
    assert [events[number].path for number in (1, 2, 3)] == [path[:2], path, ("n", "u")]
    assert (events[3].data["old_id"], events[3].other_namespace_id) == (list(path), events[2].namespace_id)
    assert [event.path for event in events[9:11]] == [path[:2], path[:1]], "what is below goes first"
    assert [event.data["restorable"] for event in events if event.type == "namespace.dropped"] == [True] * 2 + [
        False
    ] * 2
    assert events[5].data["version"] == 1
    assert {event.object_id for event in events if event.kind == "table"} == {table.id}
    assert len({event.id for event in events}) == len(events)
    assert "value" not in str(events)


def test_data_jobs_and_access_have_their_events_without_secrets(recording: Store) -> None:
    table = recording.insert_table(("t",), "one", {}, managed=True)
    lineage = LineageRecord(table.id, "", 2, "job-1", "ingest", "", "edge", True, (), (), "ann")
    recording.add_lineage(lineage)
    job = recording.create_transaction("index", table.id, {"secret": "x"}, {"rows": "5"}, requested_by="ann")
    recording.claim_transaction("worker", KEEP_MS)
    recording.finish_transaction(job.id, "worker", TransactionStatus.FAILED, "a secret message")
    recording.create_transaction("upkeep", table.id, {}, {})
    waiting = recording.create_transaction("index", table.id, {}, {})
    recording.remove_table(("t",), delete_folder=True)
    types_so_far = types(recording)
    assert types_so_far == [
        "table.created",
        "table.lineage.recorded",
        "job.queued",
        "job.started",
        "job.failed",
        "job.queued",
        "table.dropped",
        "job.canceled",
    ]
    events = recording.list_events(0, 1000)
    assert (events[4].data["rows"], events[4].data["requested_by"], events[4].path) == ("5", "ann", ("t",))
    assert events[7].data["job"] == waiting.id
    assert b'"rows":5' in encode_event(events[4]) and "secret" not in str(events)
    other = recording.insert_table(("u",), "two", {})
    after = len(events) + 1
    assert types(recording, len(events)) == ["table.created"]
    recording.add_principal("ann", administrator=False)
    recording.add_principal("ann", administrator=True)
    recording.alter_principal("ann", None, True)
    recording.grant("principal:ann", "table", other.id, 3, "root")
    recording.grant("principal:ann", "table", other.id, 3, "root")
    recording.rename_table(("u",), ("v",))
    recording.revoke("principal:ann", "table", other.id, 0)
    recording.grant("principal:ann", "server", 0, 256, "root")
    recording.add_role("r")
    recording.add_member("r", "principal:ann")
    recording.drop_role("r")
    is_postgres = types(recording, after)[-1] == "role.member.removed"
    recording.set_policy(other.id, "p", "{a secret}", "root")
    recording.drop_policy(other.id, "p")
    assert types(recording, after) == [
        "principal.created",
        "principal.altered",
        "grant.changed",
        "table.renamed",
        "grant.revoked",
        "grant.changed",
        "role.created",
        "role.member.added",
        *(["role.dropped", "role.member.removed"][:: 1 if is_postgres else -1]),  # each deletes in its own order
        "policy.set",
        "policy.dropped",
    ]
    events = recording.list_events(after, 1000)
    assert b'"privileges":["use","read"]' in encode_event(events[2]) and "secret" not in str(events)


def test_event_is_of_the_transaction_and_none_is_written_while_nothing_is_recorded(store: Store) -> None:
    store.create_namespace(("before",), {})
    store.start_recording([])
    name = store.event_stream()

    def create_two(catalog: UnitOfWork) -> None:
        catalog.create_namespace(("a",), {})
        catalog.create_namespace(("before",), {})

    with pytest.raises(NamespaceAlreadyExistsError):
        store.transact(create_two)
    assert types(store) == []
    store.start_recording(["later"])
    assert store.event_stream() == name
    store.create_namespace(("a",), {})
    assert types(store) == ["namespace.created"]
    store.stop_recording()
    store.create_namespace(("after",), {})
    assert (store.event_stream(), store.number_events(), store.list_event_sinks()) == (None, 0, [])


def test_sink_has_one_sender_that_acknowledges_and_is_moved(recording: Store, clock: Clock) -> None:
    for number in range(4):
        recording.create_namespace((f"n{number}",), {})
    assert (recording.number_events(), recording.number_events()) == (4, 0)
    assert recording.claim_event_sink("hook", "one", 1000) is not None
    assert recording.claim_event_sink("hook", "two", 1000) is None
    recording.acknowledge_events("hook", "one", 1000, 2)
    clock.advance(1001)
    taken = recording.claim_event_sink("hook", "two", 1000)
    assert taken is not None and taken.position == 2
    with pytest.raises(ConcurrentModificationError):
        recording.acknowledge_events("hook", "one", 1000, 4)
    letter = DeadLetter("hook", "id", 3, "{}", "status 422", 0, is_resent=False)
    recording.add_dead_letter("hook", "two", 1000, letter, 3)
    recording.release_event_sink("hook", "two", 1, "status 500", 5000)
    assert recording.claim_event_sink("hook", "two", 1000) is None, "it rests"
    assert recording.dead_letter_counts() == {"hook": (1, 0)}
    assert recording.resend_dead_letters("hook", ["other"]) == 0 and recording.resend_dead_letters("hook") == 1
    assert [each.event_id for each in recording.dead_letters_to_resend("hook", 10)] == ["id"]
    assert recording.move_event_sink("hook", 1) and not recording.move_event_sink("none", 1)
    moved = recording.claim_event_sink("hook", "two", 1000)
    assert moved is not None and (moved.position, moved.attempts) == (1, 0)
    assert recording.remove_event_sink("hook") and recording.dead_letter_counts() == {}


def test_events_end_by_age_and_number_and_are_in_no_dump(
    recording: Store, tmp_path: Path, new_url: Callable[[], str]
) -> None:
    for number in range(5):
        recording.create_namespace((f"n{number}",), {})
    assert recording.number_events() == 5
    assert recording.sweep_events(0, 100, 100) == 0
    assert recording.sweep_events(0, 3, 100) == 2
    stream = recording.event_stream()
    assert stream is not None and (stream.lost_until, stream.last_position) == (2, 5)
    assert [event.position for event in recording.list_events(0, 10)] == [3, 4, 5]
    at = recording.list_events(0, 1)[0].at
    assert recording.position_before(at) == 2 and recording.position_before(at + 10**6) is None
    assert recording.sweep_events(at + 10**6, 100, 2) == 2
    recording.dump(tmp_path / "dump")
    url = new_url()
    load_dump(url, tmp_path / "dump", lambda table, row: row)
    with open_store(url) as loaded:
        assert loaded.event_stream() is None and loaded.number_events() == 0
        loaded.start_recording([])
        other = loaded.event_stream()
        assert other is not None and other.name != stream.name
