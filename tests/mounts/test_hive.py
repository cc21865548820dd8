"""A real Hive Metastore: entries of others, and what happens while it is away."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    UnsupportedOperationError,
)

from tests.mounts.backends import hive_entry, new_name
from tests.services.certificates import PASSWORD, loopback_certificate
from tests.services.hive import HiveMetastore, hive_metastore
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog
from tiltyard.mounts.thrift.client import ThriftClient, ThriftLimits
from tiltyard.mounts.thrift.structs import Struct, struct, text

pytestmark = pytest.mark.extended


@pytest.fixture
def catalog(hive: HiveMetastore) -> Iterator[MountedCatalog]:
    catalog = open_catalog("hive", {"uri": hive.uri, "timeout": 30})
    yield catalog
    catalog.close()


@pytest.fixture
def namespace(catalog: MountedCatalog) -> Id:
    namespace = Id((new_name("db"),))
    catalog.create_namespace(namespace, {})
    return namespace


@pytest.fixture
def raw(hive: HiveMetastore) -> ThriftClient:
    return ThriftClient("raw", [("127.0.0.1", hive.port)], ThriftLimits(60, 5, 4))


def entry_of(raw: ThriftClient, table: Id) -> Struct:
    return raw.call("get_table", Struct({1: text(table.parent.name), 2: text(table.name)}), is_read=True).struct(0)


def declare_like_upstream(raw: ThriftClient, hive: HiveMetastore, table: Id) -> str:
    """Add an entry as `lance-namespace-impls` does, which the metastore takes for a managed one; write three rows."""
    location = f"{hive.warehouse}/{table.parent.name}.db/{table.name}"
    parameters = {"table_type": "lance", "managed_by": "storage", "empty_table": "true", "a": "b"}
    assert not raw.call("create_table", Struct({1: struct(hive_entry(table, location, parameters))}), is_read=False)
    assert entry_of(raw, table).text(12) == "MANAGED_TABLE"
    lance.write_dataset(pa.table({"x": [1, 2, 3]}), location)
    return location


def test_an_entry_is_external_and_names_its_format_to_spark(
    catalog: MountedCatalog, namespace: Id, raw: ThriftClient
) -> None:
    table = catalog.declare_table(Id((*namespace, "t")), None, {"team": "search"})
    entry = entry_of(raw, table.id)
    assert entry.text(12) == "EXTERNAL_TABLE"
    assert entry.text_map(9).items() >= {
        "EXTERNAL": "TRUE", "spark.sql.sources.provider": "lance", "table_type": "lance", "team": "search",
    }.items()  # fmt: skip


@pytest.mark.parametrize("operation", ["update", "rename", "deregister"])
def test_a_managed_entry_of_upstream_is_converted_when_touched_and_its_data_stay(
    catalog: MountedCatalog, namespace: Id, raw: ThriftClient, hive: HiveMetastore, operation: str
) -> None:
    table, new_id = Id((*namespace, "t")), Id((*namespace, "renamed"))
    location = declare_like_upstream(raw, hive, table)
    assert catalog.get_table(table).properties == {"a": "b"}
    assert catalog.list_tables(namespace).names == ("t",)
    match operation:
        case "update":
            catalog.update_table_properties(table, {"c": "d"})
        case "rename":
            table = catalog.rename_table(table, new_id).id
        case "deregister":
            catalog.deregister_table(table)
    if operation != "deregister":
        assert entry_of(raw, table).text(12) == "EXTERNAL_TABLE"
        assert catalog.get_table(table).location == location
        raw.call("drop_table", Struct({1: text(table.parent.name), 2: text(table.name), 3: (2, True)}), is_read=False)
    assert lance.dataset(location).count_rows() == 3


@pytest.mark.parametrize("marker", ["LANCE", "Lance"])
def test_the_marker_of_another_client_counts_in_any_case(
    catalog: MountedCatalog, namespace: Id, raw: ThriftClient, hive: HiveMetastore, marker: str
) -> None:
    table = Id((*namespace, "t"))
    entry = hive_entry(table, f"{hive.folder}/elsewhere/{new_name('t')}", {"table_type": marker})
    raw.call("create_table", Struct({1: struct(entry)}), is_read=False)
    assert catalog.list_tables(namespace).names == ("t",)
    assert catalog.get_table(table).id == table


def test_a_change_of_properties_keeps_what_others_wrote_into_the_entry(
    catalog: MountedCatalog, namespace: Id, raw: ThriftClient, hive: HiveMetastore
) -> None:
    table = Id((*namespace, "t"))
    entry = hive_entry(table, f"{hive.folder}/elsewhere/{new_name('t')}", {"table_type": "lance", "EXTERNAL": "TRUE"})
    entry.update({3: text("ada"), 5: (8, 12), 6: (8, 34), 12: text("EXTERNAL_TABLE")})
    raw.call("create_table", Struct({1: struct(entry)}), is_read=False)
    before = entry_of(raw, table)
    catalog.update_table_properties(table, {"c": "d"})
    after = entry_of(raw, table)
    assert {**after, 9: None} == {**before, 9: None}
    assert after.text_map(9).items() - before.text_map(9).items() >= {("c", "d")}


def test_a_list_and_a_description_are_one_call_each(
    catalog: MountedCatalog, namespace: Id, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        catalog.declare_table(Id((*namespace, f"t{number}")), None, {})
    calls: list[str] = []
    call = ThriftClient.call

    def counted(self: ThriftClient, method: str, arguments: Struct, *, is_read: bool) -> Struct:
        calls.append(method)
        return call(self, method, arguments, is_read=is_read)

    monkeypatch.setattr(ThriftClient, "call", counted)
    assert len(catalog.list_tables(namespace).names) == 20
    catalog.get_table(Id((*namespace, "t0")))
    assert calls == ["get_table_names_by_filter", "get_table"]


def test_settings_name_the_owner_and_the_location_of_new_tables(
    hive: HiveMetastore, namespace: Id, raw: ThriftClient
) -> None:
    root = f"{hive.folder}/lake"
    catalog = open_catalog("hive", {"uri": hive.uri, "root": root, "user": "ada", "timeout": 30})
    table = catalog.declare_table(Id((*namespace, "t")), None, {})
    assert re.fullmatch(rf"{re.escape(root)}/{namespace.name}\.db/t-[0-9a-f]{{32}}\.lance", table.location)
    assert entry_of(raw, table.id).text(3) == "ada"
    catalog.close()


def test_the_default_database_is_not_dropped_and_a_location_without_a_file_system_is_refused(
    catalog: MountedCatalog, namespace: Id
) -> None:
    with pytest.raises(InvalidInputError):
        catalog.drop_namespace(Id(("default",)))
    with pytest.raises(InvalidInputError, match="location"):
        catalog.declare_table(Id((*namespace, "t")), "gs://bucket/t", {})
    assert catalog.list_tables(namespace).names == ()


def test_a_metastore_that_is_killed_is_unavailable_and_then_goes_on_without_a_loss(
    hive: HiveMetastore, namespace: Id
) -> None:
    settings = {"uri": hive.uri, "timeout": 20, "connect_timeout": 2}
    catalog = open_catalog("hive", settings)  # its connections are the writers'
    reader = open_catalog("hive", settings)
    stop = Event()

    def write(writer: int) -> set[str]:
        """Declare tables until the end; return those that were acknowledged."""
        acknowledged: set[str] = set()
        for number in range(10_000):
            if stop.is_set():
                break
            name = f"w{writer}_{number}"
            try:
                catalog.declare_table(Id((*namespace, name)), None, {})
                acknowledged.add(name)
            except ServiceUnavailableError:
                stop.wait(0.2)
            except TableAlreadyExistsError:
                raise AssertionError("nobody else has this name") from None
        return acknowledged

    with ThreadPoolExecutor(8) as threads:
        writers = [threads.submit(write, writer) for writer in range(8)]
        try:
            wait_for_tables(reader, namespace, 8)
            hive.kill()
            started = time.monotonic()
            with pytest.raises(ServiceUnavailableError):
                reader.list_tables(namespace)
            assert time.monotonic() - started < 20
            hive.start()
            before = len(reader.list_tables(namespace).names)
            wait_for_tables(reader, namespace, before + 8)
        finally:
            stop.set()  # also after a failure: what it was would be lost behind writers that go on
        acknowledged = set().union(*(writer.result() for writer in writers))
    assert acknowledged <= set(reader.list_tables(namespace).names)
    reader.close()
    catalog.close()


def wait_for_tables(catalog: MountedCatalog, namespace: Id, count: int) -> None:
    """Wait until a namespace has so many tables."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if len(catalog.list_tables(namespace).names) >= count:
                return
        except LanceNamespaceError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"there are not {count} tables")


