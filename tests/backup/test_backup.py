"""Backups: whole under load, of one moment, and never half there."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.backup.conftest import Client, run
from tests.services.s3 import S3Server
from tiltyard.backup.points import read_point
from tiltyard.backup.prune import prune_points
from tiltyard.backup.target import BackupTarget
from tiltyard.cli import main
from tiltyard.store import open_store

Start = Callable[..., Client]


class Writers:
    """Threads that append to tables, each one id after the other, and keep what was acknowledged."""

    def __init__(self, client: Client, tables: list[str]) -> None:
        self.acknowledged: dict[str, list[int]] = {table: [] for table in tables}
        self._client, self._stopping = client, threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(table,)) for table in tables]
        for thread in self._threads:
            thread.start()

    def _write(self, table: str) -> None:
        number = 100
        while not self._stopping.is_set():
            self._client.insert(table, [number])
            self.acknowledged[table].append(number)
            number += 1
            time.sleep(0.02)  # each row is a version, which a backup has to read: without a pause it falls behind

    def wait(self, number: int) -> dict[str, list[int]]:
        """Wait until each has written so many rows; return what is acknowledged."""
        until = time.monotonic() + 60
        while min(map(len, self.acknowledged.values())) < number:
            assert time.monotonic() < until
            time.sleep(0.01)
        return {table: list(ids) for table, ids in self.acknowledged.items()}

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)


@dataclass
class Place:
    """Where a catalog is, or a backup: flags and variables of commands."""

    root: str
    flags: tuple[str, ...]
    environ: dict[str, str]


EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    ("database", "storage"),
    [
        ("sqlite", "folder"),
        pytest.param("postgres", "folder", marks=EXTENDED),
        pytest.param("sqlite", "s3", marks=EXTENDED),
        pytest.param("postgres", "s3", marks=EXTENDED),
    ],
)
def test_drill_restores_every_row_that_was_acknowledged_before_the_backup(
    database: str, storage: str, tmp_path: Path, start: Start, request: pytest.FixtureRequest
) -> None:
    def place(name: str) -> Place:
        environ: dict[str, str] = {}
        root = str(tmp_path / name)
        if storage == "s3":
            s3: S3Server = request.getfixturevalue("s3")
            root = s3.new_bucket(f"{database}-{name}-{time.time_ns()}") + "/tables"
            environ = {"TILTYARD_STORAGE_OPTIONS": json.dumps(s3.options)}
        url = f"sqlite:///{tmp_path}/{name}.db"
        if database == "postgres":
            url = request.getfixturevalue("postgres").new_database()
        return Place(root, ("--db", url), environ)

    old, new = place("old"), place("new")
    target = place("backups").root
    client = start(old.root, *old.flags, environ=old.environ)
    for table in ("a", "b"):
        client.create(table, [1, 2, 3])
    client.post("/v1/table/a/tags/create", {"tag": "first", "version": 1})
    client.post("/v1/table/a/branches/create", {"name": "trial"})
    client.create("dropped", [7])
    client.post("/v1/table/dropped/drop")
    client.post("/v1/table/a/create_scalar_index", {"column": "id", "index_type": "BTREE"})
    writers = Writers(client, ["a", "b"])
    try:
        writers.wait(5)
        run("backup", target, "--root", old.root, *old.flags, environ=old.environ)
        before = writers.wait(len(writers.acknowledged["a"]) + 5)
        out = run("backup", target, "--root", old.root, *old.flags, environ=old.environ)
    finally:
        writers.stop()
    copied, total = int(out.split("copied ")[1].split()[0]), int(out.split("tables, ")[1].split()[0])
    assert copied < total  # the second copies what the first has not
    client.server.kill()
    assert "no problems" in run("backup", "verify", target, environ=old.environ)
    if storage == "folder":
        shutil.rmtree(old.root)
    run("backup", "restore", target, "--root", new.root, *new.flags, environ=new.environ)

    restored = start(new.root, *new.flags, environ=new.environ)
    for table in ("a", "b"):
        ids = restored.ids(table)
        assert set(before[table]) <= set(ids) <= {1, 2, 3, *writers.acknowledged[table]}
        assert ids == sorted(set(ids))
        restored.insert(table, [1000])
        assert restored.ids(table) == [*ids, 1000]
    assert restored.ids("a", version=1) == [1, 2, 3]
    assert restored.post("/v1/table/a/tags/list")["tags"]["first"]["version"] == 1
    assert restored.ids("a", branch="trial") == [1, 2, 3]
    restored.post("/tiltyard/v1/table/dropped/undrop")
    assert restored.ids("dropped") == [7]
    assert restored.server.stop() == 0
    assert "Nothing is wrong." in run("repair", "--dry-run", "--root", new.root, *new.flags, environ=new.environ)


def test_backup_has_no_version_from_after_its_snapshot(tmp_path: Path, start: Start) -> None:
    """Rows that come while files are copied are in the next backup: all tables are as of one moment."""
    client = start(tmp_path / "root")
    client.create("a", [1])
    client.create("b", [1])
    gate = tmp_path / "gate"
    gate.touch()
    backup = threading.Thread(
        target=run,
        args=("backup", tmp_path / "target", "--root", tmp_path / "root"),
        kwargs={"environ": {"TILTYARD_FAULT": f"before_backup_copy=hold@{gate}"}},
    )
    backup.start()
    _wait_for(gate.with_name("gate.reached"))
    client.insert("a", [2])
    client.insert("b", [2])
    client.post("/v1/table/b/tags/create", {"tag": "late", "version": 2})
    gate.unlink()
    backup.join(120)
    run("backup", "restore", tmp_path / "target", "--root", tmp_path / "new")
    restored = start(tmp_path / "new")
    assert restored.ids("a") == restored.ids("b") == [1]
    assert "late" not in restored.post("/v1/table/b/tags/list")["tags"]
    restored.insert("a", [3])
    assert restored.ids("a") == [1, 3]


def test_backup_of_a_table_that_is_dropped_meanwhile_takes_another_snapshot(tmp_path: Path, start: Start) -> None:
    client = start(tmp_path / "root", environ={"TILTYARD_RETENTION_DAYS": "0"})
    client.create("gone", [1])
    client.create("stays", [1])
    gate = tmp_path / "gate"
    gate.touch()
    said: list[str] = []
    backup = threading.Thread(
        target=lambda: said.append(
            run(
                *("backup", tmp_path / "target", "--root", tmp_path / "root"),
                environ={"TILTYARD_FAULT": f"before_backup_copy=hold@{gate}"},
            )
        )
    )
    backup.start()
    _wait_for(gate.with_name("gate.reached"))
    client.post("/v1/table/gone/drop")
    gate.unlink()
    backup.join(120)
    assert "1 tables" in said[0] and "looked at again" in said[0]
    assert "no problems" in run("backup", "verify", tmp_path / "target")


def test_prune_removes_what_a_killed_first_backup_left(tmp_path: Path) -> None:
    file = tmp_path / "files" / "0123" / "data" / "rows.lance"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    assert run("backup", "prune", tmp_path, "--keep", 1).startswith("Removed 0 backups, 1 files")
    assert not file.exists()


@pytest.mark.parametrize("point", ["before_backup_copy", "before_backup_point"])
def test_backup_that_is_killed_leaves_no_backup_and_the_next_one_is_whole(
    point: str, tmp_path: Path, start: Start
) -> None:
    target = tmp_path / "target"
    client = start(tmp_path / "root")
    client.create("t", [1, 2])
    client.server.stop()
    run("backup", target, "--root", tmp_path / "root", environ={"TILTYARD_FAULT": point}, status=-9)
    assert "There is no backup" in run("backup", "list", target)
    assert "There is no backup" in run("backup", "restore", target, "--root", tmp_path / "new", status=1)
    run("backup", target, "--root", tmp_path / "root")
    assert "A backup is being taken" in run("backup", "prune", target, "--keep", 1, status=1)
    run("backup", "prune", target, "--keep", 1, "--force")
    assert len(list((target / "points").iterdir())) == 1  # what the killed one left is gone
    assert "no problems" in run("backup", "verify", target)
    run("backup", "restore", target, "--root", tmp_path / "new")
    assert start(tmp_path / "new").ids("t") == [1, 2]


def test_restore_refuses_what_is_not_empty_and_goes_on_where_it_was_killed(tmp_path: Path, start: Start) -> None:
    target, new = tmp_path / "target", tmp_path / "new"
    client = start(tmp_path / "root")
    client.create("t", [1, 2])
    run("backup", target, "--root", tmp_path / "root")
    client.insert("t", [3])
    run("backup", target, "--root", tmp_path / "root")
    first, second = (line.split()[0] for line in run("backup", "list", target).splitlines())
    assert "has a catalog already" in run("backup", "restore", target, "--root", tmp_path / "root", status=1)
    new.mkdir()
    (new / "notes.txt").write_text("mine")
    assert "is not empty" in run("backup", "restore", target, "--root", new, status=1)
    (new / "notes.txt").unlink()
    left = [new / name for name in (".tiltyard-probe-1", ".tiltyard-case-1", "..tiltyard-restore.json.1")]
    for file in left:  # of one that was killed before its mark was there
        file.touch()

    killed = {"TILTYARD_FAULT": "before_restored_catalog"}
    run("backup", "restore", target, "--id", first, "--root", new, environ=killed, status=-9)
    assert not any(file.exists() for file in left)
    assert "Another backup" in run("backup", "restore", target, "--id", second, "--root", new, status=1)
    run("backup", "restore", target, "--id", first, "--root", new)
    assert start(new).ids("t") == [1, 2]


def test_verify_names_each_damaged_file_and_restore_refuses_them(tmp_path: Path, start: Start) -> None:
    target = tmp_path / "target"
    client = start(tmp_path / "root")
    client.create("changed", [1])
    client.create("missing", [1])
    client.create("sound", [1])
    run("backup", target, "--root", tmp_path / "root")
    (data,) = target.glob("files/changed-*/data/*.lance")
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    (gone,) = target.glob("files/missing-*/data/*.lance")
    gone.unlink()
    out = run("backup", "verify", target, status=3)
    assert "2 problems" in out and "changed: the file" in out and "is not as it was written" in out
    assert "missing: the file" in out and "is missing" in out and "sound" not in out
    assert "The backup is damaged" in run("backup", "restore", target, "--root", tmp_path / "new", status=1)
    assert not (tmp_path / "new" / "catalog.db").exists() or not lance_tables(tmp_path / "new")


def test_backup_names_tables_that_are_broken_and_has_the_others(tmp_path: Path, start: Start) -> None:
    client = start(tmp_path / "root")
    client.create("broken", [1])
    client.create("sound", [1])
    (data,) = (tmp_path / "root").glob("broken-*/data/*.lance")
    data.unlink()
    out = run("backup", tmp_path / "target", "--root", tmp_path / "root", status=3)
    assert "broken (" in out and "is missing" in out
    run("backup", "restore", tmp_path / "target", "--root", tmp_path / "new", status=3)
    assert start(tmp_path / "new").ids("sound") == [1]


def test_backup_into_the_root_is_refused(tmp_path: Path, start: Start) -> None:
    start(tmp_path / "root").create("t", [1])
    out = run("backup", tmp_path / "root" / "backups", "--root", tmp_path / "root", status=1)
    assert "outside the catalog's root" in out


def lance_tables(root: Path) -> list[lance.LanceDataset]:
    """Return the tables that a catalog of a restored root has; none where the catalog is empty."""
    from tiltyard.store import is_empty_database

    return [] if is_empty_database(f"sqlite:///{root}/catalog.db") else [lance.dataset(str(p)) for p in root.glob("*")]


def _wait_for(file: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_target_that_is_no_folder_is_refused_in_a_sentence_and_not_made(tmp_path: Path) -> None:
    root, file, nowhere = tmp_path / "data", tmp_path / "films.csv", tmp_path / "tpyo"
    run("db", "upgrade", "--root", root)
    file.write_text("id\n1\n")
    for arguments in (("create", file, "--root", root), ("verify", file)):
        done = CliRunner().invoke(main, ["backup", *map(str, arguments)])
        assert (done.exit_code, done.stderr) == (1, f"tiltyard: {file} is not a folder.\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = CliRunner().invoke(main, ["backup", "prune", str(empty), "--keep", "1"])
    assert (done.exit_code, done.stderr) == (4, f"tiltyard: There is no backup at {empty}.\n")
    for command in ("list", "verify"):
        done = CliRunner().invoke(main, ["backup", command, str(nowhere)])
        assert (done.exit_code, done.stderr) == (4, f"tiltyard: There is no backup at {nowhere}.\n")
    assert not nowhere.exists()


def test_restore_to_another_root_serves_shallow_clones_and_their_tags(tmp_path: Path, start: Start) -> None:
    """A clone's manifest names the folder of its source, which lies elsewhere now."""
    client = start(tmp_path / "root")
    client.create("source", [1, 2])
    location = client.post("/v1/table/source/describe")["location"]
    client.post("/v1/table/clone/clone", {"source_location": location, "is_shallow": True})
    client.insert("clone", [3])
    client.post("/v1/table/clone/tags/create", {"tag": "kept", "version": client_version(client, "clone")})
    run("backup", tmp_path / "target", "--root", tmp_path / "root")
    client.server.kill()
    shutil.rmtree(tmp_path / "root")
    run("backup", "restore", tmp_path / "target", "--root", tmp_path / "new")
    restored = start(tmp_path / "new")
    assert restored.ids("clone") == [1, 2, 3]
    assert restored.ids("clone", version=client_version(restored, "clone")) == [1, 2, 3]
    restored_location = restored.post("/v1/table/clone/describe")["location"]
    assert lance.dataset(restored_location, version="kept").count_rows() == 3
    restored.insert("clone", [4])
    assert restored.ids("clone") == [1, 2, 3, 4]


