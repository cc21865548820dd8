"""No secret of the server or of its callers is in its log, its audit or its responses."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.audit.conftest import eventually
from tests.services.postgres import postgres_server
from tests.services.s3 import s3_server
from tests.services.secured import make_keys
from tests.services.server import ServerProcess
from tests.services.wire import stream
from tiltyard.store import AuditFilter, open_store

STORAGE, DATABASE, WEBHOOK = "s3cret-storage-41", "s3cret-database-42", "s3cret-webhook-43"
FILTER, ROW, PROPERTY = "s3cret-filter-51", "s3cret-row-52", "s3cret-property-53"
BEARER, CONTEXT, CLAIMED = "s3cret-bearer-54", "s3cret-context-55", "s3cret-claimed-56"
OF_THE_SERVER = (STORAGE, DATABASE, WEBHOOK)
OF_CALLERS = (FILTER, ROW, PROPERTY, BEARER, CONTEXT, CLAIMED)

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/namespace/space/create", {"json": {"properties": {"owner": PROPERTY}}}),
    ("/v1/namespace/space/create", {"json": {"properties": {"owner": PROPERTY}}}),
    ("/v1/table/space%24t/create", {"content": stream(pa.table({"id": [1], "word": [ROW]}))}),
    ("/v1/table/space%24t/create", {"content": stream(pa.table({"id": [1], "word": [ROW]}))[:-9]}),
    ("/v1/table/space%24t/query", {"json": {"vector": None, "k": 1, "filter": f"word = '{FILTER}'"}}),
    ("/v1/table/space%24t/query", {"json": {"vector": None, "k": 1, "filter": f"nothing = '{FILTER}'"}}),
    ("/v1/table/space%24t/query", {"json": {"vector": None, "k": 1, "filter": f"word = '{FILTER}"}}),
    ("/v1/table/space%24t/count_rows", {"json": {"predicate": f"word = cast('{FILTER}' as int)"}}),
    ("/v1/table/space%24t/update", {"json": {"updates": [["word", f"'{ROW}'"]], "predicate": f"word = '{FILTER}'"}}),
    ("/v1/table/space%24t/delete", {"json": {"predicate": f"word = '{FILTER}'"}}),
    ("/v1/table/space%24t/describe", {"json": {"vend_credentials": True, "context": {"password": CONTEXT}}}),
    ("/v1/table/space%24t/describe", {"json": {}, "headers": {"x-lance-ctx-token": CONTEXT}}),
    ("/v1/table/space%24t/describe", {"json": {}, "headers": {"authorization": f"Bearer {BEARER}", "x-api-key": ""}}),
    ("/v1/table/space%24t/describe", {"json": {}, "headers": {"x-api-key": BEARER}}),
    ("/v1/table/space%24missing/describe", {"json": {"identity": {"api_key": CLAIMED}}}),
    ("/v1/table/space%24other/register", {"json": {"location": f"s3://elsewhere/{PROPERTY}"}}),
    ("/v1/table/space%24t/query", {"content": b'{"filter": "' + FILTER.encode()}),
    ("/v1/table/space%24t/drop", {"json": {}}),
]


def call_all(client: httpx.Client, keyless: httpx.Client) -> str:
    """Send every request, as an administrator or with the credentials it has; return all response texts."""
    bodies = []
    for path, options in CALLS:
        sender = keyless if "x-api-key" in options.get("headers", {}) else client
        bodies.append(sender.post(path, **options).text)
    return "\n".join(bodies)


@pytest.mark.extended
def test_no_secret_is_in_the_log_in_the_audit_or_in_a_response(tmp_path: Path) -> None:
    lines = tmp_path / "audit.jsonl"
    with ExitStack() as stack:
        services = stack.enter_context(ExitStack())
        postgres = services.enter_context(postgres_server())
        objects = services.enter_context(s3_server())
        database = postgres.new_database()
        secret_database = f"{database}{'&' if '?' in database else '?'}password={DATABASE}"
        key = make_keys(database, "administrator")["administrator"]
        environ = {
            "TILTYARD_STORAGE_OPTIONS": json.dumps({**objects.options, "aws_secret_access_key": STORAGE}),
            "TILTYARD_AUDIT": "all",
            "TILTYARD_AUDIT_LINES": str(lines),
            "TILTYARD_AUDIT_WEBHOOK": "http://127.0.0.1:9/events",
            "TILTYARD_AUDIT_WEBHOOK_HEADERS": json.dumps({"authorization": WEBHOOK}),
            "TILTYARD_LOG_LEVEL": "debug",
            "TILTYARD_CONFLICT_TIMEOUT": "1",
        }
        root = f"{objects.new_bucket('secrets')}/tables"
        server = ServerProcess(root, "--auth", "--db", secret_database, environ=environ)
        stack.callback(server.kill)
        admin = stack.enter_context(httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=60))
        keyless = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
        bodies = call_all(admin, keyless)
        with open_store(database) as store:
            records = eventually(
                lambda: records if len(records := store.list_audit(AuditFilter(), None, 1000)) >= len(CALLS) else None
            )
        services.close()  # from here on nothing that the server needs is there
        requests = {
            "/v1/namespace/late/create": {"properties": {"owner": PROPERTY}},
            "/v1/table/space%24t/describe": {},
        }
        with ThreadPoolExecutor(len(requests)) as pool:  # each waits for the database until it gives up
            bodies += "".join(pool.map(lambda path: admin.post(path, json=requests[path]).text, requests))
        server.process.terminate()
        server.process.wait(60)
    log = "".join(server.log)
    assert len(log) > 1000 and lines.stat().st_size > 1000
    audit = repr(records) + lines.read_text()
    for secret in (*OF_THE_SERVER, key):
        assert [name for name, text in (("log", log), ("audit", audit), ("answer", bodies)) if secret in text] == []
    for secret in OF_CALLERS:
        assert [name for name, text in (("log", log), ("audit", audit)) if secret in text] == [], secret
