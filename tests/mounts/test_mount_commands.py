"""`tiltyard mount …`: on the database and on a server, over a folder of Lance tables; `doctor` over Hive too."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
import lance_namespace
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, RegisterTableRequest

from tests.mounts.backends import new_name
from tests.mounts.test_hive import declare_like_upstream, entry_of
from tests.services.hive import HiveMetastore
from tests.services.secured import Secured, secured_server
from tests.services.wire import Wire, stream
from tiltyard.catalog.mounts import checks as mount_checks
from tiltyard.cli import main
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.mounts.thrift.client import ThriftClient, ThriftLimits

ROWS = pa.table({"x": [1, 2, 3]})


@dataclass
class Reach:
    """A catalog's database or server, as options of a command, and the folder below which tables may be opened."""

    options: list[str]
    lakes: Path

    def run(self, *arguments: str) -> Result:
        """Run a command, in this process."""
        return CliRunner().invoke(main, ["mount", *arguments, *self.options])

    def lake(self) -> Path:
        """Return a new folder with two tables."""
        folder = self.lakes / new_name("lake")
        for name in ("films", "books"):
            lance.write_dataset(ROWS, str(folder / f"{name}.lance"))
        return folder

    def mounted(self, *options: str) -> tuple[str, Path]:
        """Mount a new folder; return the name of the mount, and the folder."""
        name, folder = new_name("mount"), self.lake()
        added = self.run("add", name, "dir", str(folder), *options)
        assert added.exit_code == 0, added.output
        return name, folder


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, lakes: Path) -> Iterator[Secured]:
    environ = {"TILTYARD_ALLOWED_ROOTS": json.dumps([str(lakes)])}
    with secured_server(tmp_path_factory.mktemp("mounting"), environ=environ) as running:
        yield running


@pytest.fixture(params=["database", "server"])
def reach(request: pytest.FixtureRequest, secured: Secured, lakes: Path, monkeypatch: pytest.MonkeyPatch) -> Reach:
    if request.param == "database":
        monkeypatch.setenv("TILTYARD_ALLOWED_ROOTS", json.dumps([str(lakes)]))
        return Reach(["--root", str(secured.server.root)], lakes)
    return Reach(["--url", secured.url, "--key", secured.keys["administrator"]], lakes)


@pytest.fixture
def database(secured: Secured, lakes: Path, monkeypatch: pytest.MonkeyPatch) -> Reach:
    """The database, by commands in this process."""
    monkeypatch.setenv("TILTYARD_ALLOWED_ROOTS", json.dumps([str(lakes)]))
    return Reach(["--root", str(secured.server.root)], lakes)


def lines_of(result: Result, name: str) -> list[str]:
    return [line for line in result.stdout.splitlines() if line.startswith(name)]


def wait_for_mounts(wire: Wire, status: int, name: str) -> None:
    """Wait until a server knows of a change that another process made: it looks once a second."""
    until = time.monotonic() + 30
    while wire.table([name, "films"], "exists").status_code != status:
        assert time.monotonic() < until
        time.sleep(0.1)


def assert_refused(result: Result, *sentences: str, status: int = 1) -> None:
    """Assert that a command has failed with one sentence for the operator."""
    assert result.exit_code == status and len(result.stderr.splitlines()) == 1, result.output
    for sentence in sentences:
        assert sentence in result.stderr


def test_a_mount_is_added_listed_altered_and_removed(reach: Reach, secured: Secured) -> None:
    name, folder = reach.mounted("--set", "mode=listing", "--max-age", "0", "--property", "owner=ann")
    line = f"{name}  dir  root={folder}  mode=listing  max-age=0"
    assert lines_of(reach.run("list"), name) == [line]
    wire = secured.wire("administrator")
    assert wire.good(wire.namespace([name], "describe"))["properties"] == {"owner": "ann"}
    wait_for_mounts(wire, 200, name)
    assert wire.good(wire.table([name, "films"], "count_rows")) == 3

    altered = reach.run("alter", name, "--set", "timeout=5", "--max-age", "2", "--allow", str(folder))
    assert altered.stdout == f"{name}  dir  root={folder}  mode=listing  timeout=5  max-age=2  allow={folder}\n"
    altered = reach.run("alter", name, "--unset", "timeout", "--allow-any", "--managed", "--vend")
    assert altered.stdout == f"{name}  dir  root={folder}  mode=listing  max-age=2  managed  vends credentials\n"

    assert reach.run("remove", name).stdout == f"{name} is unmounted.\n"
    assert lines_of(reach.run("list"), name) == []
    wait_for_mounts(wire, 404, name)
    assert lance.dataset(str(folder / "films.lance")).count_rows() == 3


