"""`tiltyard import-catalog`: tables move out of a mounted catalog and back, with who may see what of them."""

from __future__ import annotations

import importlib
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    ServiceUnavailableError,
    TableNotFoundError,
)

from tests.mounts.backends import local_directory
from tests.mounts.served.conftest import MOUNT, environ
from tests.mounts.served.test_guard import admin, grant, query, set_policy
from tests.services.forked_process import ForkedProcess, forking_python, run_tiltyard, start_tiltyard
from tests.services.secured import Secured, secured_server
from tests.services.wire import Wire, check_error, stream
from tiltyard.cli import main
from tiltyard.config import Settings
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog
from tiltyard.namespace import Namespace
from tiltyard.store import Store, open_store

ROWS = pa.table({"id": [1, 2, 3], "secret": ["a", "b", "c"]})
POLICY = {"name": "p", "filter": "id > 1", "masks": [{"column": "secret", "mask": "null"}]}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[MountedCatalog]:
    """The mounted catalog itself: a folder."""
    (tmp_path / "lake").mkdir()
    catalog = local_directory(tmp_path / "lake", "manifest").open()
    yield catalog
    catalog.close()


@pytest.fixture
def secured(tmp_path: Path, catalog: MountedCatalog) -> Iterator[Secured]:
    """A server with callers that looks everything up anew."""
    mounted = environ(local_directory(tmp_path / "lake", "manifest"), tmp_path, 0.0)
    with secured_server(tmp_path / "served", names=("ann", "bob"), environ=mounted) as running:
        yield running


@pytest.fixture
def owner(secured: Secured) -> Wire:
    return secured.wire("administrator")


@pytest.fixture
def ann(secured: Secured) -> Wire:
    return secured.wire("ann")


@pytest.fixture
def bob(secured: Secured) -> Wire:
    return secured.wire("bob")


def run(secured: Secured, *arguments: str) -> Result:
    options = ["--url", secured.url, "--key", secured.keys["administrator"]]
    return CliRunner().invoke(main, ["import-catalog", *arguments, *options])


def make_tables(owner: Wire, namespace: list[str], *names: str) -> None:
    for depth in range(2, len(namespace) + 1):
        owner.call("namespace", namespace[:depth], "create", {"mode": "exist_ok"})
    for name in names:
        assert owner.call("table", [*namespace, name], "create", stream(ROWS)).status_code == 200


def count(wire: Wire, *path: str) -> int:
    response = wire.call("table", list(path), "count_rows")
    assert response.status_code == 200, response.text
    return int(response.json())


def names(wire: Wire, *namespace: str) -> list[str]:
    found: list[str] = wire.call("namespace", list(namespace), "table/list", method="GET").json()["tables"]
    return found


def test_import_moves_namespaces_with_their_tables_and_reports(
    secured: Secured, owner: Wire, catalog: MountedCatalog, tmp_path: Path
) -> None:
    make_tables(owner, [MOUNT, "a"], "t", "u")
    make_tables(owner, [MOUNT, "a", "deep"], "v")
    owner.call("table", [MOUNT, "a", "t"], "insert", stream(ROWS))
    place = catalog.get_table(Id(("a", "t"))).location
    moved = run(secured, f"{MOUNT}$a", "own", "--report", str(tmp_path / "moved.json"))
    assert moved.exit_code == 0, moved.output
    assert "3 imported" in moved.output
    assert names(owner, "own") == ["t", "u"]
    assert names(owner, "own", "deep") == ["v"]
    assert owner.call("table", ["own", "t"], "describe").json()["location"] == place
    assert count(owner, "own", "t") == 6
    assert catalog.list_tables(Id(("a",))).names == catalog.list_tables(Id(("a", "deep"))).names == ()
    assert check_error(owner.call("table", [MOUNT, "a", "t"], "describe")) == 4
    report = json.loads((tmp_path / "moved.json").read_text())
    assert [entry["outcome"] for entry in report["tables"]] == ["imported"] * 3
    assert report["totals"] == {
        "imported": 3, "copied": 0, "returned": 0, "skipped": 0, "failed": 0, "not tried": 0,
    }  # fmt: skip
    assert owner.call("table", ["own", "t"], "insert", stream(ROWS)).status_code == 200
    assert owner.call("table", ["own", "t"], "drop").status_code == 200
    assert owner.http.post("/tiltyard/v1/table/own$t/undrop", json={}).status_code == 200
    assert count(owner, "own", "t") == 9


