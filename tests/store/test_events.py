"""Events: every change of the catalog has one, in its transaction, and they are kept for a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lance_namespace.errors import ConcurrentModificationError, NamespaceAlreadyExistsError

from tests.store.conftest import Clock
from tiltyard.events.cloudevents import encode_event
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.settings.secret_keys import EncryptedValue
from tiltyard.store import NewVersion, Store, UnitOfWork, load_dump, open_store
from tiltyard.store.approvals import NewApproval
from tiltyard.store.events.sinks import DeadLetter
from tiltyard.store.functions.definitions import NewFunction
from tiltyard.store.mounts.mounts import MountRecord
from tiltyard.store.protections import Protection
from tiltyard.store.tables import contracts
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
    changed = '{"operation":"append","rows_inserted":5}'
    recording.record_version(NewVersion(table.id, 1, "staged", "final", changed_rows=changed))
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
    assert events[5].data["version"] == 1 and b'"rows_inserted":5' in encode_event(events[5])
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
    for name in "b", "c":
        recording.create_namespace((name,), {})
    namespace = recording.create_namespace(("c", "d"), {})
    recording.grant("principal:ann", "namespace", namespace.id, 2, "root")
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
        *["namespace.created"] * 3,
        "grant.changed",
        "grant.changed",
        "role.created",
        "role.member.added",
        *(["role.dropped", "role.member.removed"][:: 1 if is_postgres else -1]),  # each deletes in its own order
        "policy.set",
        "policy.dropped",
    ]
    events = recording.list_events(after, 1000)
    assert events[8].path == ("c", "d")
    assert b'"privileges":["use","read"]' in encode_event(events[2]) and "secret" not in str(events)


def test_what_governs_objects_has_its_events_without_values_and_reasons(recording: Store) -> None:
    recording.create_namespace(("before",), {})
    namespace = recording.create_namespace(("n",), {})
    table = recording.insert_table(("n", "t"), "one", {}, managed=True)
    after = len(types(recording))
    column = recording.add_classified_column(table.id, 3, "a.b")
    for kind, object_id in ("namespace", namespace.id), ("table", table.id), ("column", column):
        recording.set_classification(kind, object_id, "pii", "email", "ann")
        recording.set_classification(kind, object_id, "pii", "email", "ann")
    assert recording.unset_classification("column", column, "pii")
    recording.set_classification_policy("mask", "{a secret}", "ann")
    assert recording.drop_classification_policy("mask")
    approval = NewApproval("DropTable", "table", table.id, namespace.id, "digest", "a secret", "ann")
    asked = recording.request_approval(approval)
    recording.decide_approval(asked.id, "bob", approved=True)
    used = recording.use_approval(approval)
    assert used is not None
    recording.release_approval(used)
    recording.set_protection(Protection("server", 0, "read_only", "", "a secret", "ann", 0))
    recording.lift_protection("server", 0, "read_only")
    recording.add_erasure("e", table.id, namespace.id, ("n", "t"), "a secret", "ann", "{a secret}")
    recording.end_erasure("e", "erased", "a secret", "", 5)
    recording.remove_table(("n", "t"), delete_folder=True, keep_ms=KEEP_MS)
    recording.set_protection(Protection("table", table.id, "hold", "", "a secret", "ann", 0))
    recording.lift_protection("table", table.id, "hold")
    assert types(recording, after) == [
        *["classification.set"] * 3,
        "classification.unset",
        "classification.policy.set",
        "classification.policy.dropped",
        "approval.requested",
        "approval.approved",
        "approval.used",
        "approval.released",
        "protection.set",
        "protection.lifted",
        "erasure.requested",
        "erasure.ended",
        "table.dropped",
        "protection.set",
        "protection.lifted",
    ]
    events = recording.list_events(after, 100)
    assert [event.path for event in events[:4]] == [("n",), ("n", "t"), ("n", "t"), ("n", "t")]
    assert events[2].data["column"] == events[3].data["column"] == "a.b"
    assert (events[15].path, events[15].data["protection"]) == (("n", "t"), "hold"), "of a table in the trash, too"
    assert (events[7].data["decided_by"], events[13].data["outcome"]) == ("bob", "erased")
    assert "secret" not in str(events)


def test_what_namespaces_hold_has_its_events_with_names_alone(recording: Store) -> None:
    recording.create_namespace(("before",), {})
    namespace = recording.create_namespace(("n",), {})
    table = recording.insert_table(("n", "t"), "one", {}, managed=True)
    after = len(types(recording))
    value = EncryptedValue("key", b"a value")
    assert recording.add_secret(namespace.id, "s", value)
    assert recording.alter_secret(namespace.id, "s", value)
    assert recording.reencrypt_secrets("other", lambda _: EncryptedValue("other", b"x")) == 1
    assert recording.drop_secret(namespace.id, "s")
    function = recording.add_function(namespace.id, "f", NewFunction("{a value}", "one", "place", "ann"))
    recording.add_function(namespace.id, "f", NewFunction("{a value}", "two", "place", "ann"))
    assert recording.drop_function(function.object_id, 1, 0) and recording.drop_function(function.object_id, None, 0)
    definer = {"name": "ann"}
    schedule = {"paused": False, "debounce_ms": 1, "due_at": 5, "sources": [table.id]}
    assert recording.add_schedule(namespace.id, "nightly", table.id, {"a": "value"}, definer, **schedule)
    found = recording.find_schedule(namespace.id, "nightly")
    assert found is not None
    recording.alter_schedule(found, {"a": "value"}, keeps_due=True, **{**schedule, "paused": True, "sources": None})
    recording.drop_schedule(found.id)
    recording.add_mount(MountRecord(0, ("lake",), "dir", {"a": "value"}, (), 0, False, False, "api", 0, 0), {})
    [mount] = recording.list_mounts()
    recording.remove_mount(mount)
    assert recording.add_mirror("out", "dir", {}, None, namespace=(), target=(), has_columns=False)
    recording.begin_snapshot("snap", "token", "ann", ())
    recording.complete_snapshot("snap", "token")
    recording.begin_snapshot_drop("snap", "token")
    recording.set_max_age(table.id, 1000)
    recording.note_staleness(table.id, is_stale=True)
    recording.note_staleness(table.id, is_stale=False)
    recording.set_max_age(table.id, None)
    recording.add_deleted_versions(table.id, "", [(1, 4)])
    recording.add_test(table.id, contracts.TestRecord(1, "", 4, "ann", passed=True, results="[]"))
    assert types(recording, after) == [
        "secret.created",
        "secret.altered",
        "secret.dropped",
        "function.created",
        "function.created",
        "function.version.dropped",
        "function.dropped",
        "schedule.created",
        "schedule.paused",
        "schedule.dropped",
        "namespace.created",
        "mount.created",
        "mount.dropped",
        "publication.created",
        "snapshot.created",
        "snapshot.dropped",
        "table.max_age.set",
        "table.stale",
        "table.fresh",
        "table.max_age.dropped",
        "table.versions.deleted",
        "table.tested",
    ]
    events = recording.list_events(after, 100)
    assert events[0].data == {"secret": "s"} and events[4].data["version"] == 2
    assert (events[7].data["schedule"], events[7].path) == (["n", "nightly"], ("n", "t"))
    assert (events[11].path, events[11].data) == (("lake",), {"mount_kind": "dir"})
    assert events[20].data["beyond"] == 4 and events[21].data["passed"] is True
    assert "value" not in str(events)


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