def test_idle_connections_survive_a_restart_of_the_metastore(hive: HiveMetastore, catalog: MountedCatalog) -> None:
    namespace = Id((new_name("db"),))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: catalog.list_namespaces(Id()), range(16)))
    hive.kill()
    hive.start()
    catalog.create_namespace(namespace, {})  # a write: a connection that is known to be gone is not tried
    with ThreadPoolExecutor(8) as threads:
        pages = list(threads.map(lambda _: catalog.list_namespaces(Id()), range(16)))
    assert all(namespace.name in page.names for page in pages)


def test_a_metastore_is_reached_by_tls(tmp_path: Path) -> None:
    certificate = loopback_certificate(tmp_path)
    settings = {
        "hive.metastore.use.SSL": "true",
        "hive.metastore.keystore.path": str(certificate.key_store),
        "hive.metastore.keystore.password": PASSWORD,
    }
    with hive_metastore(tmp_path, more=settings) as metastore:
        catalog = open_catalog("hive", {"uri": metastore.uri, "tls": True, "ca_file": str(certificate.certificate)})
        catalog.create_namespace(Id(("db",)), {})
        with ThreadPoolExecutor(8) as threads:
            pages = list(threads.map(lambda _: catalog.list_namespaces(Id()), range(16)))
        assert all(page.names == ("db", "default") for page in pages)
        catalog.close()
        for wrong, message in (({"tls": True}, "certificate"), ({}, "does not answer")):
            unaccepted = open_catalog("hive", {"uri": metastore.uri, "timeout": 2, **wrong})
            with pytest.raises(ServiceUnavailableError, match=message):
                unaccepted.list_namespaces(Id())


