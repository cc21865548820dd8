"""Publications to the catalogs that people have: Hive with Spark over it, Glue, Iceberg; stubs of Polaris and Unity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import lance
import pytest

from tests.mounts.backends import (
    Backend,
    glue_backend,
    hive_backend,
    iceberg_backend,
    new_name,
    polaris_backend,
    unity_backend,
)
from tests.mounts.served.publishing import Publisher
from tests.services.hive import HiveMetastore
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.model.ids import Id

SPARK_ON_HIVE = Path(__file__).parents[3] / "examples" / "spark_on_hive.py"
OURS, ALLOWED = "env:MOUNTS_TEST_", "env:TILTYARD_MOUNT_TEST_"
"""How the suite's settings refer to secrets, and how those of a client have to."""


@pytest.fixture(
    params=[
        "polaris",
        "unity",
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("hive", "glue", "iceberg")),
    ]
)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Backend:
    """The catalog that is published to, as the server's settings name it."""
    match request.param:
        case "polaris":
            backend = polaris_backend(request.getfixturevalue("polaris"), monkeypatch)
        case "unity":
            root = tmp_path_factory.mktemp("unity")
            backend = unity_backend(request.getfixturevalue("unity"), root, monkeypatch)
        case "hive":
            backend = hive_backend(request.getfixturevalue("hive"))
        case "glue":
            backend = glue_backend(request.getfixturevalue("s3"), monkeypatch)
        case _:
            backend = iceberg_backend(*request.getfixturevalue("iceberg"))
    for name, value in dict(os.environ).items():
        if name.startswith("MOUNTS_TEST_"):
            monkeypatch.setenv(f"TILTYARD_MOUNT_TEST_{name.removeprefix('MOUNTS_TEST_')}", value)
    settings = {
        key: value.replace(OURS, ALLOWED) if isinstance(value, str) else value
        for key, value in backend.settings.items()
    }
    return replace(backend, settings=settings)


@pytest.fixture
def publisher(
    target: Backend, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Publisher]:
    """A server on local disk; with Glue on S3, where its tables are."""
    root, environ = str(tmp_path_factory.mktemp("publishing")), {}
    if target.kind == "glue":
        s3 = request.getfixturevalue("s3")
        root = f"{s3.new_bucket(new_name('publishing'))}/tables"
        environ = {"TILTYARD_STORAGE_OPTIONS": json.dumps(s3.options)}
    # Iceberg's metadata is in the table's folder: an entry has to be removed before that is deleted.
    retention = "1" if target.kind == "iceberg" else "0"
    flags = ["--db", f"sqlite:///{tmp_path_factory.mktemp('db')}/catalog.db", "--retention-days", retention]
    server = ServerProcess(root, *flags, environ=environ)
    catalog = target.open()
    with Wire(server.url) as wire:
        yield Publisher(wire, target.kind, target.settings, catalog)
    catalog.close()
    server.stop()


def test_entries_follow_in_every_kind_of_catalog(publisher: Publisher, target: Backend) -> None:
    levels = publisher.catalog.levels or 1
    ours = tuple(new_name("ns") for _ in range(levels))
    for depth in range(levels):
        publisher.namespace(*ours[: depth + 1])
    location = publisher.create(*ours, "a")
    publisher.create(*ours, "b")
    publisher.publish(namespace=list(ours[:1]))
    entry = publisher.wait()
    assert entry["tables"] == 2 and entry["problems"] == [], entry
    assert publisher.names(*ours) == ["a", "b"]
    found = publisher.there(*ours, "a")
    assert found.location == location and set(found.properties) >= {"tiltyard.catalog_id", "tiltyard.table_id"}
    assert target.count(found.location) == 3

    publisher.rename((*ours, "a"), "c")
    publisher.drop(*ours, "b")
    publisher.create(*ours, "d")
    publisher.wait(lambda entry: publisher.names(*ours) == ["c", "d"])
    assert publisher.there(*ours, "c").location == location

    publisher.catalog.deregister_table(Id((*ours, "d")))
    assert publisher.sync()["problems"] == []
    assert publisher.names(*ours) == ["c", "d"]

    if target.add_other_table is not None and target.read_other_table is not None:
        other = Id((*ours, "other"))
        target.add_other_table(other)
        before = target.read_other_table(other)
        publisher.create(*ours, "other")
        entry = publisher.wait(lambda entry: entry["number_of_problems"] == 1)
        assert "somebody else" in entry["problems"][0]["problem"]
        publisher.drop(*ours, "other")
        publisher.wait(lambda entry: entry["number_of_problems"] == 0)
        assert target.read_other_table(other) == before

    assert publisher.call("drop", publication=publisher.name, remove_entries=True) == {}
    assert publisher.names(*ours) == []
    assert target.count(location) == 3


def test_columns_follow_in_every_kind_of_catalog(publisher: Publisher) -> None:
    levels = publisher.catalog.levels or 1
    ours = tuple(new_name("ns") for _ in range(levels))
    for depth in range(levels):
        publisher.namespace(*ours[: depth + 1])
    publisher.create(*ours, "t")
    publisher.publish(namespace=list(ours), columns=True)
    publisher.wait()
    added = {"new_columns": [{"name": "y", "expression": "x + 1"}]}
    publisher.wire.good(publisher.wire.table([*ours, "t"], "add_columns", added))
    publisher.sync()
    columns = json.loads(publisher.there(*ours, "t").properties["tiltyard.columns"])
    assert columns == [{"name": "x", "type": "int64"}, {"name": "y", "type": "int64"}]


@pytest.mark.extended
@pytest.mark.parametrize("target", ["hive"], indirect=True)
def test_spark_over_hive_shows_an_entry_and_refuses_to_read_it_as_text(
    publisher: Publisher, hive: HiveMetastore
) -> None:
    ours = new_name("films")
    publisher.namespace(ours)
    location = publisher.create(ours, "t")
    publisher.publish(namespace=[ours])
    publisher.wait()
    shown = subprocess.run(
        [sys.executable, str(SPARK_ON_HIVE), hive.uri, ours, "t"], check=True, capture_output=True, text=True
    ).stdout
    assert f"EXTERNAL_TABLE {ours}.t at file:{location}" in shown
    assert f"Spark: SHOW TABLES IN {ours}\n  t" in shown
    assert shown.count("refused: [DATA_SOURCE_NOT_FOUND]") == 5
    assert lance.dataset(location).count_rows() == 3
    assert publisher.sync()["problems"] == []


@pytest.mark.extended
@pytest.mark.parametrize("target", ["iceberg"], indirect=True)
def test_iceberg_clients_find_a_name_with_an_empty_table(publisher: Publisher) -> None:
    ours = new_name("films")
    publisher.namespace(ours)
    location = publisher.create(ours, "t")
    publisher.publish(namespace=[ours])
    publisher.wait()
    url = f"{publisher.settings['uri']}/v1/namespaces/{ours}/tables"
    assert httpx.get(url).json()["identifiers"] == [{"namespace": [ours], "name": "t"}]
    metadata: Mapping[str, object] = httpx.get(f"{url}/t").json()["metadata"]
    assert str(metadata["location"]).removeprefix("file://") == location
    assert metadata["snapshots"] == []
