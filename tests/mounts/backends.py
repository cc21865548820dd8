"""The backends that the behaviour suite runs over, and what each can do."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import lance
import pyarrow as pa
import pytest

from tests.services.hive import HiveMetastore
from tests.services.nessie import WAREHOUSE
from tests.services.polaris import CATALOG, CLIENT, CLIENT_SECRET, Polaris
from tests.services.s3 import S3Server
from tests.services.unity import TOKEN, Unity
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog
from tiltyard.mounts.thrift.client import ThriftClient, ThriftLimits
from tiltyard.mounts.thrift.structs import Struct, struct, struct_list, text, text_map

NUMBERS = count(1)


@dataclass
class Backend:
    """One catalog for the suite.

    `unsupported` are methods that are error 0. `location_of` makes a location for a table of this name that is not the
    backend's choice; `add_other_table` adds a table of another format, by the backend's own means, and
    `read_other_table` returns its entry, to compare. `impossible_names` are names that it folds, or cannot hold;
    `outer` is a namespace whose namespaces have properties. `bucket` has the tables of one that chooses locations.
    """

    kind: str
    settings: Mapping[str, object]
    unsupported: frozenset[str] = frozenset()
    location_of: Callable[[str], str] | None = None
    add_other_table: Callable[[Id], None] | None = None
    read_other_table: Callable[[Id], Any] | None = None
    impossible_names: tuple[str, ...] = ()
    storage_options: Mapping[str, str] = field(default_factory=dict)
    keeps_name_of_deregistered: bool = False
    has_table_properties: bool = True
    chooses_locations: bool = False
    bucket: str = ""
    outer: Id = Id()  # noqa: RUF009  # it cannot be changed

    def open(self) -> MountedCatalog:
        """Open another client of it."""
        return open_catalog(self.kind, self.settings)

    def write(self, location: str, rows: int) -> None:
        """Write a Lance table."""
        table = pa.table({"x": range(rows)})
        lance.write_dataset(table, location, mode="overwrite", storage_options=dict(self.storage_options))

    def count(self, location: str) -> int:
        """Return the rows of a Lance table."""
        rows: int = lance.dataset(location, storage_options=dict(self.storage_options)).count_rows()
        return rows


def new_name(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}{next(NUMBERS)}"


def new_namespace(catalog: MountedCatalog) -> Id:
    """Create a namespace that can have tables, and those that it lies in; the root, where there is no other."""
    namespace = Id()
    while len(namespace) < (1 if catalog.levels is None else catalog.levels):
        namespace = Id((*namespace, new_name("ns")))
        catalog.create_namespace(namespace, {})
    return namespace


DIRECTORY_CANNOT = frozenset(("update_table_properties", "rename_table"))
DIRECTORY_CANNOT_HOLD = ("a$b", "a/b", "ä", "a%b", "a b", ".")


def local_directory(root: Path, mode: str) -> Backend:
    """A folder, in one of the three modes."""

    def add_other_table(table: Id) -> None:
        (root / f"{table.name}.parquet").mkdir()

    listing = {"create_namespace", "drop_namespace"} if mode == "listing" else set()
    return Backend(
        "dir",
        {"root": str(root), "mode": mode},
        unsupported=DIRECTORY_CANNOT | listing,
        location_of=None if mode == "listing" else lambda name: f"{root}/elsewhere/{name}",
        add_other_table=add_other_table if mode == "listing" else None,
        read_other_table=lambda table: (root / f"{table.name}.parquet").is_dir(),
        impossible_names=DIRECTORY_CANNOT_HOLD,
        keeps_name_of_deregistered=mode == "listing",
        has_table_properties=mode != "listing",
    )


def object_store_directory(server: S3Server) -> Backend:
    """A folder in a new bucket."""
    root = f"{server.new_bucket(new_name('mounts'))}/warehouse"
    return Backend(
        "dir",
        {"root": root, "options": server.options, "timeout": 60},
        unsupported=DIRECTORY_CANNOT,
        location_of=lambda name: f"{root}/elsewhere/{name}",
        impossible_names=DIRECTORY_CANNOT_HOLD,
        storage_options=server.options,
    )


def hive_entry(table: Id, location: str, parameters: Mapping[str, str]) -> Struct:
    """Return an entry as others write it."""
    serde = Struct({3: text_map({})})
    descriptor = Struct({1: struct_list([]), 2: text(location), 7: struct(serde), 10: text_map({"their": "own"})})
    return Struct({1: text(table.name), 2: text(table.parent.name), 7: struct(descriptor), 9: text_map(parameters)})


def hive_backend(metastore: HiveMetastore, *, has_catalogs: bool = False) -> Backend:
    """A metastore; with Hive 3's catalogs, or without."""
    raw = ThriftClient("raw", [("127.0.0.1", metastore.port)], ThriftLimits(60, 5, 8))
    settings = {"uri": metastore.uri, "timeout": 60, "connect_timeout": 10, "catalogs": has_catalogs}

    def add_other_table(table: Id) -> None:
        entry = hive_entry(table, f"{metastore.folder}/other/{table.name}", {"table_type": "ICEBERG", "a": "b"})
        if has_catalogs:
            entry[17] = text(table[0])
        result = raw.call("create_table", Struct({1: struct(entry)}), is_read=False)
        assert not result, result

    def read_other_table(table: Id) -> Struct:
        database = f"@{table[0]}#{table[1]}" if has_catalogs else table[0]
        return raw.call("get_table", Struct({1: text(database), 2: text(table.name)}), is_read=True)

    outer = Id()
    if has_catalogs:
        outer = Id((new_name("catalog"),))
        catalog = open_catalog("hive", settings)
        catalog.create_namespace(outer, {})
        catalog.close()
    return Backend(
        "hive",
        settings,
        location_of=lambda name: f"{metastore.folder}/elsewhere/{name}",
        add_other_table=add_other_table,
        read_other_table=read_other_table,
        impossible_names=("Upper", "a-b", "a.b", "a b", "ä", "", "x" * 129),
        outer=outer,
    )


