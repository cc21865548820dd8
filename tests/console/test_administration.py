"""Access in the console: principals, keys, roles, grants and policies, seeing as somebody else, and the audit."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.console.test_sign_in import PATIENCE_SECONDS, sign_in
from tests.services.console_data import SCRIPT, make_tables
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.console.access.audit import BARS, count_by_time
from tiltyard.model.spec import operations

CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
SECRET = re.compile(r"tilt_[0-9a-f]{16}_[\w-]{43}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("administration"), names=("ann",)) as running:
        make_tables(running.url, running.keys["administrator"])
        yield running


@pytest.fixture(scope="module")
def admin(secured: Secured) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60, follow_redirects=True) as client:
        sign_in(client, secured.keys["administrator"])
        yield client


@pytest.fixture(scope="module")
def ann(secured: Secured) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60, follow_redirects=True) as client:
        sign_in(client, secured.keys["ann"])
        yield client


def act(client: httpx.Client, address: str, **fields: Any) -> httpx.Response:
    token = CSRF.search(client.get("/").text)
    assert token is not None
    return client.post(address, data={"csrf": token[1], **fields})


def words(response: httpx.Response) -> str:
    """Return the text of a page's main part, without tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.text.partition("<main")[2])).split())


def audited(secured: Secured, **fields: Any) -> list[dict[str, Any]]:
    with secured.http("administrator") as http:
        records: list[dict[str, Any]] = http.post("/tiltyard/v1/audit", json={"limit": 1000, **fields}).json()[
            "records"
        ]
        return records


def test_principal_is_added_promoted_and_disabled(admin: httpx.Client, secured: Secured) -> None:
    assert words(act(admin, "/access", action="add", principal="dora")).count("dora") >= 1
    assert "End being an administrator" in words(act(admin, "/access", action="promote", principal="dora"))
    assert "Make an administrator" in words(act(admin, "/access", action="demote", principal="dora"))
    assert "dora disabled" in words(act(admin, "/access", action="disable", principal="dora"))
    assert re.search("dora what is granted .* ago|dora disabled", words(admin.get("/access")))
    changes = [record for record in audited(secured, operation="AlterPrincipal") if record["outcome"] == "ok"]
    assert len(changes) == 4 and {record["principal"] for record in changes} == {"administrator"}
    locked = act(admin, "/access", action="disable", principal="administrator")
    assert locked.status_code == 400 and "lock you out" in locked.text


def keys_of(secured: Secured, principal: str) -> list[Any]:
    with secured.http("administrator") as http:
        listed = send(http, operations()["ListApiKeys"], {"principal": principal}).json()["keys"]
        return [key for key in listed if key.get("revoked_at_millis") is None]


def test_new_key_is_in_one_response_alone_and_signs_in_until_it_is_revoked(
    admin: httpx.Client, secured: Secured
) -> None:
    created = act(admin, "/access/keys", action="create", principal="carl", note="a laptop", days="30")
    secret = SECRET.search(created.text)
    assert secret is not None and created.status_code == 200 and created.headers["cache-control"] == "no-store"
    addresses = [created.url, *(step.headers["location"] for step in created.history)]
    assert not [address for address in addresses if secret[0] in str(address)]
    again = admin.get(str(created.url))  # a reload
    assert again.status_code == 200 and "was shown" in again.text and not SECRET.search(again.text)
    assert len(keys_of(secured, "carl")) == 1
    key_id = secret[0].split("_")[1]
    listed = admin.get("/access/keys?of=carl")
    assert key_id in listed.text and "a laptop" in listed.text and not SECRET.search(listed.text)
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as carl:
        assert sign_in(carl, secret[0]).status_code == 303
    rotated = act(admin, "/access/keys", action="rotate", key=key_id, hours="0")
    following = SECRET.search(rotated.text)
    assert following is not None and following[0] != secret[0] and "which ends in 0 hours" in words(rotated)
    assert "revoked" in words(act(admin, "/access/keys", action="revoke", key=following[0].split("_")[1], of="carl"))
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as carl:
        assert sign_in(carl, following[0]).status_code == 401
    assert not [line for line in json.dumps(audited(secured)).split() if SECRET.search(line)]


