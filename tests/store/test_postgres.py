"""PostgreSQL: lost connections, deadlocks, a server that restarts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread
from typing import TYPE_CHECKING

import psycopg
import pytest
from lance_namespace.errors import NamespaceNotFoundError, ServiceUnavailableError

from tiltyard.store import NewVersion, open_store, schema, wall_clock
from tiltyard.store.backend import UniqueError
from tiltyard.store.postgres import PostgresDatabase, to_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.postgres import PostgresServer
    from tiltyard.store.backend import Connection

INSERT = "INSERT INTO secrets (name, value) VALUES (?, '')"
KILL_ME = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.fixture
def database_kind() -> str:
    return "postgres"


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(url, size=4, timeout=2)
    schema.migrate(database, wall_clock)
    yield database
    database.close()


def names(database: PostgresDatabase) -> list[str]:
    return [row[0] for row in database.read(lambda connection: connection.rows("SELECT name FROM secrets"))]


def test_to_postgres_numbers_the_placeholders() -> None:
    assert to_postgres("SELECT '%' WHERE a = ? AND b = ? /*+ FOR UPDATE */") == (
        "SELECT '%' WHERE a = $1 AND b = $2  FOR UPDATE "
    )


def test_lost_connection_before_commit_is_retried(database: PostgresDatabase) -> None:
    attempts = []

    def write(connection: Connection) -> None:
        attempts.append(1)
        connection.change(INSERT, "a")
        if len(attempts) == 1:
            connection.rows(KILL_ME)

    database.write(write)
    assert (len(attempts), names(database)) == (2, ["a"])


def test_connection_lost_while_committing_is_not_run_again(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []
    execute = psycopg.RawCursor.execute

    def cut(self: psycopg.RawCursor[object], query: str, *args: object, **kwargs: object) -> object:
        if query == "COMMIT":
            attempts.append(1)
            monkeypatch.setattr(psycopg.RawCursor, "execute", execute)
            execute(self, "COMMIT")
            self.connection.pgconn.finish()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return execute(self, query, *args, **kwargs)  # type: ignore[arg-type]  # the same call, passed on

    monkeypatch.setattr(psycopg.RawCursor, "execute", cut)
    with pytest.raises(ServiceUnavailableError, match="may or may not"):
        database.write(lambda connection: connection.change(INSERT, "a"))
    assert (len(attempts), names(database)) == (1, ["a"])


def test_version_recorded_before_the_connection_was_lost_is_recorded_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, cuts = psycopg.RawCursor.execute, []

    def cut(self: psycopg.RawCursor[object], query: str, *args: object, **kwargs: object) -> object:
        cursor = execute(self, query, *args, **kwargs)  # type: ignore[arg-type]  # the same call, passed on
        if "INSERT INTO table_versions" in query and not cuts:
            cuts.append(query)
            self.connection.pgconn.finish()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return cursor

    with open_store(url) as store:
        table = store.insert_table(("t",), "mem://t", {})
        monkeypatch.setattr(psycopg.RawCursor, "execute", cut)
        record, is_recorded = store.record_version(NewVersion(table.id, 1, "mine", "m1"))
        assert (len(cuts), record.staged_path, is_recorded) == (1, "mine", False)
        assert store.list_versions(table.id) == [record]
        assert store.record_version(NewVersion(table.id, 1, "theirs", "m1")) == (record, False)


def test_deadlock_is_retried(database: PostgresDatabase) -> None:
    for name in ("a", "b"):
        database.write(lambda connection, name=name: connection.change(INSERT, name))
    both, one_is_done, runs = Barrier(2), Event(), []

    def update(first: str, second: str) -> None:
        tries: list[int] = []

        def work(connection: Connection) -> None:
            tries.append(1)
            runs.append(1)
            if len(tries) > 1:  # or it may take its first row before the other, which has just been told, takes it
                assert one_is_done.wait(30)
            connection.change("UPDATE secrets SET value = value || '+' WHERE name = ?", first)
            if len(tries) == 1:
                both.wait(10)
            connection.change("UPDATE secrets SET value = value || '+' WHERE name = ?", second)

        database.write(work)
        one_is_done.set()

    threads = [Thread(target=update, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert database.read(lambda connection: connection.rows("SELECT value FROM secrets")) == [("++",), ("++",)]
    assert len(runs) == 3


def test_unit_of_work_that_goes_on_after_a_refusal_changes_nothing(database: PostgresDatabase) -> None:
    def work(connection: Connection) -> None:
        connection.change(INSERT, "a")
        with pytest.raises(Exception, match="secrets_pkey"):
            connection.change(INSERT, "a")

    with pytest.raises(RuntimeError, match="continued after one of its statements failed"):
        database.write(work)
    assert names(database) == []


def test_many_statements_of_one_connection_do_not_mix(database: PostgresDatabase) -> None:
    def work(connection: Connection) -> list[object]:
        before = connection.rows("SELECT name FROM secrets")
        connection.change_many("INSERT INTO secrets (name, value) VALUES (?, ?)", [("a", "1"), ("b", "2")])
        with pytest.raises(UniqueError):
            database.write(lambda other: other.change_many(INSERT, [("c",), ("c",)]))
        changed = connection.change("UPDATE secrets SET value = ? WHERE name = ?", "3", "b")
        value_of_b = connection.row("SELECT value FROM secrets WHERE name = ?", "b")
        return [before, changed, value_of_b, connection.row("SELECT 1 FROM secrets WHERE name = 'none'")]

    assert database.write(work) == [[], 1, ("3",), None]
    assert names(database) == ["a", "b"]


def test_catalog_by_the_socket_of_its_machine(postgres: PostgresServer) -> None:
    with open_store(postgres.new_database(socket=True)) as store:
        assert store.describe_namespace(()).id == 1


def test_pool_recovers_from_a_restart_of_the_server(postgres: PostgresServer, url: str) -> None:
    with open_store(url) as store:
        store.create_namespace(("a",), {})
        postgres.stop("immediate")
        postgres.start()
        assert store.list_namespaces((), None, 10) == ["a"]
        store.create_namespace(("b",), {})
        with pytest.raises(NamespaceNotFoundError):
            store.describe_namespace(("c",))


def test_turn_that_survives_a_crash_is_held_after_one(postgres: PostgresServer, url: str) -> None:
    with open_store(url) as store, psycopg.connect(url, autocommit=True) as administrator:
        table = store.insert_table(("t",), "/r/t", {}, managed=True)
        administrator.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")  # what nobody waits for is lost in a crash
        administrator.execute("SELECT pg_reload_conf()")
        try:
            assert store.claim_turn(table.id, "", "a", 60_000, survives_crash=True) is not None
            postgres.stop("immediate")
        finally:
            postgres.start()
            with psycopg.connect(url, autocommit=True) as again:
                again.execute("ALTER SYSTEM RESET wal_writer_delay")
                again.execute("SELECT pg_reload_conf()")
        assert store.turn_holder(table.id, "") == "a"


@pytest.mark.parametrize("code", ["53100", "53300", "57P03", "58030", "55P03", "25006"])
def test_transient_errors_are_unavailable(database: PostgresDatabase, code: str) -> None:
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'for a while' USING ERRCODE = '{code}'; END $$"
    with pytest.raises(ServiceUnavailableError, match="for a while"):
        database.write(lambda connection: connection.change(raising))
    database.ping()


def test_server_that_is_down_is_unavailable(postgres: PostgresServer, database: PostgresDatabase) -> None:
    postgres.stop("fast")
    try:
        with pytest.raises(ServiceUnavailableError):
            database.ping()
        with pytest.raises(ServiceUnavailableError):
            database.write(lambda connection: connection.change(INSERT, "a"))
    finally:
        postgres.start()
    with pytest.raises(ServiceUnavailableError):
        PostgresDatabase("postgresql://nobody@127.0.0.1:1/none", size=4, timeout=0.5)


def test_server_that_refuses_connections_is_used_by_those_that_are_open(postgres: PostgresServer, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS few")
        connection.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 2")
    database = PostgresDatabase(url.replace("//tilt@", "//few@"), size=8, timeout=2)
    both_taken, may_go = Barrier(3), Event()

    def hold(connection: Connection) -> None:
        both_taken.wait(10)
        may_go.wait(10)

    try:
        with ThreadPoolExecutor(8) as threads:
            pause = lambda _: database.read(lambda connection: connection.row("SELECT 1 FROM pg_sleep(0.05)"))  # noqa: E731
            assert list(threads.map(pause, range(16))) == [(1,)] * 16
            holding = [threads.submit(database.read, hold) for _ in range(2)]
            both_taken.wait(10)
            with pytest.raises(ServiceUnavailableError, match="cannot be reached"):
                database.ping()
            may_go.set()
            assert [held.result() for held in holding] == [None, None]
        database.ping()
        assert database.gauges()["catalog connections at most"] == 8
    finally:
        may_go.set()
        database.close()