def test_same_people_see_the_same_rows_of_an_imported_table(
    secured: Secured, owner: Wire, ann: Wire, bob: Wire
) -> None:
    make_tables(owner, [MOUNT, "a"], "t", "open")
    grant(owner, [MOUNT, "a", "t"], "read")
    admin(owner, "grant/add", object_kind="namespace", id=[MOUNT], grantee="bob", privileges=["read"])
    set_policy(owner, [MOUNT, "a", "t"], POLICY)
    assert run(secured, f"{MOUNT}$a", "own").exit_code == 0
    for caller in (ann, bob):
        assert count(caller, "own", "t") == 2
        assert query(caller, ["own", "t"]).column("secret").to_pylist() == [None, None]
    assert query(owner, ["own", "t"]).num_rows == 3
    assert count(bob, "own", "open") == 3
    assert check_error(ann.call("table", ["own", "open"], "count_rows")) == 4
    assert names(ann, "own") == ["t"]


def test_access_above_the_mount_stays_where_the_target_exists(secured: Secured, owner: Wire, bob: Wire) -> None:
    make_tables(owner, [MOUNT, "a"], "t")
    make_tables(owner, [], "elsewhere")
    owner.call("namespace", ["own"], "create")
    make_tables(owner, ["own"], "before")
    admin(owner, "grant/add", object_kind="namespace", id=[MOUNT], grantee="bob", privileges=["read"])
    assert run(secured, f"{MOUNT}$a", "own").exit_code == 0
    assert count(bob, "own", "t") == 3
    assert check_error(bob.call("table", ["own", "before"], "count_rows")) == 4


def test_import_refuses_a_namespace_whose_grants_would_open_the_table(
    secured: Secured, owner: Wire, ann: Wire, catalog: MountedCatalog
) -> None:
    make_tables(owner, [MOUNT, "a"], "t")
    owner.call("namespace", ["own"], "create")
    grant(owner, ["own"], "read", kind="namespace")
    for options in ((), ("--copy",)):
        refused = run(secured, f"{MOUNT}$a", "own", *options)
        assert refused.exit_code == 1
        assert "ann would get use, read" in refused.output
    assert check_error(ann.call("table", ["own", "t"], "count_rows")) == 4
    assert catalog.list_tables(Id(("a",))).names == ("t",)
    assert run(secured, f"{MOUNT}$a", "own", "--allow-wider-access").exit_code == 0
    assert count(ann, "own", "t") == 3


def test_kept_entries_are_refused_below_the_mount_and_skipped_the_next_time(
    secured: Secured, owner: Wire, catalog: MountedCatalog
) -> None:
    make_tables(owner, [MOUNT, "a"], "t")
    assert run(secured, f"{MOUNT}$a", "own", "--keep-entries").exit_code == 0
    assert catalog.list_tables(Id(("a",))).names == ("t",)
    assert check_error(owner.call("table", [MOUNT, "a", "t"], "count_rows")) == 19
    assert count(owner, "own", "t") == 3
    again = run(secured, f"{MOUNT}$a", "own", "--keep-entries")
    assert again.exit_code == 0
    assert "skipped: it was moved before" in again.output
    assert run(secured, f"{MOUNT}$a", "own").exit_code == 0
    assert catalog.list_tables(Id(("a",))).names == ()
    assert count(owner, "own", "t") == 3


def test_copy_leaves_the_other_catalog_as_it_is(
    secured: Secured, owner: Wire, ann: Wire, catalog: MountedCatalog
) -> None:
    make_tables(owner, [MOUNT, "a"], "t")
    grant(owner, [MOUNT, "a", "t"], "read")
    set_policy(owner, [MOUNT, "a", "t"], POLICY)
    copied = run(secured, f"{MOUNT}$a", "own", "--copy")
    assert copied.exit_code == 0, copied.output
    assert "1 copied" in copied.output
    assert owner.call("table", ["own", "t"], "insert", stream(ROWS)).status_code == 200
    assert count(owner, "own", "t") == 6
    assert count(owner, MOUNT, "a", "t") == 3
    assert query(ann, ["own", "t"]).column("secret").to_pylist() == [None] * 4
    assert catalog.list_tables(Id(("a",))).names == ("t",)
    assert "1 skipped" in run(secured, f"{MOUNT}$a", "own", "--copy").output
    assert count(owner, "own", "t") == 6


