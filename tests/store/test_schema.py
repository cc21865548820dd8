"""Migrations: from nothing, from every earlier version, by several at once, and from the future."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.model.settings.secret_keys import EncryptedValue
from tiltyard.store import StoreVersionError, open_store, upgrade, wall_clock
from tiltyard.store.schema import migrate, migrations
from tiltyard.store.store import open_database

if TYPE_CHECKING:
    from pathlib import Path

    from tiltyard.store.backend import Connection, Database

NAMES = [migration.name for migration in migrations()]


@pytest.mark.parametrize("version", range(len(NAMES)))
def test_upgrade_from_each_earlier_version(url: str, version: int) -> None:
    database = open_database(url)
    assert migrate(database, wall_clock, upto=version) == NAMES[:version]
    database.close()
    with pytest.raises(StoreVersionError, match="upgrade"):
        open_store(url, migrate=False)
    assert upgrade(url) == NAMES[version:]
    assert upgrade(url) == []
    with open_store(url, migrate=False) as store:
        assert store.list_namespaces((), None, 10) == []
        assert store.describe_namespace(()).id == 1


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(NAMES) + 1))


def test_names_of_functions_and_publications_become_ids_at_the_upgrade(url: str) -> None:
    database = open_database(url)
    migrate(database, wall_clock, upto=28)
    database.write(_write_names)
    database.close()
    with open_store(url) as store:
        team = store.describe_namespace(("team",)).id
        record = store.describe_secret(team, "api")
        assert record is not None and record.id and store.find_secret(record.id) == record
        version = store.find_function(team, "f", None)
        assert version is not None and (dict(version.secret_ids), version.registrant) == ({"KEY": record.id}, "")
        ids = {name: publication.namespace_id for name in "ab" if (publication := store.find_mirror(name))}
        assert ids == {"a": team, "b": 0}


def test_servers_of_schema_28_write_beside_later_ones(url: str) -> None:
    with open_store(url) as store:
        team = store.create_namespace(("team",), {}).id
        database = open_database(url)
        for name in "xy":
            _add_secret_of_28(database, team, name, 1)
        records = {name: record for name in "xy" if (record := store.describe_secret(team, name))}
        assert all(store.find_secret(record.id) == record for record in records.values())
        assert records["x"].id != records["y"].id and store.find_secret("") is None
        database.write(lambda connection: connection.change("DELETE FROM named_secrets WHERE name = 'x'"))
        _add_secret_of_28(database, team, "x", 2)
        assert store.find_secret(records["x"].id) is None
        assert store.add_secret(team, "z", EncryptedValue("k", b""))

        for name in "ab":
            database.write(lambda connection, name=name: connection.change(_PUBLICATION_OF_28, name, '["team"]'))
        database.write(lambda connection: connection.change(_JOB_OF_28))
        database.close()
        claimed = store.claim_mirror(1, "server", 1000)
        assert claimed is not None and claimed.namespace_id == team and store.find_mirror("a") == claimed
        job = store.claim_transaction("worker", 1000)
        assert job is not None and (job.id, job.is_local) == ("job", False)


def _add_secret_of_28(database: Database, namespace: int, name: str, created_at: int) -> None:
    values = namespace, name, created_at, created_at
    assert database.write(lambda connection: connection.change(_SECRET_OF_28, *values)) == 1


_SECRET_OF_28 = """
    INSERT INTO named_secrets (namespace_id, name, key_id, value, created_at, updated_at) VALUES (?, ?, 'k', '', ?, ?)
    ON CONFLICT DO NOTHING
"""
_PUBLICATION_OF_28 = """
    INSERT INTO publications (name, kind, settings, levels, namespace, target, has_columns, removing, fingerprint,
        verified_at, failures, due_at, lease_until, created_at)
    VALUES (?, 'dir', '{}', NULL, ?, '[]', FALSE, FALSE, '', 0, 0, 0, 0, 0) ON CONFLICT (name) DO NOTHING
"""
_JOB_OF_28 = """
    INSERT INTO transactions (id, kind, status, table_id, payload, properties, error, attempts, lease_owner,
        available_at, created_at, updated_at, asked_by, namespace_id)
    VALUES ('job', 'test', 'Queued', NULL, '{}', '{}', NULL, 0, NULL, 0, 0, 0, NULL, NULL)
"""


def _write_names(connection: Connection) -> None:
    """Write a function that names a secret that is there and one that is not, and two publications likewise."""
    connection.change("INSERT INTO namespaces (parent_id, name, properties, created_at) VALUES (1, 'team', '{}', 0)")
    row = connection.row("SELECT id FROM namespaces WHERE name = 'team'")
    assert row is not None
    connection.change(
        "INSERT INTO named_secrets (namespace_id, name, key_id, value, created_at, updated_at)"
        " VALUES (?, 'api', 'k', '', 1, 1)",
        row[0],
    )
    connection.change(
        "INSERT INTO functions (object_id, namespace_id, name, last_version) VALUES ('o', ?, 'f', 1)", row[0]
    )
    bindings = [
        {"kind": "env", "variable": variable, "secret_ref": {"name": name, "namespace_path": ["team"]}}
        for variable, name in (("KEY", "api"), ("OTHER", "none"))
    ]
    connection.change(
        "INSERT INTO function_versions"
        " (object_id, version, definition, manifest_digest, artifact, created_at, created_by)"
        " VALUES ('o', 1, ?, 'd', '/a', 1, 'ann')",
        json.dumps({"secret_bindings": bindings}),
    )
    for name, path in ("a", ["team"]), ("b", ["gone"]):
        connection.change(
            "INSERT INTO publications (name, kind, settings, namespace, target, has_columns, removing, fingerprint,"
            " verified_at, failures, due_at, lease_until, created_at)"
            " VALUES (?, 'dir', '{}', ?, '[]', FALSE, FALSE, '', 0, 0, 0, 0, 0)",
            *(name, json.dumps(path)),
        )


def test_open_store_refuses_a_database_newer_than_the_code(url: str) -> None:
    upgrade(url)
    database = open_database(url)
    database.write(lambda connection: connection.change("INSERT INTO schema_migrations VALUES (?, ?)", 9999, 0))
    database.close()
    for attempt in (lambda: open_store(url), lambda: open_store(url, migrate=False), lambda: upgrade(url)):
        with pytest.raises(StoreVersionError, match="9999"):
            attempt()


def test_open_store_by_many_at_once_migrates_once(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: open_store(url), range(8)))
    for i, store in enumerate(stores):
        store.create_namespace((f"n{i}",), {})
    assert stores[0].list_namespaces((), None, 10) == [f"n{i}" for i in range(8)]
    for store in stores:
        store.close()


@pytest.mark.parametrize("wrong", ["", "sqlite://", "sqlite:///", "mysql://x", "/a/file.db"])
def test_open_store_with_another_url_is_a_value_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="database URL"):
        open_store(wrong)


def test_open_store_that_cannot_be_reached_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "text.db").write_text("not a database, but longer than the header of one would be" * 20)
    for url in (f"sqlite:///{tmp_path}/file/x.db", f"sqlite:///{tmp_path}/text.db", f"sqlite:///{tmp_path}"):
        with pytest.raises(ServiceUnavailableError):
            open_store(url)