def test_role_gets_members_and_grants(admin: httpx.Client) -> None:
    act(admin, "/access/roles", action="create", role="critics")
    again = act(admin, "/access/roles", action="create", role="critics")
    assert again.status_code == 400 and "already" in again.text and 'value="critics"' in again.text
    assert "ann Remove" in words(act(admin, "/access/roles", action="add", role="critics", member="ann"))
    granted = act(admin, "/access/grants/media", action="grant", kind="namespace", to="critics", to_kind="role",
                  privilege=["use", "read"])  # fmt: skip
    assert granted.status_code == 200 and "critics role use read" in words(granted)
    assert "media namespace use read" in words(admin.get("/access/grants?grantee=critics&grantee_kind=role"))
    assert "critics" in words(admin.get("/access/principal?name=ann"))
    revoked = act(admin, "/access/grants/media", action="revoke", kind="namespace", to="critics", to_kind="role",
                  privilege=["use", "read"])  # fmt: skip
    assert "critics" not in words(revoked)
    assert "No members" in words(act(admin, "/access/roles", action="remove", role="critics", member="ann"))
    assert "No roles yet" in words(act(admin, "/access/roles", action="drop", role="critics"))


@pytest.fixture
def policy(admin: httpx.Client) -> Iterator[None]:
    """Let ann read the films since 2000, without titles, and with the genre hidden."""
    act(admin, "/access/grants/cinema", action="grant", kind="namespace", to="ann", privilege=["read"])
    masks = "title: concat('T', cast(id as string))\ngenre: hide"
    done = act(admin, "/policies/cinema/films", action="set", name="recent", filter="year >= 2000", masks=masks)
    assert done.status_code == 200, done.text
    yield
    assert "None: whoever may read" in words(act(admin, "/policies/cinema/films", action="drop", name="recent"))
    act(admin, "/access/grants/cinema", action="revoke", kind="namespace", to="ann", privilege=["read"])


@pytest.mark.usefixtures("policy")
def test_see_as_shows_rows_within_policies_and_is_the_administrators_act(admin: httpx.Client, secured: Secured) -> None:
    shown = admin.get("/see-as/cinema/films?principal=ann")
    text, grid = words(shown), shown.text.partition('id="rows-title"')[2]
    assert "Rows 40 of 200" in text and "year >= 2000" in text and "genre is hidden" in text
    assert "Film " not in grid and "drama" not in grid.partition("text")[0] and ">T80<" in grid
    years = [int(year) for year in re.findall(r'<td class="num">(20\d\d|19\d\d)</td>', grid)]
    assert len(years) == 25 and min(years) >= 2000
    with secured.http("ann") as http:  # nobody can say so of themselves
        http.post("/v1/table/cinema$films/drop", json={"context": {"see_as": "bob", "why": "x"}})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (forged := audited(secured, principal="ann", operation="DropTable")):
        assert time.monotonic() < deadline
    assert [record["context"] for record in forged] == [{"why": "x"}]
    mine = [record for record in audited(secured) if record["request_id"] == shown.headers["x-request-id"]]
    seen = [record for record in mine if record.get("context") == {"see_as": "ann"}]
    assert {record["operation"] for record in seen} >= {"DescribeTable", "QueryTable"}
    assert {(record["principal"], record["outcome"]) for record in seen} == {("administrator", "ok")}


def test_map_of_many_rows_is_of_the_first_ones_where_a_policy_hides_some(
    admin: httpx.Client, ann: httpx.Client, secured: Secured
) -> None:
    rows = pa.table(
        {"n": range(2_100), "v": pa.array([[1.0 * n, 2.0] for n in range(2_100)], pa.list_(pa.float32(), 2))}
    )
    with secured.wire("administrator") as wire:
        wire.good(wire.table(["empty", "lines"], "create", stream(rows)))
    act(admin, "/access/grants/empty", action="grant", kind="namespace", to="ann", privilege=["read"])
    assert act(admin, "/policies/empty/lines", action="set", name="p", filter="n >= 10").status_code == 200
    texts = [client.get("/map-points/empty/lines", headers={"hx-request": "true"}).text for client in (ann, admin)]
    assert "2,000 rows out of 2,090, the first ones" in texts[0] and "taken at equal distances" in texts[1]