def test_a_metastore_without_catalogs_says_that_it_has_none(hive: HiveMetastore) -> None:
    catalog = open_catalog("hive", {"uri": hive.uri, "catalogs": True})
    with pytest.raises(UnsupportedOperationError, match="too old"):
        catalog.list_namespaces(Id())


@pytest.fixture
def catalogs(hive_3: HiveMetastore) -> Iterator[MountedCatalog]:
    catalog = open_catalog("hive", {"uri": hive_3.uri, "timeout": 30, "catalogs": True})
    yield catalog
    catalog.close()


def test_catalogs_of_hive_3_are_namespaces_without_properties(catalogs: MountedCatalog, hive_3: HiveMetastore) -> None:
    name = new_name("catalog")
    with pytest.raises(UnsupportedOperationError, match="properties"):
        catalogs.create_namespace(Id((name,)), {"a": "b"})
    catalogs.create_namespace(Id((name,)), {})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalogs.create_namespace(Id((name,)), {})
    assert {name, "hive"} <= set(catalogs.list_namespaces(Id()).names)
    assert catalogs.list_namespaces(Id((name,))).names == ("default",)
    with pytest.raises(UnsupportedOperationError, match="catalog"):
        catalogs.drop_namespace(Id((name,)))
    assert (hive_3.warehouse / name).is_dir()


def test_tables_of_one_name_in_two_catalogs_are_two_and_none_moves_between_them(catalogs: MountedCatalog) -> None:
    first, second = Id((new_name("catalog"),)), Id((new_name("catalog"),))
    for catalog in (first, second):
        catalogs.create_namespace(catalog, {})
        catalogs.create_namespace(Id((*catalog, "db")), {})
        catalogs.declare_table(Id((*catalog, "db", "t")), None, {"in": catalog.name})
    tables = [catalogs.get_table(Id((*catalog, "db", "t"))) for catalog in (first, second)]
    assert [table.properties for table in tables] == [{"in": first.name}, {"in": second.name}]
    assert tables[0].location != tables[1].location
    with pytest.raises(UnsupportedOperationError, match="another catalog"):
        catalogs.rename_table(tables[0].id, Id((*second, "db", "moved")))
    catalogs.deregister_table(tables[0].id)
    assert catalogs.get_table(tables[1].id) == tables[1]


def test_hives_own_catalog_has_what_a_mount_without_catalogs_sees(
    catalogs: MountedCatalog, hive_3: HiveMetastore
) -> None:
    without = open_catalog("hive", {"uri": hive_3.uri, "timeout": 30})
    name = new_name("db")
    table = catalogs.declare_table(created(catalogs, Id(("hive", name))), None, {}).location
    assert without.get_table(Id((name, "t"))).location == table
    without.close()


def created(catalog: MountedCatalog, namespace: Id) -> Id:
    """Create a namespace, and return the id of a table in it."""
    catalog.create_namespace(namespace, {})
    return Id((*namespace, "t"))
