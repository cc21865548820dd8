"""Records of tables that move out of a mount, and into one: their id stays, and what refers to it."""

from __future__ import annotations

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from tiltyard.store import MountRecord, NewVersion, Store, TableRecord, UnitOfWork

PLACE = "/data/lake/t"


@pytest.fixture
def mount(store: Store) -> int:
    """The id of a mount `lake`; there is a namespace `own`, too."""
    store.add_mount(MountRecord(0, ("lake",), "dir", {}, (), 0, False, False, "api", 0, 0), {})
    store.create_namespace(("own",), {})
    return store.list_mounts()[0].id


@pytest.fixture
def mounted(store: Store, mount: int) -> TableRecord:
    """A table below it, with a grant, a policy and a version."""
    record = store.keep_mounted_table(mount, ("a", "t"), PLACE, "foreign", managed=True)
    store.grant("principal:ann", "table", record.id, 2, "root")
    store.set_policy(record.id, "p", "{}", "root")
    store.record_version(NewVersion(record.id, 1, f"{PLACE}/_versions/1.manifest-x", "_versions/1.manifest"))
    return record


def check_kept(store: Store, table_id: int) -> None:
    assert [grant.grantee for grant in store.grants_on("table", table_id, None, 10)] == ["principal:ann"]
    assert [policy.name for policy in store.policies(table_id)] == ["p"]
    assert store.latest_version(table_id) is not None


def test_taken_table_keeps_its_id_and_all_that_refers_to_it(store: Store, mount: int, mounted: TableRecord) -> None:
    taken = store.take_from_mount(mounted, ("own", "t"), {"x": "1"}, declared=False)
    assert (taken.id, taken.location, taken.properties, taken.managed) == (mounted.id, PLACE, {"x": "1"}, True)
    assert store.describe_table(("own", "t")) == taken
    assert [table.name for table in store.list_all_tables(None, 10)] == ["t"]
    assert store.find_mounted_table(mount, ("a", "t"), PLACE, "foreign") is None
    check_kept(store, taken.id)
    with pytest.raises(TableNotFoundError):
        store.take_from_mount(mounted, ("own", "u"), {}, declared=False)


def test_taken_table_under_a_name_or_namespace_that_cannot_be_changes_nothing(
    store: Store, mount: int, mounted: TableRecord
) -> None:
    store.insert_table(("own", "t"), "/data/other", {})
    with pytest.raises(TableAlreadyExistsError):
        store.take_from_mount(mounted, ("own", "t"), {}, declared=False)
    with pytest.raises(NamespaceNotFoundError):
        store.take_from_mount(mounted, ("nowhere", "t"), {}, declared=False)
    store.insert_table(("own", "inner"), f"{PLACE}/inner", {})
    with pytest.raises(InvalidInputError, match="inside or around"):
        store.take_from_mount(mounted, ("own", "u"), {}, declared=False)
    found = store.find_mounted_table(mount, ("a", "t"), PLACE, "foreign")
    assert found is not None
    assert found.id == mounted.id


def test_given_table_is_below_the_mount_and_comes_back(store: Store, mount: int, mounted: TableRecord) -> None:
    taken = store.take_from_mount(mounted, ("own", "t"), {}, declared=False)

    def give(table: TableRecord) -> None:
        def work(catalog: UnitOfWork) -> None:
            catalog.give_to_mount(table, mount, "new", managed=False)
            catalog.move_mounted_table(mount, ("b", "t"), PLACE, table.id)

        store.transact(work)

    give(taken)
    with pytest.raises(TableNotFoundError):
        store.describe_table(("own", "t"))
    again = store.keep_mounted_table(mount, ("b", "t"), PLACE, "new", managed=False)
    assert (again.id, again.managed) == (taken.id, False)
    check_kept(store, taken.id)
    with pytest.raises(ConcurrentModificationError):
        give(taken)
    back = store.take_from_mount(again, ("own", "back"), {}, declared=False)
    assert back.id == mounted.id


def test_grants_above_are_those_of_all_namespaces_up_to_the_root(
    store: Store, mount: int, mounted: TableRecord
) -> None:
    store.grant("principal:ann", "namespace", mount, 1, "root")
    store.grant("principal:ann", "namespace", mounted.namespace_id, 4, "root")
    store.grant("role:all", "namespace", 1, 2, "root")
    store.grant("principal:ann", "server", 0, 8, "root")
    assert store.grants_above(mounted.namespace_id) == {"principal:ann": 5, "role:all": 2}
    assert store.grants_of_table(mounted.id) == {"principal:ann": 2}


def test_copied_access_is_that_of_the_source(store: Store, mounted: TableRecord) -> None:
    copy = store.insert_table(("own", "copy"), "/data/copy", {})
    store.copy_access(copy.id, mounted.id)
    assert store.grants_of_table(copy.id) == {"principal:ann": 2}
    assert [policy.name for policy in store.policies(copy.id)] == ["p"]