def test_settings_that_are_tables_are_set_entry_by_entry(reach: Reach) -> None:
    name, _ = reach.mounted("--set", "options.region=eu-central-1", "--set", "options.timeout=5s")
    assert 'options={"region": "eu-central-1", "timeout": "5s"}' in reach.run("list").stdout
    unknown = reach.run("alter", name, "--unset", "mode")
    assert unknown.exit_code == 2 and "no setting 'mode' to remove: there are root, options" in unknown.stderr
    altered = reach.run("alter", name, "--set", "options.timeout=6s")
    assert 'options={"region": "eu-central-1", "timeout": "6s"}' in altered.stdout


def test_what_cannot_be_mounted_is_refused_in_one_sentence_that_says_what_to_do(reach: Reach) -> None:
    name, lake = reach.mounted()
    add = reach.run
    assert_refused(add("add", "x", "hivee", "thrift://h"), "no kind of mount 'hivee'", "dir, glue, hive, iceberg")
    assert_refused(add("add", "x", "dir", str(lake), "--set", "rooot=1"), "no setting 'rooot'", "it has root")
    assert_refused(add("add", "x", "dir", str(lake / "away")), "is not there", "make the folder", status=6)
    assert_refused(add("add", "x", "dir", "/elsewhere"), "not below the server's root", "allowed_roots", status=5)
    assert_refused(add("add", name, "dir", str(lake)), "already exists")
    assert_refused(add("add", f"{name}$below", "dir", str(lake)), f"{name} is a mount")
    assert_refused(add("add", "no$x", "dir", str(lake)), "not found: no", status=4)
    assert_refused(add("add", "x", "hive", "thrift://127.0.0.1:1"), "does not answer", status=6)
    for command in ("alter", "remove", "doctor"):
        assert_refused(reach.run(command, "none"), "no mount none", status=4)


def test_secrets_are_references_that_are_meant_for_mounts(reach: Reach) -> None:
    secret = ["--set", "credentials.aws_secret_access_key=hunter2"]
    refused = reach.run("add", "x", "dir", str(reach.lakes), *secret)
    assert_refused(refused, "is a secret in plain text: write env:NAME or file:PATH")
    assert "hunter2" not in refused.stderr
    refused = reach.run("add", "x", "dir", str(reach.lakes), "--set", "credentials.a=env:HOME")
    assert_refused(refused, "TILTYARD_MOUNT_")
    refused = reach.run("add", "x", "dir", str(reach.lakes), "--set", "credentials.a=file:/etc/hostname")
    assert_refused(refused, "mount_secrets")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "x", "glue", "https://glue.example.org"), "has no URI"),
        (("add", "x", "dir", "/x", "--set", "mode"), "not NAME=VALUE"),
        (("add", "x", "dir", "/x", "--set", "a=1", "--set", "a.b=1"), "a text and a table"),
        (("add", "x", "dir", "/x", "--set", "a.b=1", "--set", "a=1"), "a text and a table"),
        (("add", "x", "dir", "/x", "--max-age", "-1"), "-1"),
        (("alter", "x", "--allow", "/x", "--allow-any"), "contradict"),
    ],
)
def test_usage_that_cannot_be_is_explained(database: Reach, arguments: tuple[str, ...], sentence: str) -> None:
    result = database.run(*arguments)
    assert result.exit_code == 2 and sentence in result.stderr


def test_only_administrators_mount(secured: Secured, lakes: Path) -> None:
    reach = Reach(["--url", secured.url, "--key", secured.keys["ann"]], lakes)
    for arguments in (("add", "x", "dir", str(lakes)), ("list",), ("remove", "x"), ("doctor", "x")):
        assert_refused(reach.run(*arguments), "administer", status=5)


def test_doctor_finds_nothing_wrong_in_a_sound_catalog(reach: Reach) -> None:
    name, _ = reach.mounted()
    result = reach.run("doctor", name)
    assert result.stdout == f"{name} (dir) answers: no namespaces, 2 Lance tables, no problems.\n"
    assert result.exit_code == 0


def test_doctor_says_what_is_wrong_entry_by_entry(reach: Reach) -> None:
    name, folder = reach.mounted("--allow", str(reach.lakes), "--max-age", "0")
    theirs = lance_namespace.connect("dir", {"root": str(folder)})
    theirs.create_namespace(CreateNamespaceRequest(id=["shop"]))
    theirs.declare_table(DeclareTableRequest(id=["shop", "empty"]))
    lance.write_dataset(ROWS, str(folder / "shared"))
    for table in ("first", "second"):
        theirs.register_table(RegisterTableRequest(id=["shop", table], location="shared"))
    lance.write_dataset(ROWS, str(folder / "ü.lance"))
    result = reach.run("doctor", name)
    assert result.exit_code == 3, result.output
    expected = (
        ("$shop$empty:", "There is no Lance table in its folder"),
        ("$shop$second:", f"It has the same location as {name}$shop$first"),
        ("$ü:", "It is listed, but not found by its name"),
        (" (dir) answers:", "1 namespace, 6 Lance tables, 3 problems."),
    )
    assert len(result.stdout.splitlines()) == len(expected), result.stdout
    for path, sentence in expected:
        assert f"{name}{path} {sentence}" in result.stdout