@pytest.mark.usefixtures("policy")
def test_map_is_within_policies(ann: httpx.Client) -> None:
    data = ann.get("/map-points/cinema/films?color=title", headers={"hx-request": "true"}).text
    assert "40 rows" in data and "Film " not in data and "T180" in data
    row = ann.get("/map-row/cinema/films?row=85", headers={"hx-request": "true"}).text
    assert "T85" in row and "Film" not in row and "drama" not in row and "masked" in row
    assert "This row is gone" in ann.get("/map-row/cinema/films?row=1", headers={"hx-request": "true"}).text
    assert ann.get("/map-points/cinema/films?color=genre", headers={"hx-request": "true"}).status_code == 400


@pytest.mark.usefixtures("policy")
def test_see_as_tells_what_a_principal_would_be_told(admin: httpx.Client, ann: httpx.Client) -> None:
    stranger = admin.get("/see-as/cinema/films?principal=stranger")
    assert stranger.status_code == 200 and "does not exist for it" in stranger.text
    assert "Film " not in stranger.text.partition("<main")[2]
    assert admin.get("/see-as/cinema/films").status_code == 400
    assert admin.get("/see-as/cinema/nothing?principal=ann").status_code == 404
    refused = ann.get("/see-as/cinema/films?principal=administrator")
    assert refused.status_code == 403 and "Film " not in refused.text


@pytest.mark.usefixtures("policy")
def test_reader_without_rights_sees_their_own_access_alone(ann: httpx.Client) -> None:
    own = ann.get("/access")
    assert "ann you" in words(own) and "cinema namespace read" in words(own) and "Audit" not in own.text
    table = ann.get("/policies/cinema/films")
    assert "A policy of this table binds you" in words(table) and "year &gt;= 2000" not in table.text
    for address in ("/audit", "/access/roles", "/access/principal?name=administrator", "/audit/export"):
        assert ann.get(address).status_code == 403, address
    assert "administrator" not in words(ann.get("/access/keys?of=administrator")).replace("An administrator", "")
    assert ann.get("/access/grants").status_code == 403
    act(ann, "/access", action="promote", principal="ann")
    assert "End being an administrator" not in words(ann.get("/access"))


def test_calls_are_approved_by_another_on_the_page_and_erasures_have_their_report(
    secured: Secured, admin: httpx.Client, ann: httpx.Client
) -> None:
    people = {"id": ["vault", "people"]}
    with secured.http("administrator") as http, secured.http("ann") as by_ann:
        rows = stream(pa.table({"id": [1, 2], "mail": ["ann@example.org", "bob@example.org"]}))
        grant = {"object_kind": "table", **people, "grantee": "ann", "privileges": ["use", "drop"]}
        needs = {"object_kind": "table", **people, "kind": "approval", "operations": ["DropTable"]}
        assert http.post("/v1/namespace/vault/create", json={}).status_code == 200
        assert http.post("/v1/table/vault$people/create", content=rows).status_code == 200
        erase = {"predicate": "id = 1", "values_of": ["mail"], "reference": "request 4711"}
        erasure = http.post("/tiltyard/v1/table/vault$people/erase", json=erase).json()["erasure_id"]
        for path, body in (("grant/add", grant), ("protection/set", needs)):
            assert http.post(f"/tiltyard/v1/{path}", json=body).status_code == 200

        def drop() -> int:
            return by_ann.post("/v1/table/vault$people/drop", json={}).status_code

        assert drop() == 403
        listed = http.post("/tiltyard/v1/approval/list", json={}).json()["approvals"]
        [request] = [each["id"] for each in listed]
        own = ann.get("/access/approvals")
        assert "another principal decides" in words(own) and 'value="approve"' not in own.text
        refused = act(ann, "/access/approvals", action="approve", id=request)
        assert refused.status_code == 403 and drop() == 403
        assert "Approve DropTable of ann" in words(admin.get("/access/approvals"))
        decided = act(admin, "/access/approvals", action="approve", id=request)
        assert "approved by administrator" in words(decided) and "Approve DropTable" not in words(decided)
        assert "make the same call again" in words(ann.get("/access/approvals"))
        again = act(admin, "/access/approvals", action="deny", id=request)
        assert again.status_code == 400 and "approved already" in again.text
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "complete" not in words(admin.get(f"/access/erasure?id={erasure}")):
            assert time.monotonic() < deadline
        shown = words(admin.get(f"/access/erasure?id={erasure}"))
        assert "as it was signed" in shown and "request 4711" in shown and "ann@example.org" not in shown
        assert "vault / people" in words(admin.get("/access/erasures"))
        assert "No erasures" in words(ann.get("/access/erasures"))
        assert "as it was signed" not in words(ann.get(f"/access/erasure?id={erasure}"))
        assert drop() == 200
        assert "used" in words(ann.get("/access/approvals"))


