"""SQLite: the writer's group commit, readers, the lock between processes."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.store import VersionRecord, schema, wall_clock
from tiltyard.store.backend import UniqueError
from tiltyard.store.sqlite.connection import SqliteConnection
from tiltyard.store.sqlite.database import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tiltyard.store.backend import Connection

INSERT = "INSERT INTO secrets (name, value) VALUES (?, '')"
NAMES = "SELECT name FROM secrets ORDER BY name"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "catalog.db"


@pytest.fixture
def database(file: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(file)
    schema.migrate(database, wall_clock)
    yield database
    database.close()


def insert(name: str) -> Callable[[Connection], int]:
    return lambda connection: connection.change(INSERT, name)


def names(database: SqliteDatabase) -> list[str]:
    return [row[0] for row in database.read(lambda connection: connection.rows(NAMES))]


class Gate:
    """Holds the writer inside a write until others wait behind it, so that they become one batch."""

    def __init__(self, database: SqliteDatabase, pool: ThreadPoolExecutor) -> None:
        self.database, self.pool = database, pool
        self.entered, self.opened = threading.Event(), threading.Event()

    def gather(self, *writes: Callable[[Connection], object]) -> list[Future[object]]:
        def hold(_: Connection) -> None:
            self.entered.set()
            assert self.opened.wait(10)

        first = self.pool.submit(self.database.write, hold)
        assert self.entered.wait(10)
        futures = []
        for number, write in enumerate(writes, start=1):
            futures.append(self.pool.submit(self.database.write, write))
            while self.database.gauges()["catalog writes waiting"] < number:
                os.sched_yield()
        self.opened.set()
        first.result(10)
        return futures


def test_write_that_fails_fails_alone(database: SqliteDatabase) -> None:
    seen: list[int] = []

    def fail(connection: Connection) -> None:
        connection.change(INSERT, "half")
        raise ValueError("mine")

    def count(connection: Connection) -> None:
        seen.append(len(connection.rows(NAMES)))

    with ThreadPoolExecutor(8) as pool:
        writes = [insert("a"), fail, insert("a"), insert("b"), count]
        outcomes = [future.exception(10) for future in Gate(database, pool).gather(*writes)]
    assert list(map(type, outcomes)) == [type(None), ValueError, UniqueError, type(None), type(None)]
    assert names(database) == ["a", "b"]
    assert seen == [2]


def test_commit_that_fails_fails_for_all_and_the_next_goes_through(database: SqliteDatabase) -> None:
    def defer(connection: Connection) -> None:  # a foreign key that is looked at by COMMIT only
        connection.rows("PRAGMA defer_foreign_keys = ON")
        connection.change("INSERT INTO upload_parts VALUES ('missing', 'p', '[]', 0, 0)")

    with ThreadPoolExecutor(8) as pool:
        futures = Gate(database, pool).gather(insert("a"), defer, insert("b"))
        assert {type(future.exception(10)) for future in futures} == {ServiceUnavailableError}
    assert names(database) == []
    database.write(insert("c"))
    assert names(database) == ["c"]


def test_write_does_not_return_before_it_is_committed(database: SqliteDatabase, file: Path) -> None:
    done = threading.Event()

    def check() -> None:
        for i in range(100):
            database.write(insert(f"{threading.get_ident()}-{i}"))
            outside = sqlite3.connect(file)
            assert outside.execute("SELECT 1 FROM secrets WHERE name = ?", (f"{threading.get_ident()}-{i}",)).fetchone()
            outside.close()
        done.set()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(check) for _ in range(4)]:
            future.result(30)
    assert len(names(database)) == 400


def test_write_inside_a_write_is_refused(database: SqliteDatabase) -> None:
    with pytest.raises(RuntimeError, match="inside"):
        database.write(lambda _: database.write(insert("a")))


def test_lone_write_is_made_by_its_caller_and_others_wait_in_line(database: SqliteDatabase) -> None:
    assert database.write(lambda _: threading.get_ident()) == threading.get_ident()
    with ThreadPoolExecutor(8) as pool:
        futures = Gate(database, pool).gather(*[lambda _: threading.get_ident()] * 3)
        writers = {future.result(10) for future in futures}
    assert len(writers) == 1 and not writers & {thread.ident for thread in pool._threads}


def test_write_that_is_interrupted_leaves_nothing_and_keeps_nobody_out(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(connection: Connection) -> None:
        connection.change(INSERT, "a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.write(interrupted)
    change = SqliteConnection.change

    def commit(self: SqliteConnection, sql: str, *values: object) -> int:
        if sql == "COMMIT":
            raise KeyboardInterrupt
        return change(self, sql, *values)

    monkeypatch.setattr(SqliteConnection, "change", commit)
    with pytest.raises(KeyboardInterrupt):
        database.write(insert("b"))
    monkeypatch.undo()
    database.write(insert("c"))
    assert names(database) == ["c"]


def test_deleted_rows_leave_nothing_in_the_files_once_these_are_purged(database: SqliteDatabase, file: Path) -> None:
    name = "secret-gone" * 2_000  # in pages of its own, which are freed; nothing of the schema has this text
    database.write(lambda connection: connection.change(INSERT, name))
    database.read(lambda connection: connection.rows(NAMES))
    database.write(lambda connection: connection.change("DELETE FROM secrets WHERE name = ?", name))
    kept = file.with_name(f"{file.name}-wal")
    assert b"secret-gonesecret-gone" in kept.read_bytes()
    assert database.purge_deleted()
    assert not any(b"secret-gonesecret-gone" in each.read_bytes() for each in (file, kept))
    database.write(lambda connection: connection.change(INSERT, "next"))
    assert database.read(lambda connection: connection.rows(NAMES)) == [("next",)]


def test_close_waits_for_the_write_under_way(file: Path) -> None:
    database = SqliteDatabase(file)
    schema.migrate(database, wall_clock)
    with ThreadPoolExecutor(8) as pool:
        futures = Gate(database, pool).gather(insert("a"), insert("b"))
        pool.submit(database.close).result(10)
        assert [future.result(10) for future in futures] == [1, 1]
    with pytest.raises(ServiceUnavailableError, match="closed"):
        database.write(insert("c"))


def test_write_gives_up_while_another_process_holds_the_file(database: SqliteDatabase, file: Path) -> None:
    hasty = SqliteDatabase(file, timeout=1)
    with Path(f"{file}.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServiceUnavailableError, match="busy"):
            hasty.write(insert("never"))
        assert names(hasty) == []  # reading goes on
    hasty.write(insert("now"))
    assert names(hasty) == ["now"]
    hasty.close()


def test_full_disk_is_unavailable_and_passes(database: SqliteDatabase) -> None:
    def fill(connection: Connection) -> None:
        connection.rows("PRAGMA max_page_count = 1")  # SQLite takes the present size for it
        for i in range(10_000):
            connection.change(INSERT, f"{i}" * 100)

    with pytest.raises(ServiceUnavailableError, match="full"):
        database.write(fill)
    assert names(database) == []
    database.write(insert("a"))
    assert names(database) == ["a"]


def test_close_answers_what_waits_and_refuses_what_comes(database: SqliteDatabase) -> None:
    with ThreadPoolExecutor(8) as pool:
        futures = Gate(database, pool).gather(*[insert(f"{i}") for i in range(5)])
        database.close()
        assert [future.exception(10) for future in futures] == [None] * 5
    with pytest.raises(ServiceUnavailableError):
        database.write(insert("late"))
    with pytest.raises(ServiceUnavailableError):
        names(database)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux to count open files")
def test_readers_of_threads_that_end_are_closed(database: SqliteDatabase, file: Path) -> None:
    def open_files() -> int:
        count = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the folder's own descriptor is gone by now
                count += descriptor.readlink() == file
        return count

    before = open_files()
    for _ in range(20):
        thread = threading.Thread(target=names, args=(database,))
        thread.start()
        thread.join()
    gc.collect()
    assert open_files() <= before + 1


def test_file_is_durable_and_checked(database: SqliteDatabase) -> None:
    def settings(connection: Connection) -> list[object]:
        return [connection.rows(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys")]

    assert database.write(settings) == ["wal", 2, 1]
    assert database.inline_reads


def test_reads_that_come_together_share_a_snapshot_until_the_loop_goes_on(database: SqliteDatabase) -> None:
    ready: list[Callable[[], None]] = []
    database.share_reads(ready.append)
    with ThreadPoolExecutor(1) as elsewhere:
        assert names(database) == []
        elsewhere.submit(database.write, insert("a")).result()
        assert elsewhere.submit(names, database).result() == ["a"], "other threads read for themselves"
        assert names(database) == []
        assert len(ready) == 1
        ready.pop()()
        assert names(database) == ["a"]
        ready.pop()()


def test_a_snapshot_ends_where_its_reads_failed(database: SqliteDatabase) -> None:
    ready: list[Callable[[], None]] = []
    database.share_reads(ready.append)
    with pytest.raises(sqlite3.OperationalError):
        database.read(lambda connection: connection.row("SELECT nothing FROM nowhere"))
    ready.pop()()
    with pytest.raises(ZeroDivisionError):
        database.read(lambda connection: 1 // 0)
    assert names(database) == []
    ready.pop()()
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(database.write, insert("a")).result()
    assert names(database) == ["a"]
    ready.pop()()


def test_what_was_acknowledged_is_read_on_an_event_loop(database: SqliteDatabase) -> None:
    """A write is seen by reads after it, on the kind of loop that the server has, while others read all the time."""

    async def write(number: int) -> None:
        loop = asyncio.get_running_loop()
        for turn in range(20):
            name = f"{number}-{turn}"
            await loop.run_in_executor(None, database.write, insert(name))
            assert name in names(database)

    async def read() -> None:
        while True:
            names(database)
            await asyncio.sleep(0)

    async def run() -> None:
        database.share_reads(asyncio.get_running_loop().call_soon)
        reading = asyncio.create_task(read())
        await asyncio.gather(*(write(number) for number in range(8)))
        reading.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


TABLES, ROUNDS = 6, 120
ADD_VERSION = """
    INSERT INTO table_versions (table_id, branch, version, staged_path, manifest_path, metadata, naming_scheme,
        created_at, finalized, manifest)
    VALUES (?, '', ?, ?, 'final', '{}', 'V2', ?, FALSE, ?)