def glue_backend(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Glue, as moto plays it."""
    monkeypatch.setenv("MOUNTS_TEST_KEY", "testing")
    raw = boto3.client(
        "glue",
        endpoint_url=server.endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
    )
    root = server.new_bucket(new_name("glue"))

    def add_other_table(table: Id) -> None:
        entry = {"Name": table.name, "Parameters": {"table_type": "ICEBERG"}}
        raw.create_table(DatabaseName=table.parent.name, TableInput=entry)

    return Backend(
        "glue",
        {
            "region": "us-east-1",
            "endpoint": server.endpoint,
            "access_key_id": "env:MOUNTS_TEST_KEY",
            "secret_access_key": "env:MOUNTS_TEST_KEY",
            "root": root,
            "timeout": 60,
        },
        unsupported=frozenset(("rename_table",)),
        location_of=lambda name: f"{root}/elsewhere/{name}",
        add_other_table=add_other_table,
        read_other_table=lambda table: raw.get_table(DatabaseName=table.parent.name, Name=table.name)["Table"],
        impossible_names=("Upper", "a.b", "a b", "ä", "", "x" * 256),
        storage_options=server.options,
    )


def iceberg_backend(url: str, folder: Path) -> Backend:
    """The fixture of the Iceberg project."""

    def add_other_table(table: Id) -> None:
        schema = {"type": "struct", "schema-id": 0, "fields": []}
        body = json.dumps({"name": table.name, "schema": schema}).encode()
        tables = f"{url}/v1/namespaces/{table.parent.name}/tables"
        request = urllib.request.Request(tables, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()

    def read_other_table(table: Id) -> bytes:
        entry = f"{url}/v1/namespaces/{table.parent.name}/tables/{table.name}"
        with urllib.request.urlopen(entry, timeout=60) as response:
            content: bytes = response.read()
        return content

    return Backend(
        "iceberg",
        {"uri": url, "timeout": 60},
        location_of=lambda name: f"{folder}/elsewhere/{name}",
        add_other_table=add_other_table,
        read_other_table=read_other_table,
        impossible_names=("a/b", "a\x1fb", "", "a.b", "a%b", "a\\b"),
    )


def nessie_backend(url: str, store: S3Server, bucket: str) -> Backend:
    """Nessie's Iceberg REST catalog."""

    def add_other_table(table: Id) -> None:
        schema = {"type": "struct", "schema-id": 0, "fields": []}
        body = json.dumps({"name": table.name, "schema": schema, "stage-create": False}).encode()
        tables = f"{url}/v1/main%7C{WAREHOUSE}/namespaces/{table.parent.name}/tables"
        request = urllib.request.Request(tables, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()

    def read_other_table(table: Id) -> object:
        entry = f"{url}/v1/main%7C{WAREHOUSE}/namespaces/{table.parent.name}/tables/{table.name}"
        with urllib.request.urlopen(entry, timeout=60) as response:
            return json.load(response)["metadata-location"]

    return Backend(
        "iceberg",
        {"uri": url, "warehouse": WAREHOUSE, "timeout": 60},
        add_other_table=add_other_table,
        read_other_table=read_other_table,
        impossible_names=("a/b", "a\x1fb", "", "a.b", "a%b", "a\\b"),
        storage_options=store.options,
        chooses_locations=True,
        bucket=bucket,
    )


LANCE_CANNOT = frozenset(("update_table_properties",))
LANCE_CANNOT_HOLD = ("a$b", "a/b", "a%b", "", "..")


def lance_backend(url: str, root: Path) -> Backend:
    """Another Tiltyard."""
    return Backend(
        "lance",
        {"uri": url, "timeout": 60},
        unsupported=LANCE_CANNOT,
        location_of=lambda name: f"{root}/elsewhere/{name}",
        impossible_names=LANCE_CANNOT_HOLD,
    )


def adapter_backend(url: str, root: Path) -> Backend:
    """A folder behind pylance's own server."""
    return Backend(
        "lance",
        {"uri": url, "timeout": 60, "relative_to": str(root)},
        unsupported=LANCE_CANNOT | {"rename_table"},
        location_of=lambda name: f"{root}/elsewhere/{name}",
        impossible_names=LANCE_CANNOT_HOLD,
    )


def polaris_backend(polaris: Polaris, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Polaris, as its descriptions have it."""
    assert polaris.catalog is not None
    monkeypatch.setenv("MOUNTS_TEST_SECRET", CLIENT_SECRET)
    root = polaris.root.removeprefix("file://")
    return Backend(
        "polaris",
        {
            "uri": polaris.catalog.url,
            "catalog": CATALOG,
            "client_id": CLIENT,
            "client_secret": "env:MOUNTS_TEST_SECRET",
        },
        unsupported=frozenset(("update_table_properties", "rename_table")),
        location_of=lambda name: f"{root}/elsewhere/{name}",
        add_other_table=lambda table: polaris.add_other(tuple(table.parent), table.name),
        read_other_table=lambda table: dict(polaris.tables[tuple(table.parent), table.name]),
        impossible_names=("a/b", "a\x1fb", "", "a.b", "a%b", "a\\b"),
    )


def unity_backend(unity: Unity, root: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Unity Catalog, as its description has it."""
    assert unity.catalog is not None
    monkeypatch.setenv("MOUNTS_TEST_TOKEN", TOKEN)
    return Backend(
        "unity",
        {"uri": unity.catalog.url, "token": "env:MOUNTS_TEST_TOKEN", "root": str(root)},
        unsupported=frozenset(("update_table_properties", "rename_table")),
        location_of=lambda name: f"{root}/elsewhere/{name}",
        add_other_table=lambda table: unity.add_other(".".join(table.parent), table.name),
        read_other_table=lambda table: dict(unity.tables[".".join(table)]),
        impossible_names=("Upper", "a.b", "a b", "ä", "", "a/b", "x" * 256),
    )
