"""Rows of a catalog as earlier versions would have written them, for each number of its schema.

No release stands behind these rows: they are written by hand into the columns that the files in `migrations/` made at
their number, with values of the kinds and forms that the code of that time stored (ids, JSON, locations, milliseconds).
Those of tables describe the files in `old_catalog/`, which an earlier version did write. What is not here: mounts and
publications, which need a catalog of others; views, uploads and functions, whose rows describe more files.
`old_catalog/` itself, a whole catalog of number 13 and not made by hand, is what test_old_catalog.py opens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tiltyard.store.backend import Connection

KEY = "tilt_0123456789abcdef_" + 43 * "A"
_KEY_HASH = "0f007385b6f9d4b7eeb2748605afe1a984a0a3bfa3f014d09e2a784ce9e5cd1a"
_AT, _FAR = 1795502927000, 4795502927947
WORDS = "words-e08519f51c8f4762a321949dc045f3ff.lance"
PLAIN = "plain-00e6fe1981a54de38effbaf32d0b8a8e.lance"
DECLARED = "declared-16fcb5a87f7142c6b8251ba5510c877b.lance"
GONE = "gone-7f1f0cbd5d8a4c3f9a3a1f6d7d0a9e11.lance"
"""Folders of tables below the root; `GONE` is a copy of `PLAIN`."""
INDEX, INGEST, FAILED = (f"afbd9d3a-d63f-4bd0-a03a-{number:012}" for number in range(3))
"""Transactions."""


def write_rows(connection: Connection, version: int, root: Path) -> None:
    """Write what a version with migrations up to this number would have in its catalog."""
    for number, write in _WRITERS.items():
        if number <= version:
            write(connection, root)


def _insert(connection: Connection, table: str, **values: object) -> None:
    names, marks = ", ".join(values), ", ".join("?" for _ in values)
    statement = f"INSERT INTO {table} ({names}) /*+ OVERRIDING SYSTEM VALUE */ VALUES ({marks})"
    connection.change(statement, *values.values())


def _write_entries(connection: Connection, root: Path) -> None:
    for id_, parent, name, properties in (2, 1, "team", '{"owner":"ann"}'), (3, 2, "inner", "{}"):
        row = {"id": id_, "parent_id": parent, "name": name, "properties": properties, "created_at": _AT}
        _insert(connection, "namespaces", **row)
    tables = (2, "words", WORDS), (1, "plain", PLAIN), (2, "declared", DECLARED), (1, "gone", GONE)
    for id_, (namespace, name, folder) in enumerate(tables, 1):
        ids = {"id": id_, "namespace_id": namespace, "name": name, "updated_at": _AT}
        _insert(connection, "tables", **ids, **_table(f"{root}/{folder}", declared=folder == DECLARED))
    if "postgres" in type(connection).__module__:  # ids of rows to come go on after these; SQLite does so by itself
        for table in "namespaces", "tables":
            connection.rows(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT MAX(id) FROM {table}))")
    for version in 1, 2, 3:
        _insert(connection, "table_versions", table_id=1, **_version(root / WORDS, version))
    _insert(connection, "table_versions", table_id=1, **_version(root / WORDS, 2, "side"))
    for version in 1, 2:
        _insert(connection, "table_versions", table_id=2, **_version(root / PLAIN, version))
        _insert(connection, "table_versions", table_id=4, **_version(root / GONE, version))
    order = f'{{"location":"{root}/{PLAIN}","branch":null,"column":"id","name":"by_id","index_type":"BTREE",'
    _write_transaction(connection, INDEX, "create_index", order + '"parameters":{},"replaces":false}')
    _insert(connection, "secrets", name="paging", value="c4" * 32)


def _table(location: str, *, declared: bool = False) -> dict[str, object]:
    """Return what rows of tables have in common with those of removed ones."""
    kind = {"managed": True, "declared": declared, "registered": False}
    return {"location": location, "properties": "{}", "created_at": _AT, **kind}


def _version(folder: Path, version: int, branch: str = "") -> dict[str, object]:
    path = f"{f'tree/{branch}/' if branch else ''}_versions/{2**64 - 1 - version}.manifest"
    return {
        "branch": branch,
        "version": version,
        "staged_path": f"{folder}/{path}-e56768d4-0181-4880-be7f-697ec76795fc",
        "manifest_path": path,
        "manifest_size": (folder / path).stat().st_size,
        "metadata": "{}",
        "naming_scheme": "V2",
        "created_at": _AT,
        "finalized": True,
    }


def _write_transaction(
    connection: Connection, id_: str, kind: str, payload: str, status: str = "Succeeded", error: str | None = None
) -> None:
    done = {"status": status, "error": error, "attempts": 1, "available_at": _AT, "created_at": _AT, "updated_at": _AT}
    properties = '{"index_name":"by_id","column":"id"}' if kind == "create_index" else "{}"
    _insert(connection, "transactions", id=id_, kind=kind, table_id=2, payload=payload, properties=properties, **done)


def _write_requests(connection: Connection, root: Path) -> None:
    claim = {"owner": "gone", "lease_until": _AT, "attempts": 1, "heard": True, "created_at": _AT, "expires_at": _FAR}
    answer = {"status": 200, "body": '{"version":3}', "table_id": 1, "branch": "", "version": 3}
    _insert(connection, "requests", id="k", scope="InsertIntoTable", fingerprint="f" * 64, **claim, **answer)


def _write_trash(connection: Connection, root: Path) -> None:
    location = f"{root}/{GONE}"
    connection.change("DELETE FROM tables WHERE id = 4")
    _insert(connection, "doomed_folders", location=location, due_at=_FAR, reason="dropped", claims=0)
    removed = {"namespace": "[]", "namespace_id": 1, "dropped": True, "removed_at": _AT, "due_at": _FAR}
    _insert(connection, "removed_tables", id=4, name="gone", **removed, **_table(location))
    for version in 1, 2:
        _insert(connection, "removed_versions", table_id=4, **_version(root / GONE, version))


def _write_identity(connection: Connection, root: Path) -> None:
    _insert(connection, "principals", name="ann", administrator=False, disabled=False, created_at=_AT)
    key = {"id": "0123456789abcdef", "principal": "ann", "hash": _KEY_HASH, "note": ""}
    _insert(connection, "api_keys", **key, created_at=_AT, expires_at=_FAR)
    connection.change("UPDATE generations SET number = 2 WHERE name = 'identity'")
    connection.change("UPDATE transactions SET asked_by = 'ann'")


def _write_audit(connection: Connection, root: Path) -> None:
    request = {"method": "key", "operation": "DropTable", "object": "gone", "request_id": "r", "address": "127.0.0.1"}
    answer = {"outcome": "ok", "status": 200, "micros": 900, "context": "{}"}
    _insert(connection, "audit", at=_AT, id="a", principal="ann", **request, **answer)


def _write_grants(connection: Connection, root: Path) -> None:
    _insert(connection, "roles", name="analysts", created_at=_AT)
    _insert(connection, "role_members", role="analysts", member="principal:ann", created_at=_AT)
    grant = {"grantee": "role:analysts", "kind": "namespace", "object_id": 2, "privileges": 2}
    _insert(connection, "grants", **grant, granted_by="everybody", granted_at=_AT)
    connection.change("UPDATE generations SET number = 3 WHERE name = 'grants'")


def _write_job(connection: Connection, root: Path) -> None:
    _write_transaction(connection, INGEST, "ingest", '{"source":"/data/plain.parquet"}')
    _insert(connection, "job_parts", transaction_id=INGEST, name="files", value="[]")


def _write_policy(connection: Connection, root: Path) -> None:
    document = '{"filter":"id < 3","masks":[],"exempt_roles":[]}'
    _insert(connection, "policies", table_id=1, name="some", document=document, set_by="everybody", set_at=_AT)


def _write_kept_manifest(connection: Connection, root: Path) -> None:
    """Write the last commit as of a server that lost its power: the manifest is in the catalog, its file is not."""
    file = root / WORDS / f"_versions/{2**64 - 1 - 3}.manifest"
    connection.change(
        "UPDATE table_versions SET manifest = ?, finalized = ? WHERE table_id = 1 AND branch = '' AND version = 3",
        *(file.read_bytes(), False),
    )
    file.unlink()


def _write_deleted_version(connection: Connection, root: Path) -> None:
    connection.change("DELETE FROM table_versions WHERE table_id = 1 AND branch = '' AND version = 2")
    _insert(connection, "deleted_versions", table_id=1, branch="", first=2, beyond=3, deleted_at=_AT)


def _write_failure(connection: Connection, root: Path) -> None:
    payload = f'{{"location":"{root}/{PLAIN}","branch":null,"column":"text","name":"by_text","index_type":"FTS"}}'
    _write_transaction(connection, FAILED, "create_index", payload, "Failed", "The column has no text.")


def _write_job_events(connection: Connection, root: Path) -> None:
    event = {"number": 1, "happened_at": _AT, "event": "claimed", "status": "Running", "attempt": 1}
    _insert(connection, "job_events", transaction_id=INGEST, **event)


def _write_upkeep(connection: Connection, root: Path) -> None:
    _insert(connection, "upkeep", table_id=1, changed_at=_AT, due_at=_FAR, rests_until=_AT, state="{}")


def _write_function_errors(connection: Connection, root: Path) -> None:
    errors = {"column_name": "length", "rows_skipped": 1, "rows_recorded": 1, "records": "[]", "created_at": _AT}
    _insert(connection, "function_errors", transaction_id=INGEST, table_id=2, fragment_id=0, **errors)


def _write_namespaces_of_jobs(connection: Connection, root: Path) -> None:
    connection.change("UPDATE transactions SET namespace_id = 1")


_WRITERS = {
    1: _write_entries,
    2: _write_requests,
    3: _write_trash,
    4: _write_identity,
    5: _write_audit,
    6: _write_grants,
    7: _write_job,
    8: _write_policy,
    10: _write_kept_manifest,
    12: _write_deleted_version,
    13: _write_failure,
    17: _write_job_events,
    19: _write_upkeep,
    20: _write_function_errors,
    22: _write_namespaces_of_jobs,
}
"""What a number added that has rows here."""