"""
FINALIZE = "UPDATE table_versions SET finalized = TRUE, manifest = NULL WHERE table_id = ? AND version = ?"
VERSIONS = f"""
    SELECT {VersionRecord.COLUMNS}, manifest, checked_key, checks FROM table_versions
    ORDER BY table_id, branch, version
"""


def add_versions(connection: Connection, first: int) -> None:
    """Add versions of several tables in turns, each with a manifest that goes when the next one comes."""
    for version in range(first, first + ROUNDS):
        for table in range(1, TABLES + 1):
            connection.change(ADD_VERSION, table, version, "s" * 150, version, os.urandom(1_500))
            connection.change(FINALIZE, table, version - 1)


def add_tables(connection: Connection) -> None:
    for table in range(1, TABLES + 1):
        columns = "id, namespace_id, name, location, properties, managed, declared, registered, created_at, updated_at"
        values = (table, 1, f"t{table}", f"/t{table}", "{}", True, False, False, 0, 0)
        connection.change(f"INSERT INTO tables ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)


def used_bytes(database: SqliteDatabase) -> int:
    def read(connection: Connection) -> int:
        pages, free = (connection.row(f"PRAGMA {name}") or (0,) for name in ("page_count", "freelist_count"))
        return int(4096 * (pages[0] - free[0]))

    return database.read(read)


def test_version_takes_the_bytes_that_it_needs_once_its_manifest_is_dropped(database: SqliteDatabase) -> None:
    database.write(add_tables)
    before = used_bytes(database)
    database.write(lambda connection: add_versions(connection, 1))
    assert (used_bytes(database) - before) / (TABLES * ROUNDS) < 500


def test_versions_of_an_earlier_catalog_give_back_what_manifests_took(file: Path) -> None:
    earlier = SqliteDatabase(file)
    schema.migrate(earlier, wall_clock, upto=35)
    earlier.write(add_tables)
    empty = used_bytes(earlier)
    earlier.write(lambda connection: add_versions(connection, 1))
    before, rows = used_bytes(earlier), earlier.read(lambda connection: connection.rows(VERSIONS))
    schema.migrate(earlier, wall_clock)
    assert earlier.read(lambda connection: connection.rows(VERSIONS)) == rows
    current = SqliteDatabase(file.with_name("current.db"))
    schema.migrate(current, wall_clock)
    current.write(add_tables)  # migrations add tables and triggers, too
    assert used_bytes(earlier) - used_bytes(current) < (before - empty) / 4
    with pytest.raises(UniqueError):
        earlier.write(lambda connection: add_versions(connection, 1))
    earlier.write(lambda connection: connection.change("DELETE FROM tables WHERE id > 1"))
    assert len(earlier.read(lambda connection: connection.rows(VERSIONS))) == ROUNDS
    indexes = earlier.read(lambda connection: connection.rows(INDEXES))
    assert {name for (name,) in indexes} == {f"table_versions_{name}" for name in ("pending", "transaction", "checks")}
    earlier.close()


INDEXES = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'table_versions' AND sql IS NOT NULL"


def test_file_does_not_grow_while_rows_take_the_place_of_others(database: SqliteDatabase, file: Path) -> None:
    database.write(add_tables)
    sizes = []
    for first in range(1, 5 * ROUNDS, ROUNDS):
        database.write(lambda connection, first=first: add_versions(connection, first))  # type: ignore[misc]
        database.write(lambda connection, first=first: connection.change(DELETE_BEFORE, first))  # type: ignore[misc]
        database.read(lambda connection: connection.row("PRAGMA wal_checkpoint(PASSIVE)"))
        sizes.append(file.stat().st_size)
    assert sizes[-1] <= 1.1 * sizes[1], sizes


DELETE_BEFORE = "DELETE FROM table_versions WHERE version < ?"