@pytest.mark.extended
def test_copy_on_spark_copies_many_tables_with_their_indexes_and_goes_on(
    secured: Secured, owner: Wire, ann: Wire, catalog: MountedCatalog
) -> None:
    tables = [f"t{number}" for number in range(6)]
    make_tables(owner, [MOUNT, "a"], *tables)
    index = {"column": "id", "index_type": "BTREE", "name": "by_id"}
    owner.call("table", [MOUNT, "a", "t0"], "create_scalar_index", index)
    set_policy(owner, [MOUNT, "a", "t1"], POLICY)
    grant(owner, [MOUNT, "a", "t1"], "read")
    broken = Path(catalog.get_table(Id(("a", "t5"))).location)
    for file in (broken / "data").iterdir():
        file.unlink()
    command = ["import-catalog", f"{MOUNT}$a", "own", "--copy", "--spark", "local[2]"]
    command += ["--url", secured.url, "--key", secured.keys["administrator"]]
    with forking_python() as python:
        first = run_tiltyard(*command, timeout=300, PYSPARK_PYTHON=str(python))
        assert first.returncode == 1, first.stdout + first.stderr
        assert "5 copied, 1 failed" in first.stdout, first.stdout
        for name in tables[:5]:
            assert count(owner, "own", name) == 3
            assert owner.call("table", ["own", name], "insert", stream(ROWS)).status_code == 200
            assert count(owner, "own", name) == 6
        assert query(ann, ["own", "t1"]).column("secret").to_pylist() == [None] * 4
        assert check_error(owner.call("table", ["own", "t5"], "exists")) == 4
        again = run_tiltyard(*command, timeout=300, PYSPARK_PYTHON=str(python))
    assert "5 skipped, 1 failed" in again.stdout, again.stdout


def test_table_that_fails_does_not_stop_the_others(secured: Secured, owner: Wire, catalog: MountedCatalog) -> None:
    make_tables(owner, [MOUNT, "a"], "t", "u")
    owner.call("namespace", ["own"], "create")
    make_tables(owner, ["own"], "t")
    moved = run(secured, f"{MOUNT}$a", "own")
    assert moved.exit_code == 1
    assert "own$t: failed: Table already exists" in moved.output
    assert "1 imported, 1 failed" in moved.output
    assert count(owner, "own", "u") == 3
    assert catalog.list_tables(Id(("a",))).names == ("t",)
    assert count(owner, MOUNT, "a", "t") == 3


def test_way_back_leaves_the_tables_as_they_were(
    secured: Secured, owner: Wire, ann: Wire, catalog: MountedCatalog
) -> None:
    make_tables(owner, [MOUNT, "a"], "t")
    grant(owner, [MOUNT, "a", "t"], "read")
    set_policy(owner, [MOUNT, "a", "t"], POLICY)
    place = catalog.get_table(Id(("a", "t"))).location
    assert run(secured, f"{MOUNT}$a", "own").exit_code == 0
    back = run(secured, "own", "--to", f"{MOUNT}$b")
    assert back.exit_code == 0, back.output
    assert "1 returned" in back.output
    assert names(owner, "own") == []
    assert catalog.get_table(Id(("b", "t"))).location == place
    assert count(ann, MOUNT, "b", "t") == 2
    assert query(ann, [MOUNT, "b", "t"]).column("secret").to_pylist() == [None, None]
    assert lance.dataset(place).count_rows() == 3
    assert owner.call("table", [MOUNT, "b", "t"], "insert", stream(ROWS)).status_code == 200
    assert lance.dataset(place).count_rows() == 6
    assert check_error(owner.call("table", ["own", "t"], "describe")) == 4


def test_ends_that_are_both_here_or_both_there_are_refused(secured: Secured, owner: Wire) -> None:
    make_tables(owner, [MOUNT, "a"], "t")
    owner.call("namespace", ["own"], "create")
    for arguments in (("own", "other"), (f"{MOUNT}$a", f"{MOUNT}$b"), ("own", "--to", "other"), (MOUNT, "--to", MOUNT)):
        refused = run(secured, *arguments)
        assert refused.exit_code not in (0, None), arguments
        assert "mount" in refused.output
    assert run(secured, "own").exit_code == 2
    assert run(secured, "own", "--to", MOUNT, "--copy").exit_code == 2
    moved = owner.http.post("/tiltyard/v1/table/own$t/move", json={"new_id": ["other", "t"]})
    assert check_error(moved) == 13


def test_copy_that_outlasts_its_request_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import_catalog = importlib.import_module("tiltyard.cli.catalogs.import_catalog")
    monkeypatch.setattr(import_catalog, "COPY_PAUSE_SECONDS", 0.0)
    late: list[Exception] = [ServiceUnavailableError("no answer"), *[ConcurrentModificationError("copying")] * 3]

    class LateCaller:
        def call(self, name: str, **fields: Any) -> dict[str, Any]:
            if late:
                raise late.pop(0)
            return {"was_moved_before": True}

    caller = LateCaller()
    move = import_catalog.TableMove(Id(("lake", "t")), Id(("t",)))
    assert import_catalog._move(caller, move, {"copy": True})["was_moved_before"]
    late += [ServiceUnavailableError("the catalog is away")] * 2
    with pytest.raises(ServiceUnavailableError, match="away"):
        import_catalog._move(caller, move, {"copy": True})
    late += [ConcurrentModificationError("written")]
    with pytest.raises(ConcurrentModificationError):
        import_catalog._move(caller, move, {"copy": None})