def test_quotas_are_set_dropped_and_shown_with_what_is_used(
    secured: Secured, admin: httpx.Client, ann: httpx.Client
) -> None:
    with secured.http("administrator") as http:
        grant = {"object_kind": "namespace", "id": ["limited"], "grantee": "ann", "privileges": ["use"]}
        for path, body in (
            ("/v1/namespace/limited/create", {}),
            ("/v1/table/limited$t/declare", {}),
            ("/tiltyard/v1/grant/add", grant),
        ):
            assert http.post(path, json=body).status_code == 200
    assert "No quotas" in words(ann.get("/access/quotas"))
    limits = {"owner_kind": "namespace", "owner": "limited", "resource": "tables", "soft": "1", "hard": "1 000"}
    refused = act(ann, "/access/quotas", action="set", **limits)
    assert refused.status_code == 403 and "No quotas" in words(refused)
    shown = words(act(admin, "/access/quotas", action="set", **limits))
    assert "limited namespace tables" in shown and "1,000 above soft set by administrator" in shown
    assert "limited namespace tables" in words(ann.get("/access/quotas")), "ann reads what is in it"
    assert "Drop tables of limited" not in words(ann.get("/access/quotas"))
    act(admin, "/access/quotas", action="set", owner_kind="principal", owner="bob", resource="jobs", hard="3")
    assert "bob" not in words(ann.get("/access/quotas"))
    wrong = act(admin, "/access/quotas", action="set", **limits | {"hard": "many"})
    assert wrong.status_code == 400 and "A limit is a whole number, not 'many'" in words(wrong)
    assert 'value="limited"' in wrong.text, "what was entered is there again"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "ann" not in admin.get("/access/usage/export").text:
        assert time.monotonic() < deadline
    saved = admin.get("/access/usage/export?days=7")
    assert saved.headers["content-type"].startswith("text/csv")
    head, *lines = saved.text.splitlines()
    assert head == "day,principal,namespace,requests,rows_written,tables,bytes"
    assert any(line.split(",")[1:3] == ["administrator", "limited"] for line in lines)
    own = ann.get("/access/usage/export?days=7").text
    assert "administrator" not in own and ",ann," in own
    assert ann.get("/access/quotas?days=93").status_code == 400
    for kind, owner, resource in (("namespace", "limited", "tables"), ("principal", "bob", "jobs")):
        act(admin, "/access/quotas", action="drop", owner_kind=kind, owner=owner, resource=resource)
    assert "No quotas" in words(admin.get("/access/quotas"))


def test_server_is_shown_to_administrators_and_to_readers_on_its_machine(
    admin: httpx.Client, ann: httpx.Client
) -> None:
    through_proxy = {"x-forwarded-for": "203.0.113.9"}
    for address in ("/server", "/server/storage"):
        assert admin.get(address, headers=through_proxy).status_code == 200
        assert ann.get(address).status_code == 200  # as /metrics is
        refused = ann.get(address, headers=through_proxy)
        assert refused.status_code == 403 and "for administrators" in refused.text
    assert "media" not in ann.get("/server/storage").text and 'value="collect"' not in ann.get("/server").text
    assert act(ann, "/server", action="collect").status_code == 403


