"""Audit records of requests, through running servers and stock clients."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import lancedb
import pyarrow as pa
import pytest

from tests.audit.conftest import eventually, recorded
from tests.services.forked_process import run_tiltyard, start_tiltyard
from tests.services.server import ServerProcess
from tests.services.wire import stream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.secured import Secured

ROWS = pa.table({"id": [1, 2, 3], "word": ["rosebud", "two", "three"]})


def summary(record: Any) -> tuple[Any, ...]:
    return record.principal, record.operation, record.object, record.outcome, record.status, record.code


def test_requests_of_lancedb_are_recorded_with_principal_operation_and_object(audited: Secured) -> None:
    db = lancedb.connect("db://x", api_key=audited.keys["administrator"], host_override=audited.url)
    table = db.create_table("films", ROWS)
    table.search().where("word = 'rosebud'").limit(2).to_arrow()
    table.delete("word = 'rosebud'")
    records = eventually(lambda: [r for r in recorded(audited.server, object="films") if r.operation == "QueryTable"])
    assert summary(records[0]) == ("administrator", "QueryTable", "films", "ok", 200, None)
    done = [
        summary(r)
        for r in recorded(audited.server, object="films")
        if r.operation in ("CreateTable", "DeleteFromTable")
    ]
    assert done == [
        ("administrator", "CreateTable", "films", "ok", 200, None),
        ("administrator", "DeleteFromTable", "films", "ok", 200, None),
    ]
    assert {r.address for r in recorded(audited.server, object="films")} == {"127.0.0.1"}
    assert {r.method for r in recorded(audited.server, object="films")} != {""}


def test_acknowledged_change_is_recorded_though_the_server_is_killed_at_once(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_AUDIT": "changes"})
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(5):
            assert client.post(f"/v1/namespace/space{number}/create", json={}).status_code == 200
        server.kill()
    assert [record.object for record in recorded(server)] == [f"space{number}" for number in range(5)]


def test_insert_whose_record_cannot_be_written_is_not_acknowledged_and_happens_once(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_AUDIT": "changes"})
    db = lancedb.connect("db://x", api_key="none", host_override=server.url)
    db.create_table("films", ROWS)

    def insert(number: int) -> int:
        headers = {"x-request-id": f"try-{number}", "x-lancedb-database": "x", "x-api-key": "none"}
        kind = {"content-type": "application/vnd.apache.arrow.stream"}
        url = f"{server.url}/v1/table/films/insert/"
        return httpx.post(url, content=stream(ROWS), headers=headers | kind, timeout=60).status_code

    full = "CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
    with closing(sqlite3.connect(tmp_path / "catalog.db", timeout=10)) as catalog:
        catalog.execute(full)
        assert [insert(1), insert(2)] == [503, 503]
        catalog.execute("DROP TRIGGER full")
    assert insert(3) == 200 and db.open_table("films").count_rows() == 6
    assert insert(4) == 200 and db.open_table("films").count_rows() == 9  # meant, since the third was heard of
    server.stop()
    outcomes = [record.outcome for record in recorded(server) if record.operation == "InsertIntoTable"]
    assert outcomes[-2:] == ["repeated", "ok"]


def test_refused_requests_are_recorded_with_what_is_known_of_the_caller(audited: Secured) -> None:
    with audited.http() as anonymous, audited.http("ann") as ann:
        response = anonymous.post("/v1/table/hidden%24t/describe", json={}, headers={"x-request-id": "no-1"})
        assert response.status_code == 401
        response = ann.post("/v1/namespace/anns/create", json={}, headers={"x-request-id": "no-2"})
        assert response.status_code in (403, 404)
    first = eventually(lambda: [r for r in recorded(audited.server) if r.request_id == "no-1"])[0]
    assert summary(first) == ("", "DescribeTable", "hidden$t", "refused", 401, 16)
    second = eventually(lambda: [r for r in recorded(audited.server) if r.request_id == "no-2"])[0]
    assert summary(second) == ("ann", "CreateNamespace", "anns", "refused", 403, 15)


@pytest.mark.parametrize("path", ["%ff%fe", "a%00b", "%ED%A0%80"])
def test_requests_with_invalid_ids_are_answered_and_recorded(audited: Secured, path: str) -> None:
    with audited.http("administrator") as client:
        response = client.post(f"/v1/table/{path}/drop", json={}, headers={"x-request-id": f"odd-{path}"})
        assert (response.status_code, response.json()["code"]) == (400, 13)
    record = eventually(lambda: [r for r in recorded(audited.server) if r.request_id == f"odd-{path}"])[0]
    assert (record.outcome, record.object.isprintable(), "\ufffd" in record.object) == ("failed", True, True)


def test_repeat_with_a_key_is_recorded_as_repeated(audited: Secured) -> None:
    with audited.http("administrator") as client:
        for _ in range(2):
            done = client.post("/v1/namespace/once/create", json={}, headers={"idempotency-key": "k1"})
            assert done.status_code == 200
    assert [r.outcome for r in recorded(audited.server, object="once")] == ["ok", "repeated"]


def test_audit_has_context_entries_without_their_secrets(audited: Secured) -> None:
    headers = {"x-lance-ctx-job": "nightly", "x-lance-ctx-password": "hunter2"}
    with audited.http("administrator") as client:
        body = {"context": {"step": "3"}, "properties": {"owner": "hunter2"}}
        assert client.post("/v1/namespace/context/create", json=body, headers=headers).status_code == 200
    (record,) = recorded(audited.server, object="context")
    assert record.context == {"job": "nightly", "password": "…", "step": "3"}


def test_response_that_breaks_off_is_recorded_as_cut(audited: Secured) -> None:
    wide = pa.table({"text": ["x" * 1000] * 60_000})
    with audited.http("administrator") as client:
        created = client.post("/v1/table/wide/create", content=stream(wide, most_rows=5000))
        assert created.status_code == 200
        query = {"vector": None, "k": 60_000, "columns": {"column_names": ["text"]}}
        with client.stream("POST", "/v1/table/wide/query", json=query, headers={"x-request-id": "cut-1"}) as response:
            assert response.status_code == 200
            next(response.iter_raw())
    record = eventually(lambda: [r for r in recorded(audited.server) if r.request_id == "cut-1"])[0]
    assert summary(record) == ("administrator", "QueryTable", "wide", "cut", 200, None)


def test_audit_endpoint_is_for_administrators_and_pages(audited: Secured) -> None:
    with audited.http("administrator") as admin, audited.http("ann") as ann:
        for number in range(3):
            assert admin.post(f"/v1/namespace/paged{number}/create", json={}).status_code == 200
        refused = ann.post("/tiltyard/v1/audit", json={})
        assert (refused.status_code, refused.json()["code"]) == (403, 15)
        objects, token = [], None
        while not objects or token:
            request = {"operation": "CreateNamespace", "principal": "administrator", "limit": 2, "page_token": token}
            page = admin.post("/tiltyard/v1/audit", json=request).json()
            objects += [record["object"] for record in page["records"]]
            token = page.get("page_token")
        assert [name for name in objects if name.startswith("paged")] == ["paged2", "paged1", "paged0"]
        assert admin.get("/tiltyard/v1/audit", params={"outcome": "perhaps"}).json()["code"] == 13


def test_lines_equal_the_records_of_the_database(audited: Secured, lines: Path) -> None:
    with audited.http("administrator") as client:
        assert client.post("/v1/namespace/lined/create", json={}).status_code == 200
    (entry,) = [json.loads(line) for line in lines.read_text().splitlines() if '"lined"' in line]
    (record,) = recorded(audited.server, object="lined")
    assert (entry["record_id"], entry["at_millis"], entry["principal"]) == (record.id, record.at, "administrator")


def audit_command(root: Path | str, *flags: str) -> subprocess.CompletedProcess[str]:
    return run_tiltyard("audit", "--root", str(root), *flags)


def test_audit_command_filters_and_prints_json_oldest_first(audited: Secured) -> None:
    with audited.http("administrator") as client:
        for name in ("cli", "cli$below"):
            assert client.post(f"/v1/namespace/{name.replace('$', '%24')}/create", json={}).status_code == 200
    result = audit_command(audited.server.root, "--object", "cli", "--since", "1h", "--json")
    assert [json.loads(line)["object"] for line in result.stdout.splitlines()] == ["cli", "cli$below"]
    assert (
        "administrator 127.0.0.1 CreateNamespace cli " in audit_command(audited.server.root, "--object", "cli").stdout
    )
    assert audit_command(audited.server.root, "--object", "cli", "--until", "1h").stdout == ""
    refused = audit_command(audited.server.root, "--since", "yesterday")
    assert (refused.returncode, refused.stderr.startswith("tiltyard: 'yesterday' is not a time")) == (1, True)


def test_audit_command_that_follows_prints_new_records(audited: Secured) -> None:
    options = ["--root", str(audited.server.root), "--follow", "--json", "--object", "followed"]
    following = start_tiltyard("audit", *options)
    try:
        with audited.http("administrator") as client:
            for name in ("followed", "followed$on"):
                assert client.post(f"/v1/namespace/{name.replace('$', '%24')}/create", json={}).status_code == 200
                assert json.loads(following.stdout.readline())["object"] == name
    finally:
        following.terminate()
        following.wait(10)


@pytest.mark.parametrize("level", ["off", "auto"])
def test_server_without_auth_keeps_no_audit_by_default(tmp_path: Path, level: str) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_AUDIT": level})
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.post("/v1/namespace/quiet/create", json={}).status_code == 200
    assert server.stop() == 0
    assert recorded(server) == []


def test_progress_of_a_job_is_not_audited_as_a_change_but_the_job_is(tmp_path: Path) -> None:
    environ = {"TILTYARD_AUDIT": "changes"}
    server = ServerProcess(tmp_path, environ=environ)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        submitted = client.post("/tiltyard/v1/job/submit", json={"name": "export", "owner": "me", "arguments": {}})
        job_id = submitted.json()["job"]["id"]
        paths = ("beat", "keep", "finish")
        bodies = ({"owner": "me"}, {"owner": "me", "name": "a", "value": "1"}, {"owner": "me", "status": "Failed"})
        for path, body in zip(paths, bodies, strict=True):
            response = client.post(f"/tiltyard/v1/job/{job_id}/{path}", json=body)
            assert response.status_code == 200, response.text
    server.stop()
    assert [record.operation for record in recorded(server)] == ["SubmitJob", "FinishJob"]