@pytest.mark.parametrize("is_return", [False, True])
def test_nobody_sees_more_while_a_table_is_between_the_catalogs(
    tmp_path: Path, catalog: MountedCatalog, is_return: bool
) -> None:
    gate = tmp_path / "gate"
    mounted = environ(local_directory(tmp_path / "lake", "manifest"), tmp_path, 0.0)
    mounted["TILTYARD_FAULT"] = f"between_catalogs=hold@{gate}"
    with secured_server(tmp_path / "served", names=("ann", "bob"), environ=mounted) as secured:
        owner, ann, bob = (secured.wire(name) for name in ("administrator", "ann", "bob"))
        make_tables(owner, [MOUNT, "a"], "t")
        grant(owner, [MOUNT, "a", "t"], "read")
        set_policy(owner, [MOUNT, "a", "t"], POLICY)
        owner.call("namespace", ["own"], "create")
        ends = [MOUNT, "a", "t"], ["own", "t"]
        if is_return:
            assert move(owner, *ends).status_code == 200
            ends = ends[::-1]
        gate.touch()
        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(move, secured.wire("administrator"), *ends)
            wait_for_file(gate.with_name("gate.reached"))
            assert catalog.list_tables(Id(("a",))).names == ("t",)
            assert names(owner, "own") == ["t"]
            assert query(ann, ["own", "t"]).column("secret").to_pylist() == [None, None]
            assert check_error(owner.call("table", [MOUNT, "a", "t"], "count_rows")) == 19
            for caller, path in ((ann, [MOUNT, "a", "t"]), (bob, [MOUNT, "a", "t"]), (bob, ["own", "t"])):
                assert check_error(caller.call("table", path, "count_rows")) in (1, 4, 19)
            gate.unlink()
            assert moving.result().status_code == 200
        assert query(ann, ends[1]).column("secret").to_pylist() == [None, None]
        assert check_error(bob.call("table", ends[1], "count_rows")) in (1, 4)


