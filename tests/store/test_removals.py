"""What was removed is kept for a while and can be brought back: once, whole, and never from under a sweeper."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from msgspec.structs import replace

from tests.store.test_races import kinds, race, won
from tiltyard.model.modes import CreateMode, TransactionStatus
from tiltyard.store import CREATING, DROPPED, NewVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.conftest import Clock
    from tiltyard.store import Store, TableRecord, UnitOfWork

T = TypeVar("T")
KEEP = 1000
HOUR = 3_600_000


@pytest.fixture
def table(store: Store) -> TableRecord:
    """A managed table `a$t` with two versions."""
    store.create_namespace(("a",), {"k": "v"})
    record = store.insert_table(("a", "t"), "mem://t", {"n": "é"}, managed=True)
    for version in (1, 2):
        store.record_version(NewVersion(record.id, version, f"s{version}", f"m{version}", metadata={"x": "y"}))
    return record


def test_restore_table_brings_back_all_that_the_catalog_knew(store: Store, clock: Clock, table: TableRecord) -> None:
    versions = store.list_versions(table.id)
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    [kept] = store.list_removed_tables(None, 10)
    assert (kept.id, kept.namespace, kept.name, kept.dropped) == (table.id, ("a",), "t", True)
    assert (kept.removed_at, kept.due_at) == (clock.now, clock.now + KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    clock.advance(5)
    assert store.restore_table(("a", "t")) == replace(table, updated_at=clock.now)
    assert store.list_versions(table.id) == versions
    clock.advance(2 * KEEP)
    assert (store.claim_due_deletions(10, HOUR), store.list_removed_tables(None, 10)) == ([], [])
    with pytest.raises(TableNotFoundError):
        store.restore_table(("a", "t"))


def test_restore_table_brings_back_manifests_that_are_not_known_to_be_durable(store: Store, table: TableRecord) -> None:
    record, _ = store.record_version(NewVersion(table.id, 3, "s3", "m3", manifest=b"LANC"))
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    assert store.stored_manifest(record) is None
    store.restore_table(("a", "t"))
    assert store.stored_manifest(record) == b"LANC"


def test_remove_table_for_good_keeps_none_that_lay_there_before(store: Store, table: TableRecord) -> None:
    store.remove_table(("a", "t"), delete_folder=False, keep_ms=KEEP)
    store.insert_table(("again",), table.location, {}, registered=True)
    store.remove_table(("again",), delete_folder=True)
    assert store.list_removed_tables(None, 10) == []
    with pytest.raises(TableNotFoundError):
        store.restore_table(("a", "t"))


def test_remove_table_that_is_kept_frees_the_name_but_not_the_location(store: Store, table: TableRecord) -> None:
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    with pytest.raises(InvalidInputError, match="undrop"):
        store.insert_table(("a", "t"), "mem://t", {}, registered=True)
    other = store.insert_table(("a", "t"), "mem://u", {})
    assert other.id > table.id
    with pytest.raises(TableAlreadyExistsError):
        store.restore_table(("a", "t"))
    with pytest.raises(NamespaceNotFoundError):
        store.restore_table(("a", "t"), ("x", "t"))
    assert store.restore_table(("a", "t"), ("t2",)).id == table.id
    assert store.describe_table(("t2",)).location == "mem://t"


def test_restore_table_takes_the_newest_unless_told_which(store: Store, clock: Clock) -> None:
    ids = []
    for number in range(3):
        ids.append(store.insert_table(("t",), f"mem://{number}", {}).id)
        store.remove_table(("t",), delete_folder=True, keep_ms=KEEP)
        clock.advance(1)
    assert [kept.id for kept in store.list_removed_tables(None, 2)] == [ids[2], ids[1]]
    page = store.list_removed_tables(None, 2)[-1]
    assert [kept.id for kept in store.list_removed_tables((page.removed_at, page.id), 2)] == [ids[0]]
    assert store.restore_table(("t",), ("first",), ids[0]).id == ids[0]
    assert store.restore_table(("t",)).id == ids[2]


def test_a_table_whose_time_is_over_is_swept_and_gone_for_good(store: Store, clock: Clock, table: TableRecord) -> None:
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    clock.advance(KEEP)
    assert [folder.location for folder in store.claim_due_deletions(10, HOUR)] == ["mem://t"]
    assert store.list_removed_tables(None, 10) == []
    with pytest.raises(TableNotFoundError):
        store.restore_table(("a", "t"))
    store.complete_deletion("mem://t")
    store.insert_table(("a", "t"), "mem://t", {}, registered=True)


def test_doom_spares_the_folder_of_a_table_that_is_kept(store: Store, clock: Clock, table: TableRecord) -> None:
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    store.schedule_deletion("mem://t", clock.now, DROPPED)  # a write that came too late has its leftovers swept
    assert store.claim_due_deletions(10, HOUR) == []
    store.restore_table(("a", "t"))


@pytest.mark.parametrize("registered", [False, True])
def test_doom_spares_the_folder_of_a_table_and_marks_it_for_no_later_day(
    store: Store, clock: Clock, registered: bool
) -> None:
    store.insert_table(("t",), "mem://t", {}, registered=registered)
    assert not store.schedule_deletion(
        "mem://t", clock.now, DROPPED
    )  # as whoever does not know that the table was entered
    assert not store.schedule_orphan_deletion("mem://t", clock.now, "gc")
    store.remove_table(("t",), delete_folder=False, keep_ms=KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    store.restore_table(("t",))
    store.remove_table(("t",), delete_folder=False)
    assert store.schedule_deletion("mem://t", clock.now, DROPPED)
    assert [folder.location for folder in store.claim_due_deletions(10, HOUR)] == ["mem://t"]


def test_doom_of_a_folder_whose_table_is_being_entered_waits_and_spares_it(store: Store, clock: Clock) -> None:
    store.schedule_deletion("mem://t", clock.now + HOUR, CREATING)
    outcome = during(
        store,
        lambda catalog: catalog.insert_table(("t",), "mem://t", {}, in_creation=True),
        lambda: store.schedule_deletion("mem://t", clock.now, CREATING),
    )
    assert not outcome
    store.remove_table(("t",), delete_folder=False)
    assert store.claim_due_deletions(10, HOUR) == []


def during(store: Store, change: Callable[[UnitOfWork], object], call: Callable[[], T]) -> T:
    """What a call returns that was made while a change was not committed yet, and had its time to see that."""
    made, seen = Event(), Event()

    def work(catalog: UnitOfWork) -> None:
        change(catalog)
        made.set()
        seen.wait(0.5)

    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(store.transact, work)
        made.wait(10)
        calling = pool.submit(call)
        calling.add_done_callback(lambda _: seen.set())
        changing.result()
        return calling.result()


def test_doom_unknown_marks_only_what_is_still_unknown(store: Store, clock: Clock) -> None:
    store.insert_table(("a",), "mem://around/t", {}, registered=True)
    store.insert_table(("i",), "mem://in", {}, registered=True)
    store.insert_table(("k",), "mem://kept", {})
    store.remove_table(("k",), delete_folder=False, keep_ms=KEEP)
    store.add_clone(store.insert_table(("c",), "mem://c", {}).id, "mem://copied")
    store.add_clone(store.insert_table(("d",), "mem://d", {}).id, "mem://copied and dropped")
    store.remove_table(("d",), delete_folder=True, keep_ms=KEEP)
    store.add_clone(store.insert_table(("g",), "mem://g", {}).id, "mem://copied once")
    store.remove_table(("g",), delete_folder=False)
    store.schedule_deletion("mem://doomed", clock.now + HOUR, CREATING)
    names = "around", "in/side", "kept", "copied", "copied and dropped", "doomed", "copied once", "unknown"
    marked = [name for name in names if store.schedule_orphan_deletion(f"mem://{name}", clock.now, "gc")]
    assert marked == ["copied once", "unknown"]
    assert {folder.location for folder in store.claim_due_deletions(10, HOUR)} == {f"mem://{name}" for name in marked}


@pytest.mark.parametrize("place", ["t", "t/inside"])
def test_doom_unknown_waits_for_a_registration_and_spares_its_folder(store: Store, clock: Clock, place: str) -> None:
    outcome = during(
        store,
        lambda catalog: catalog.insert_table(("t",), f"mem://{place}", {}, registered=True),
        lambda: store.schedule_orphan_deletion("mem://t", clock.now, "gc"),
    )
    assert not outcome
    store.remove_table(("t",), delete_folder=False)
    assert store.claim_due_deletions(10, HOUR) == []


def test_doom_unknown_against_a_registration_has_one_winner(store: Store, clock: Clock) -> None:
    for number in range(20):
        location = f"mem://{number}"
        entered, marked = race(
            lambda location=location: store.insert_table(("t",), location, {}, registered=True),
            lambda location=location: store.schedule_orphan_deletion(location, clock.now, "gc"),
        )
        assert isinstance(entered, InvalidInputError) == marked
        if not marked:
            store.remove_table(("t",), delete_folder=False)
        assert len(store.claim_due_deletions(10, HOUR)) == marked


def test_a_deregistered_table_comes_back_unless_its_location_was_taken(
    store: Store, clock: Clock, table: TableRecord
) -> None:
    store.remove_table(("a", "t"), delete_folder=False, keep_ms=KEEP)
    assert not store.list_removed_tables(None, 10)[0].dropped
    store.insert_table(("a", "u"), "mem://t", {}, registered=True)
    assert store.list_removed_tables(None, 10) == []
    with pytest.raises(InvalidInputError):
        store.restore_table(("a", "t"))
    store.remove_table(("a", "u"), delete_folder=True, keep_ms=KEEP)
    with pytest.raises(InvalidInputError):
        store.restore_table(("a", "t"))
    store.restore_table(("a", "u"))
    store.remove_table(("a", "u"), delete_folder=False)
    assert store.restore_table(("a", "t")).id == table.id
    store.remove_table(("a", "t"), delete_folder=False, keep_ms=KEEP)
    clock.advance(KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    assert store.list_removed_tables(None, 10) == []


def test_replace_registration_keeps_what_it_replaces(store: Store, table: TableRecord) -> None:
    store.replace_registration(("a", "t"), "mem://other", {}, keep_ms=KEEP)
    assert store.restore_table(("a", "t"), ("a", "old")) == replace(
        table, name="old", updated_at=store.describe_table(("a", "old")).updated_at
    )
    assert len(store.list_versions(table.id)) == 2


@pytest.fixture
def tree(store: Store, table: TableRecord) -> list[int]:
    """More below `a`: the ids of all tables in it."""
    store.create_namespace(("a", "b"), {})
    store.create_namespace(("a", "b", "c"), {"deep": "yes"})
    return [
        table.id,
        store.insert_table(("a", "b", "c", "u"), "mem://u", {}).id,
        store.insert_table(("a", "b", "c", "v"), "mem://v", {}, declared=True).id,
    ]


@pytest.mark.parametrize("overwritten", [False, True])
def test_restore_namespace_brings_back_all_that_was_in_it(
    store: Store, clock: Clock, tree: list[int], overwritten: bool
) -> None:
    if overwritten:
        store.create_namespace(("a",), {}, CreateMode.OVERWRITE, KEEP)
        with pytest.raises(NamespaceAlreadyExistsError):
            store.restore_namespace(("a",))
        store.drop_namespace(("a",))
    else:
        assert store.drop_namespace(("a",), cascade=True, keep_ms=KEEP).tables == 3
    [kept] = store.list_removed_namespaces(None, 10)
    assert (kept.path, kept.properties, kept.due_at) == (("a",), {"k": "v"}, clock.now + KEEP)
    assert len(store.list_removed_tables(None, 10)) == 3
    record, tables = store.restore_namespace(("a",))
    assert (record.name, record.properties, tables) == ("a", {"k": "v"}, 3)
    assert store.describe_namespace(("a", "b", "c")).properties == {"deep": "yes"}
    assert [store.describe_table(path).id for path in (("a", "t"), ("a", "b", "c", "u"), ("a", "b", "c", "v"))] == tree
    assert len(store.list_versions(tree[0])) == 2
    clock.advance(2 * KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    assert (store.list_removed_tables(None, 10), store.list_removed_namespaces(None, 10)) == ([], [])


def test_restore_namespace_under_another_name_without_what_came_back_before(store: Store, tree: list[int]) -> None:
    store.create_namespace(("z",), {})
    store.drop_namespace(("a",), cascade=True, keep_ms=KEEP)
    with pytest.raises(NamespaceNotFoundError):
        store.restore_table(("a", "t"))
    assert store.restore_table(("a", "t"), ("saved",)).id == tree[0]
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("a",), ("x", "a"))
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("a", "b"))
    assert store.restore_namespace(("a",), ("z", "y"))[1] == 2
    assert store.list_tables(("z", "y", "b", "c"), None, 10) == ["u", "v"]


@pytest.fixture
def older_below(store: Store, tree: list[int]) -> list[int]:
    """The same tree as `new$a`, brought back below a namespace that is newer than all of it."""
    store.drop_namespace(("a",), cascade=True, keep_ms=KEEP)
    store.create_namespace(("new",), {})
    store.restore_namespace(("a",), ("new", "a"))
    return tree


@pytest.mark.parametrize("overwritten", [False, True])
def test_restore_namespace_brings_back_what_lies_below_a_newer_one(
    store: Store, older_below: list[int], overwritten: bool
) -> None:
    if overwritten:
        store.create_namespace(("new",), {}, CreateMode.OVERWRITE, KEEP)
        store.drop_namespace(("new",))
    else:
        assert store.drop_namespace(("new",), cascade=True, keep_ms=KEEP).tables == 3
    store.create_namespace(("newest",), {})
    assert store.restore_namespace(("new",), ("newest", "again"))[1] == 3
    found = [store.describe_table(("newest", "again", "a", *names)).id for names in (("t",), ("b", "c", "u"))]
    assert found == older_below[:2]
    assert len(store.list_versions(older_below[0])) == 2
    assert store.describe_namespace(("newest", "again", "a", "b", "c")).properties == {"deep": "yes"}
    assert store.drop_namespace(("newest",), cascade=True, keep_ms=KEEP).tables == 3


def test_drop_namespace_for_good_takes_what_lies_below_a_newer_one(store: Store, older_below: list[int]) -> None:
    assert store.drop_namespace(("new",), cascade=True).tables == len(older_below)
    assert store.list_namespaces((), None, 10) == []
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("new",))


def test_a_namespace_whose_tables_are_being_deleted_does_not_come_back(
    store: Store, clock: Clock, tree: list[int]
) -> None:
    store.drop_namespace(("a",), cascade=True, keep_ms=KEEP)
    clock.advance(KEEP)
    assert len(store.claim_due_deletions(1, HOUR)) == 1
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("a",))
    assert store.list_removed_namespaces(None, 10) == []
    for kept in store.list_removed_tables(None, 10):  # the sweeper has not come to these
        store.restore_table((*kept.namespace, kept.name), (kept.name,))
    assert len(store.list_tables((), None, 10)) == len(tree) - 1


def test_an_empty_namespace_is_kept_and_forgotten_by_the_same_clock(store: Store, clock: Clock) -> None:
    store.create_namespace(("e",), {})
    store.drop_namespace(("e",), cascade=True, keep_ms=KEEP)
    assert store.restore_namespace(("e",))[1] == 0
    store.drop_namespace(("e",), cascade=True, keep_ms=KEEP)
    clock.advance(KEEP)
    store.claim_due_deletions(1, HOUR)
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("e",))


@pytest.mark.parametrize("doom", [True, False])
def test_restore_table_by_many_one_wins(store: Store, doom: bool) -> None:
    store.insert_table(("t",), "mem://t", {})
    for _ in range(10):
        store.remove_table(("t",), delete_folder=doom, keep_ms=KEEP)
        outcomes = race(*[lambda i=i: store.restore_table(("t",), (f"t{i}",)) for i in range(8)])
        assert len(won(outcomes)) == 1
        assert kinds(outcomes) == {TableNotFoundError}
        store.rename_table((won(outcomes)[0].name,), ("t",))


def test_restore_table_against_the_sweeper_has_one_winner(store: Store, clock: Clock) -> None:
    for number in range(20):
        store.insert_table(("t",), f"mem://{number}", {})
        store.remove_table(("t",), delete_folder=True, keep_ms=KEEP)
        clock.advance(KEEP)
        restored, claimed = race(lambda: store.restore_table(("t",)), lambda: store.claim_due_deletions(10, HOUR))
        assert isinstance(restored, TableNotFoundError) == (len(claimed) == 1)
        if not claimed:
            store.remove_table(("t",), delete_folder=False)
        clock.advance(2 * HOUR)
        for folder in store.claim_due_deletions(10, HOUR):
            store.complete_deletion(folder.location)


def test_restore_table_against_a_create_of_the_name_has_one_winner(store: Store) -> None:
    for number in range(20):
        store.insert_table(("t",), f"mem://{number}", {})
        store.remove_table(("t",), delete_folder=True, keep_ms=KEEP)
        outcomes = race(
            lambda: store.restore_table(("t",)), lambda number=number: store.insert_table(("t",), f"new://{number}", {})
        )
        assert len(won(outcomes)) == 1
        assert kinds(outcomes) == {TableAlreadyExistsError}
        store.remove_table(("t",), delete_folder=False)


def test_restore_namespace_against_the_sweeper_is_all_or_nothing(store: Store, clock: Clock) -> None:
    for number in range(10):
        store.create_namespace(("n",), {})
        for name in "abc":
            store.insert_table(("n", name), f"mem://{number}{name}", {})
        store.drop_namespace(("n",), cascade=True, keep_ms=KEEP)
        clock.advance(KEEP)
        restored, claimed = race(lambda: store.restore_namespace(("n",)), lambda: store.claim_due_deletions(2, HOUR))
        if isinstance(restored, NamespaceNotFoundError):
            assert len(claimed) == 2
        else:
            assert (restored[1], claimed) == (3, [])
            store.drop_namespace(("n",), cascade=True)
        clock.advance(2 * HOUR)
        for folder in store.claim_due_deletions(10, HOUR):
            store.complete_deletion(folder.location)


def test_remove_table_that_is_kept_loses_no_version_that_was_told(store: Store) -> None:
    for number in range(10):
        table = store.insert_table(("t",), f"mem://{number}", {})
        *told, _ = race(
            *[lambda v=v, id_=table.id: store.record_version(NewVersion(id_, v, f"s{v}", "m")) for v in range(1, 5)],
            lambda: store.remove_table(("t",), delete_folder=True, keep_ms=KEEP),
        )
        store.restore_table(("t",))
        kept = {record.version for record in store.list_versions(table.id)}
        assert kept == {record.version for record, _ in won(told)}
        store.remove_table(("t",), delete_folder=False)


def test_clones_are_known_by_their_sources_as_long_as_they_can_come_back(store: Store, clock: Clock) -> None:
    source = store.insert_table(("s",), "mem://s", {})
    clone = store.insert_table(("c",), "mem://c", {})
    store.add_clone(clone.id, source.location)
    second = store.insert_table(("d",), "mem://d", {})
    store.add_clone(second.id, clone.location)
    store.remove_table(("d",), delete_folder=True, keep_ms=KEEP)
    assert sorted(store.clone_locations("mem://s")) == ["mem://c", "mem://d"]
    assert store.clone_locations("mem://c") == ["mem://d"]
    store.remove_table(("c",), delete_folder=False)
    clock.advance(KEEP)
    store.claim_due_deletions(1, HOUR)
    assert store.clone_locations("mem://s") == []
    assert store.all_locations() == {"mem://s", "mem://d"}


@pytest.mark.parametrize("parts", [True, False], ids=["with parts", "without"])
@pytest.mark.parametrize("status", [TransactionStatus.FAILED, TransactionStatus.CANCELED, TransactionStatus.SUCCEEDED])
def test_job_that_can_be_resumed_owns_its_files(
    store: Store, clock: Clock, status: TransactionStatus, parts: bool
) -> None:
    table = store.insert_table(("t",), "mem://t", {})
    for bound in (table.id, None):
        began = clock.now
        made = store.create_transaction("ingest", bound, {"arguments": {}, "table": ["t"]}, {})
        store.claim_transaction("me", HOUR)
        if parts:
            store.save_job_part(made.id, "me", "share-1", "{}")
        if status is TransactionStatus.CANCELED:
            store.alter_transaction(made.id, lambda _, properties: (status, properties))
        else:
            store.finish_transaction(made.id, "me", status)
        if status is TransactionStatus.SUCCEEDED:
            store.delete_job_parts(made.id)
        goes_on = parts and status is TransactionStatus.FAILED
        if bound:
            assert store.oldest_unfinished_work(table.id, "gc") == (began if goes_on else None)
        else:
            assert store.unfinished_jobs_by_table_name("gc") == ([(began, ("t",))] if goes_on else [])
        clock.advance(5)


def test_jobs_of_no_table_yet_are_known_by_its_name(store: Store, clock: Clock) -> None:
    first = clock.now
    store.create_transaction("ingest", None, {"arguments": {}, "table": ["space", "t"]}, {})
    clock.advance(5)
    store.create_transaction("pipeline", None, {"arguments": {}, "table": []}, {})
    store.create_transaction("collect_garbage", None, {"dry_run": False}, {})
    assert sorted(store.unfinished_jobs_by_table_name("gc")) == [(first, ("space", "t")), (clock.now, ())]


@pytest.mark.parametrize("doom", [True, False])
def test_a_clone_of_a_removed_clone_is_known_by_the_first_source(store: Store, clock: Clock, doom: bool) -> None:
    first = store.insert_table(("c",), "mem://c", {})
    store.add_clone(first.id, "mem://s")
    store.remove_table(("c",), delete_folder=doom, keep_ms=KEEP)
    second = store.insert_table(("d",), "mem://d", {})
    store.add_clone(second.id, "mem://c")
    clock.advance(KEEP)
    store.claim_due_deletions(1, HOUR)
    assert store.clone_locations("mem://s") == ["mem://d"]
    assert store.may_share_files("mem://d", "mem://s")


def test_oldest_work_of_a_table_is_what_owns_its_files(store: Store, clock: Clock) -> None:
    table = store.insert_table(("t",), "mem://t", {})
    assert store.oldest_unfinished_work(table.id, "gc") is None
    store.create_transaction("gc", table.id, {}, {})
    assert store.oldest_unfinished_work(table.id, "gc") is None
    began = clock.now
    upload = store.create_upload(table.id, "main", "")
    clock.advance(5)
    store.create_transaction("index", table.id, {}, {})
    assert store.oldest_unfinished_work(table.id, "gc") == began
    store.delete_upload(upload.id)
    assert store.oldest_unfinished_work(table.id, "gc") == clock.now
