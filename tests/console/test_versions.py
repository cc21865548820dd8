"""Versions in the console: the timeline, two versions compared, tags, branches, and restoring one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import httpx
import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.console.versions import comparison
from tiltyard.console.versions.timeline import is_within
from tiltyard.model.spec import models, operations

CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
PATH = ("cinema", "plays")


def call(server: ServerProcess, operation: str, **fields: object) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        response = send(client, operations()[operation], {"id": list(PATH), **fields})
        assert response.status_code == 200, response.text


@pytest.fixture
def plays(server: ServerProcess) -> Iterator[None]:
    """Make a table of three versions: 5 rows, without 2 of them, one of the others changed."""
    rows = pa.table({"id": pa.array(range(5), pa.int64()), "title": [f"Play {number}" for number in range(5)]})
    with Wire(server.url) as wire:
        wire.good(wire.table(PATH, "create", stream(rows)))
        call(server, "DeleteFromTable", predicate="id < 2")
        call(server, "UpdateTable", updates=[["title", "'Hamlet'"]], predicate="id = 4")
        yield
        wire.good(wire.table(PATH, "drop"))


def act(http: httpx.Client, **fields: str) -> httpx.Response:
    token = CSRF.search(http.get("/jobs/start", params={"name": "delete"}).text)
    assert token is not None
    return http.post("/versions/cinema/plays", data={"csrf": token[1], **fields}, follow_redirects=True)


def words(response: httpx.Response) -> str:
    """Return the text of a page's main part, without tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.text.partition("<main")[2])).split())


def entries(response: httpx.Response) -> list[str]:
    """Return the text of each entry of the timeline."""
    inner = response.text.partition('<ol class="timeline">')[2].partition("</ol>")[0]
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", each)).split()) for each in inner.split("<li>")[1:]]


@pytest.mark.usefixtures("plays")
def test_timeline_says_what_each_version_added_and_removed(http: httpx.Client) -> None:
    newest, deleted, first = entries(http.get("/versions/cinema/plays"))
    assert newest.startswith("Version 3 latest") and "update · 1 row rewritten · 3 rows" in newest
    assert "Restore" not in newest
    assert "delete · 2 deleted · 3 rows" in deleted and "Restore" in deleted
    assert "create · 5 inserted · 5 rows" in first and "What changed" not in first


@pytest.mark.usefixtures("plays")
def test_versions_are_compared_by_rows_that_only_one_has(http: httpx.Client) -> None:
    text = words(http.get("/compare/cinema/plays", params={"old": "v1", "new": "v3"}))
    assert "Rows before 5 Rows after 3 Only after 1 Only before 3" in text and "The columns are the same." in text
    added, _, removed = text.partition("Only in version 3")[2].partition("Only in version 1")
    assert "Hamlet" in added and "Play 4" not in added
    assert all(f"Play {number}" in removed for number in (0, 1, 4)) and "Play 2" not in removed
    assert "The rows are the same." in words(http.get("/compare/cinema/plays?old=v3&new=v3"))


@pytest.mark.usefixtures("plays")
def test_columns_of_two_versions_are_compared(http: httpx.Client, server: ServerProcess) -> None:
    call(server, "AlterTableDropColumns", columns=["title"])
    text = words(http.get("/compare/cinema/plays", params={"old": "v3", "new": "v4"}))
    assert re.search("title (string|utf8) \N{EN DASH}", text) and "The rows are the same." in text
    assert re.search("title \N{EN DASH} (string|utf8)", words(http.get("/restore/cinema/plays?version=3")))


@pytest.mark.usefixtures("plays")
def test_restore_asks_and_makes_a_new_version(http: httpx.Client) -> None:
    question = words(http.get("/restore/cinema/plays?version=1"))
    assert "Restore version 1?" in question and "5 rows instead of 3 rows" in question
    assert len(entries(http.get("/versions/cinema/plays"))) == 3
    restored = entries(act(http, action="restore", version="1"))
    assert restored[0].startswith("Version 4 latest") and "5 rows" in restored[0]