@pytest.mark.parametrize("is_return", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_table_that_is_moved_by_a_call_is_not_moved_by_another_one(
    tmp_path: Path, catalog: MountedCatalog, is_return: bool
) -> None:
    """The other one would rely on the entry that the first one removes: the table would be in no catalog."""
    gate = tmp_path / "gate"
    mounted = environ(local_directory(tmp_path / "lake", "manifest"), tmp_path, 0.0)
    faulty = {**mounted, "TILTYARD_FAULT": f"between_catalogs=hold@{gate}"}
    with secured_server(tmp_path / "served", names=(), environ=faulty) as secured:
        owner = secured.wire("administrator")
        owner.call("namespace", ["own"], "create")
        ends = [MOUNT, "a", "t"], ["own", "t"]
        make_tables(owner, ends[0][:2], "t")
        if is_return:
            assert move(owner, *ends).status_code == 200
        own, other = ends[::-1] if is_return else ends
        gate.touch()
        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(move, secured.wire("administrator"), own, other)
            wait_for_file(gate.with_name("gate.reached"))
            settings = {"mounts": json.loads(mounted["TILTYARD_MOUNTS"]), "conflict_timeout": 0.0}
            with Namespace(str(tmp_path / "served"), jobs=0, **settings) as server:
                for path, new_path in (ends, ends[::-1]):
                    with pytest.raises((ConcurrentModificationError, TableNotFoundError, InvalidTableStateError)):
                        server.call("MoveTable", {"id": path, "new_id": new_path})
            gate.unlink()
            assert moving.result().status_code == 200
        assert catalog.list_tables(Id(("a",))).names == (("t",) if is_return else ())
        assert count(owner, *other) == 3
        assert check_error(owner.call("table", own, "describe")) == 4


def move(wire: Wire, path: list[str], new_path: list[str]) -> Any:
    return wire.http.post(f"/tiltyard/v1/table/{'$'.join(path)}/move", json={"new_id": new_path})


def wait_for_file(file: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until, f"{file} does not come"
        time.sleep(0.05)


@dataclass
class Database:
    """A catalog without a server, whose commands run in processes of their own, with a folder mounted as `lake`."""

    root: Path
    lake: MountedCatalog

    def start(self, *arguments: str, fault: str = "") -> ForkedProcess:
        return start_tiltyard(*arguments, "--root", str(self.root), TILTYARD_FAULT=fault)

    def run(self, *arguments: str, fault: str = "") -> tuple[int, str]:
        process = self.start(*arguments, fault=fault)
        said = "".join(process.communicate(timeout=120))
        return process.wait(), said

    def listed(self) -> dict[str, tuple[str, ...]]:
        """Return which tables each of the two catalogs has."""
        with open_own(self.root) as own:
            has_namespace = "own" in own.list_namespaces((), None, 10)
            ours = tuple(own.list_tables(("own",), None, 10)) if has_namespace else ()
        return {"ours": ours, "theirs": self.lake.list_tables(Id(("a",))).names}


def open_own(root: Path) -> Store:
    return open_store(Settings(root=str(root)).database_url)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    folder = tmp_path / "root" / "lake"
    folder.mkdir(parents=True)
    catalog = local_directory(folder, "manifest").open()
    catalog.create_namespace(Id(("a",)), {"owner": "ann"})
    for name in ("t", "u"):
        lance.write_dataset(ROWS, catalog.declare_table(Id(("a", name)), None, {}).location)
    database = Database(tmp_path / "root", catalog)
    status, said = database.run("mount", "add", "lake", "dir", str(folder), "--max-age", "0")
    assert status == 0, said
    yield database
    catalog.close()


def put_policy(root: Path) -> None:
    """Mask a table below the mount, and let ann read it."""
    own: Any = Namespace(root=str(root), jobs="0")
    own.call("SetTablePolicy", {"id": ["lake", "a", "t"], **POLICY})
    own.call(
        "GrantPrivileges",
        {"object_kind": "table", "id": ["lake", "a", "t"], "grantee": "ann", "privileges": ["read"]},
    )


def bound(root: Path, location: str) -> tuple[int, int]:
    """Return how many policies and grants the one table at a location has."""
    with open_own(root) as own:
        record = own.table_at(location)
        assert record is not None
        return len(own.policies(record.id)), len(own.grants_on("table", record.id, None, 10))


@pytest.mark.parametrize("point", [pytest.param("before_record", marks=pytest.mark.extended), "between_catalogs"])
@pytest.mark.parametrize("is_return", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_killed_move_loses_nothing_and_goes_on(database: Database, tmp_path: Path, point: str, is_return: bool) -> None:
    put_policy(database.root)
    places = [database.lake.get_table(Id(("a", name))).location for name in ("t", "u")]
    arguments = ["import-catalog", "lake$a", "own"]
    if is_return:
        status, said = database.run(*arguments)
        assert status == 0, said
        arguments = ["import-catalog", "own", "--to", "lake$a"]
    (tmp_path / "now").touch()
    status, _ = database.run(*arguments, fault=f"{point}=kill@{tmp_path / 'now'}")
    assert status == -signal.SIGKILL
    listed = database.listed()
    assert set(listed["ours"]) | set(listed["theirs"]) == {"t", "u"}
    assert "t" in listed["theirs" if point == "before_record" and not is_return else "ours"]
    if point == "between_catalogs":
        assert "t" in listed["ours"] and "t" in listed["theirs"]
    assert [lance.dataset(place).count_rows() for place in places] == [3, 3]
    assert bound(database.root, places[0]) == (1, 1)
    status, said = database.run(*arguments)
    assert status == 0, said
    there, here = ("theirs", "ours") if is_return else ("ours", "theirs")
    listed = database.listed()
    assert (sorted(listed[there]), sorted(listed[here])) == (["t", "u"], [])
    assert [lance.dataset(place).count_rows() for place in places] == [3, 3]
    assert bound(database.root, places[0]) == (1, 1)


def test_interrupt_stops_between_two_tables(database: Database, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    process = database.start(
        "import-catalog", "lake$a", "own", "--report", str(tmp_path / "r.json"), fault=f"between_catalogs=hold@{gate}"
    )
    wait_for_file(gate.with_name("gate.reached"))
    process.send_signal(signal.SIGINT)
    gate.unlink()
    said = "".join(process.communicate(timeout=60))
    assert process.wait() == 130, said
    assert database.listed() == {"ours": ("t",), "theirs": ("u",)}
    assert json.loads((tmp_path / "r.json").read_text())["totals"]["not tried"] == 1
    assert database.run("import-catalog", "lake$a", "own")[0] == 0
    assert database.listed() == {"ours": ("t", "u"), "theirs": ()}