@pytest.mark.parametrize(
    ("address", "fields", "status", "message"),
    [
        ("/access", {"action": "explode"}, 400, "no action"),
        ("/access", {"action": "add", "principal": ""}, 400, "Enter the principal"),
        ("/access/keys", {"action": "create", "principal": "a:b"}, 400, "provider"),
        ("/access/keys", {"action": "create", "principal": "x", "days": "many"}, 400, "whole number"),
        ("/access/keys", {"action": "revoke", "key": "0123"}, 400, "There is no key"),
        ("/access/grants", {"action": "grant", "kind": "server", "to": "ann"}, 400, "at least one privilege"),
        ("/access/grants", {"action": "grant", "kind": "moon", "to": "ann"}, 400, "not on &#39;moon&#39;"),
        ("/access/grants/no", {"action": "grant", "kind": "table", "to": "a", "privilege": "read"}, 404, "no"),
        ("/policies/cinema/films", {"action": "set", "name": "p", "filter": "year >"}, 400, "filter"),
        ("/policies/cinema/films", {"action": "set", "name": "p", "masks": "title"}, 400, "A mask is a line"),
    ],
)
def test_wrong_change_of_access_is_said_and_loses_nothing(
    admin: httpx.Client, address: str, fields: dict[str, str], status: int, message: str
) -> None:
    response = act(admin, address, **fields)
    assert response.status_code == status and message in response.text and "Traceback" not in response.text
    assert all(unescape(value) in unescape(response.text) for name, value in fields.items() if name == "filter")
    assert admin.post(address, data=fields).status_code == 403  # without the token


def test_audit_is_filtered_and_exported_without_formulas_and_markup(admin: httpx.Client, secured: Secured) -> None:
    act(admin, "/access", action="add", principal=SCRIPT)
    act(admin, "/access/roles", action="create", role="=1+1")
    with secured.http() as stranger:
        stranger.post("/v1/table/%3Dcmd%7Cx$y/describe", json={})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "=cmd|x$y" not in {record["object"] for record in audited(secured, outcome="refused")}:
        assert time.monotonic() < deadline
    page = admin.get("/audit?outcome=refused")
    assert "=cmd|x / y" in words(page) and "CreateRole" not in words(page)
    rows = list(csv.reader(io.StringIO(admin.get("/audit/export?outcome=refused").text)))
    assert any("'=cmd|x$y" in row for row in rows[1:]) and not any(cell.startswith("=") for row in rows for cell in row)
    lines = [json.loads(line) for line in admin.get("/audit/export?format=jsonl&outcome=refused").text.splitlines()]
    assert len(lines) == len(rows) - 1 and "=cmd|x$y" in {line["object"] for line in lines}
    chart = admin.get("/audit/chart?outcome=refused", headers={"hx-request": "true"}).text
    data = json.loads(re.findall(r"data-chart='([^']*)'", chart)[0])
    assert sum(data["series"][0]["values"]) == len(lines) and data["series"][0]["label"] == "refused"
    assert SCRIPT not in admin.get("/access").text
    for wrong in ("/audit?since=yesterday", "/audit?outcome=great", "/audit?cursor=x"):
        response = admin.get(wrong)
        assert response.status_code == 400 and 'role="alert"' in response.text
    assert admin.get("/audit/export?format=xml").status_code == 400


def test_records_are_counted_by_time_in_a_bounded_number_of_intervals() -> None:
    hour = 3_600_000
    moments = [(hour * number, "ok" if number % 2 else "failed") for number in range(1000, 900, -1)]
    chart = count_by_time(moments, None, None, hour * 1000)
    assert len(chart["x"]) <= BARS and sum(sum(series["values"]) for series in chart["series"]) == 100
    assert [series["label"] for series in chart["series"]] == ["ok", "failed"] and chart["x"][0] <= 901 * 3600
    assert count_by_time([], None, None, 0) == {"x": [], "span": 0, "series": []}
    old = count_by_time([(0, "ok")], 0, None, 1 << 53)
    assert len(old["x"]) <= 10 * BARS