@pytest.mark.usefixtures("plays")
def test_tags_are_created_shown_and_deleted(http: httpx.Client) -> None:
    assert "Version 2 opening" in entries(act(http, action="create-tag", tag="opening", version="2"))[1]
    again = act(http, action="create-tag", tag="opening", version="1")
    assert again.status_code == 409 and "exists already" in again.text and 'value="opening"' in again.text
    assert "opening" not in words(act(http, action="delete-tag", tag="opening"))


@pytest.mark.usefixtures("plays")
def test_branches_are_created_compared_and_deleted(http: httpx.Client, server: ServerProcess) -> None:
    assert "draft from version 3" in words(act(http, action="create-branch", name="draft"))
    call(server, "DeleteFromTable", predicate="id = 3", branch="draft")
    text = words(http.get("/branch/cinema/plays?name=draft"))
    assert "Rows on main 3 Rows on the branch 2" in text
    assert "Timeline of the branch draft" in words(http.get("/versions/cinema/plays?at=branch:draft"))
    assert "draft" not in words(act(http, action="delete-branch", name="draft"))


def test_rows_of_large_tables_are_counted_and_not_compared(http: httpx.Client, server: ServerProcess) -> None:
    rows = pa.table({"id": pa.array(range(comparison.MAX_ROWS + 1), pa.int32())})
    with Wire(server.url) as wire:
        wire.good(wire.table(["cinema", "tickets"], "create", stream(rows)))
        try:
            text = words(http.get("/compare/cinema/tickets?old=v1&new=v1"))
        finally:
            wire.good(wire.table(["cinema", "tickets"], "drop"))
    assert "Rows before 20,001" in text and "tiltyard diff" in text and "The rows are the same" not in text


def test_digests_are_of_values_whatever_the_order_of_columns() -> None:
    batch = pa.RecordBatch.from_pydict({"b": [1.5, float("nan")], "a": ["x", None]})
    digests = list(comparison._digests(batch))
    assert digests == list(comparison._digests(batch.select(["a", "b"]))) and len(set(digests)) == 2


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/compare/cinema/plays?old=v99&new=v1", 404, "99"),
        ("/compare/cinema/plays?old=three", 400, "names no version"),
        ("/restore/cinema/plays?version=99", 404, "99"),
        ("/restore/cinema/plays", 400, "Which version?"),
        ("/branch/cinema/plays?name=none", 404, "none"),
        ("/branch/cinema/plays", 400, "needs a name"),
        ("/versions/cinema/nothing", 404, "nothing"),
        ("/versions/cinema/plays?cursor=x", 400, "page"),
    ],
)
@pytest.mark.usefixtures("plays")
def test_wrong_version_is_said(http: httpx.Client, address: str, status: int, message: str) -> None:
    response = http.get(address)
    assert response.status_code == status and message in response.text and "Traceback" not in response.text


@pytest.mark.usefixtures("plays")
def test_wrong_change_is_refused(http: httpx.Client) -> None:
    assert act(http, action="explode").status_code == 400
    assert act(http, action="create-tag", tag="x", version="99").status_code == 400
    assert act(http, action="restore", version="0").status_code == 400
    assert http.post("/versions/cinema/plays", data={"action": "restore", "version": "1"}).status_code == 403
    assert len(entries(http.get("/versions/cinema/plays"))) == 3


def test_record_of_the_audit_is_matched_by_its_time() -> None:
    deletion = models.AuditEntry(
        address="",
        at_millis=1000,
        duration_micros=50_000,
        method="key",
        object="cinema.plays",
        operation="DeleteFromTable",
        outcome="ok",
        principal="ann",
        record_id="1",
        request_id="1",
        status=200,
    )
    matches = {millis: is_within(deletion, millis) for millis in (900, 1000, 1050, 1100, None)}
    assert matches == {900: False, 1000: True, 1050: True, 1100: False, None: False}