def test_backup_after_another_table_took_a_location_has_both_tables(tmp_path: Path, start: Start) -> None:
    """Its manifests have the names and the sizes of those before."""
    root, target = tmp_path / "root", tmp_path / "target"
    client = start(root)
    lance.write_dataset(pa.table({"id": [1, 2]}), root / "outside.lance")
    client.post("/v1/table/t/register", {"location": "outside.lance"})
    run("backup", target, "--root", root)
    shutil.rmtree(root / "outside.lance")
    lance.write_dataset(pa.table({"id": [3, 4]}), root / "outside.lance")
    run("backup", target, "--root", root)
    first, second = (line.split()[0] for line in run("backup", "list", target).splitlines())
    for point, ids in (first, [1, 2]), (second, [3, 4]):
        assert "no problems" in run("backup", "verify", target, "--id", point)
        run("backup", "restore", target, "--id", point, "--root", tmp_path / point)
        (restored,) = (tmp_path / point).rglob("outside.lance")
        assert lance.dataset(restored).to_table()["id"].to_pylist() == ids
    copied = run("backup", target, "--root", root)
    assert "copied 0 " in copied  # the same table again


def test_backup_names_shallow_clones_of_what_is_no_table_of_the_catalog(tmp_path: Path, start: Start) -> None:
    root, target = tmp_path / "root", tmp_path / "target"
    client = start(root)
    source = lance.write_dataset(pa.table({"id": [1, 2]}), root / "elsewhere.lance")
    source.shallow_clone(str(root / "clone.lance"), 1)
    client.post("/v1/table/t/register", {"location": "clone.lance"})
    client.create("sound", [1])
    said = run("backup", target, "--root", root, status=3)
    assert "t (" in said and f"{root}/elsewhere.lance/data/" in said and "no table of the backup" in said
    out = run("backup", "verify", target, status=3)
    assert "1 problem" in out and "elsewhere.lance" in out

    record = next(target.glob("points/*/point.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | {"problems": {}}))  # as by a version that looked not
    assert "which the backup has not" in run("backup", "verify", target, status=3)


def test_restore_cancels_jobs_whose_work_is_not_in_the_backup_pauses_schedules_and_keeps_the_others(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/root/catalog.db"
    (tmp_path / "root").mkdir()
    with open_store(url) as store:
        begun = store.create_transaction("ingest", None, {}, {}).id
        waiting = store.create_transaction("collect_garbage", None, {}, {}).id
        store.transact(
            lambda catalog: catalog.connection.change("INSERT INTO job_parts VALUES (?, ?, ?)", begun, "part", "{}")
        )
        job, ann = {"job": "export"}, {"name": "ann"}
        store.add_schedule(1, "nightly", None, job, ann, paused=False, debounce_ms=5000, due_at=1, sources=[])
    run("backup", tmp_path / "target", "--root", tmp_path / "root")
    run("backup", "restore", tmp_path / "target", "--root", tmp_path / "new")
    with open_store(f"sqlite:///{tmp_path}/new/catalog.db") as store:
        canceled, queued = store.describe_transaction(begun), store.describe_transaction(waiting)
        [schedule] = store.list_schedules(None, 10)
    assert (schedule.paused, schedule.due_at) == (True, 1)
    assert (canceled.status, queued.status) == ("Canceled", "Queued")
    assert "restored from a backup" in (canceled.error or "")


def test_prune_keeps_the_files_that_later_backups_share(tmp_path: Path, start: Start) -> None:
    target = tmp_path / "target"
    client = start(tmp_path / "root", environ={"TILTYARD_RETENTION_DAYS": "0"})
    client.create("shared", [1])
    client.create("dropped", [1])
    run("backup", target, "--root", tmp_path / "root")
    client.post("/v1/table/dropped/drop")
    client.insert("shared", [2])
    run("backup", target, "--root", tmp_path / "root")
    assert "Removed 1 backups" in run("backup", "prune", target, "--keep", 1)
    assert not list(target.glob("files/dropped-*"))
    assert "no problems" in run("backup", "verify", target)
    run("backup", "restore", target, "--root", tmp_path / "new")
    assert start(tmp_path / "new").ids("shared") == [1, 2]


def test_prune_removes_backups_that_have_expired_but_the_latest(tmp_path: Path, start: Start) -> None:
    target, root = tmp_path / "target", tmp_path / "root"
    start(root).create("t", [1])
    for days in ("1", "30", "1"):
        run("backup", target, "--root", root, "--expire-days", days)
    run("backup", target, "--root", root)
    assert [" expires " in line for line in run("backup", "list", target).splitlines()] == [True, True, True, False]
    first, *later = sorted(path.name for path in (target / "points").iterdir())
    assert "--keep N, --expired" in run("backup", "prune", target, status=2)
    assert "Removed 0 backups" in run("backup", "prune", target, "--expired")
    opened = BackupTarget(str(target), {})
    tomorrow = read_point(opened, first).taken_at + 25 * 3_600_000
    pruned = prune_points(opened, expired_at=tomorrow)
    assert (pruned.points, pruned.kept) == ([first, later[1]], 2)
    run("backup", "prune", target, "--keep", 1)
    run("backup", target, "--root", root, "--expire-days", "1")
    [kept, latest] = sorted(path.name for path in (target / "points").iterdir())
    assert prune_points(opened, 1, expired_at=tomorrow * 2).points == [kept]
    assert prune_points(opened, expired_at=tomorrow * 2).points == []  # there is no newer one
    assert "no problems" in run("backup", "verify", target, "--id", latest)
    assert "expire-days" in run("backup", target, "--root", root, "--expire-days", "0", status=2)


def client_version(client: Client, table: str) -> int:
    """Return the latest version of a table."""
    version: int = client.post(f"/v1/table/{table}/describe", {"load_detailed_metadata": True})["version"]
    return version