def test_doctor_finds_locations_that_may_not_be_opened(reach: Reach) -> None:
    name, folder = reach.mounted()
    reach.run("alter", name, "--allow", str(folder / "films.lance"), "--max-age", "0")
    result = reach.run("doctor", name)
    assert result.exit_code == 3
    assert lines_of(result, f"{name}$") == [
        f"{name}$books: The location is outside of what {name} may open: add it to the mount's allowed_locations."
    ]


def test_doctor_of_a_catalog_that_does_not_answer_says_so(reach: Reach) -> None:
    name, folder = reach.mounted()
    shutil.rmtree(folder)
    assert_refused(reach.run("doctor", name), f"{name} (dir) cannot be reached", "is not there")


def test_doctor_in_many_responses_finds_what_it_finds_in_one(database: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    name, folder = database.mounted()
    theirs = lance_namespace.connect("dir", {"root": str(folder)})
    for namespace in (["a"], ["a", "b"], ["a", "b", "c"], ["a", "d"], ["e"]):
        theirs.create_namespace(CreateNamespaceRequest(id=namespace))
        for number in range(3):
            theirs.declare_table(DeclareTableRequest(id=[*namespace, f"t{number}"]))
    expected = database.run("doctor", name)
    assert f"{name} (dir) answers: 5 namespaces, 17 Lance tables, 15 problems." in expected.stdout
    monkeypatch.setattr(mount_checks, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(mount_checks, "TABLES_AT_ONCE", 2)
    monkeypatch.setattr(mount_checks, "NAMESPACES_AT_ONCE", 1)
    assert database.run("doctor", name).stdout == expected.stdout


@pytest.mark.extended
def test_doctor_of_hive_names_managed_entries_and_converts_them(
    database: Reach, hive: HiveMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILTYARD_ALLOWED_ROOTS", json.dumps([str(hive.folder)]))
    raw = ThriftClient("raw", [("127.0.0.1", hive.port)], ThriftLimits(60, 5, 4))
    name, shop = new_name("mount"), Id((new_name("db"),))
    assert database.run("add", name, "hive", hive.uri, "--set", "timeout=60", "--max-age", "0").exit_code == 0
    catalog = open_catalog("hive", {"uri": hive.uri, "timeout": 60})
    catalog.create_namespace(shop, {})
    for table in ("managed", "other"):
        declare_like_upstream(raw, hive, Id((*shop, table)))
    lance.write_dataset(ROWS, catalog.declare_table(Id((*shop, "external")), None, {}).location)
    problem = "It is a MANAGED table: DROP TABLE in Hive or Spark deletes its files."

    before = database.run("doctor", name)  # it tells of other tests' tables too
    assert before.exit_code == 3, before.output
    assert lines_of(before, f"{name}${shop}$") == [
        f"{name}${shop}${table}: {problem} Convert it by --convert." for table in ("managed", "other")
    ]
    assert lines_of(before, f"{name} (hive) answers:")

    converted = lines_of(database.run("doctor", name, "--convert"), f"{name}${shop}$")
    assert converted == [f"{name}${shop}${table}: {problem} It is converted." for table in ("managed", "other")]
    entry = entry_of(raw, Id((*shop, "managed")))
    assert entry.text(12) == "EXTERNAL_TABLE" and entry.text_map(9)["a"] == "b"
    assert lines_of(database.run("doctor", name), f"{name}${shop}$") == []
    monkeypatch.delenv("TILTYARD_ALLOWED_ROOTS")
    outside = lines_of(database.run("doctor", name), f"{name}${shop}$")
    assert len(outside) == 3 and all("not below the server's root" in line for line in outside)
    catalog.close()


def test_rm_promises_undrop_only_where_there_is_one(secured: Secured, lakes: Path, database: Reach) -> None:
    name, _ = database.mounted("--max-age", "0")
    own = new_name("own")
    wire = secured.wire("administrator")
    assert wire.call("table", [own], "create", stream(ROWS)).status_code == 200
    wait_for_mounts(wire, 200, name)
    reach = ["--server", secured.url, "--key", secured.keys["administrator"]]
    mounted = CliRunner().invoke(main, ["rm", f"{name}.films", "--yes", *reach])
    assert mounted.stdout.endswith("films is dropped. It cannot be brought back.\n"), mounted.output
    ours = CliRunner().invoke(main, ["rm", own, "--yes", *reach])
    assert "can be brought back: tiltyard undrop" in ours.stdout, ours.output
