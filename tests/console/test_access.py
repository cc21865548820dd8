"""What a signed-in person sees: rows and columns within policies, calls in the audit, and limits like any client's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import pytest

from tests.console.test_sign_in import PATIENCE_SECONDS, sign_in
from tests.services.console_data import make_tables
from tests.services.secured import Secured, secured_server

FILMS = "cinema$films"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    environ = {
        "TILTYARD_AUDIT": "all",
        "TILTYARD_RATE_LIMITS": json.dumps({"slow": 1}),
        "TILTYARD_EMBEDDINGS": json.dumps({"counter": "tests.services.console_embedding:embed"}),
    }
    with secured_server(tmp_path_factory.mktemp("access"), environ=environ, names=("ann", "slow")) as running:
        make_tables(running.url, running.keys["administrator"])
        with running.http("administrator") as http:
            grant = {"object_kind": "namespace", "id": ["cinema"], "grantee": "ann", "privileges": ["read"]}
            policy = {
                "name": "recent",
                "filter": "year >= 2000",
                "masks": [{"column": "title", "mask": "null"}, {"column": "genre", "mask": "hide"}],
            }
            for path, body in (("grant/add", grant), (f"table/{FILMS}/policy/set", policy)):
                response = http.post(f"/tiltyard/v1/{path}", json=body)
                assert response.status_code == 200, response.text
            index = {"column": "text", "index_type": "FTS"}
            assert http.post(f"/v1/table/{FILMS}/create_index", json=index).status_code == 200
        yield running


@pytest.fixture
def ann(secured: Secured) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as client:
        sign_in(client, secured.keys["ann"])
        yield client


@pytest.fixture
def administrator(secured: Secured) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as client:
        sign_in(client, secured.keys["administrator"])
        yield client


def test_indexes_that_a_reader_may_not_list_are_not_counted_as_none(
    ann: httpx.Client, administrator: httpx.Client
) -> None:
    def figures(client: httpx.Client) -> dict[str, str]:
        text = client.get("/table/cinema/films").text
        return dict(re.findall(r"<dt>(Indexes|Tags|Branches)</dt><dd>([^<]*)", text))

    assert figures(administrator)["Indexes"] == "1"
    assert figures(ann) == dict.fromkeys(("Indexes", "Tags", "Branches"), "\N{EN DASH}")
    assert "Not shown to you" in ann.get("/table/cinema/films").text
    assert "needs a full-text index" not in ann.get("/search/cinema/films").text


def test_rows_of_a_view_are_shown_without_columns_that_a_policy_hides(ann: httpx.Client, secured: Secured) -> None:
    with secured.http("administrator") as http:
        view = http.post("/v1/view/cinema$every/create", json={"query": "SELECT * FROM cinema.films"})
        assert view.status_code == 200, view.text
        try:
            page = ann.get("/rows/cinema/every?size=100&column=id&column=genre&column=year")
        finally:
            http.post("/v1/view/cinema$every/drop", json={})
    assert page.status_code == 200 and "hidden" in page.text, page.text
    years = [int(year) for year in re.findall(r">((?:19|20)\d\d)<", page.text)]
    assert years and min(years) >= 2000


def test_rows_are_those_that_the_policy_shows_and_masked_columns_say_so(ann: httpx.Client) -> None:
    text = ann.get("/rows/cinema/films?size=100&column=title&column=genre&column=year").text
    assert "policy applies" in text
    text = text.partition('id="grid"')[2]
    years = {int(year) for year in re.findall(r'<td class="num">(\d+)</td>', text)}
    assert years and min(years) >= 2000
    assert text.count(">masked</td>") == 2 * text.count('<td class="num">')
    assert "Film 1" not in text and "drama" not in text


def test_download_has_no_more_than_the_page(ann: httpx.Client) -> None:
    lines = [json.loads(line) for line in ann.get("/download/cinema/films?format=jsonl").text.splitlines()]
    assert len(lines) == 40 and {line["title"] for line in lines} == {None}
    assert not any("genre" in line for line in lines)


@pytest.mark.parametrize(
    "address",
    [
        "/rows/cinema/films?filter=genre+%3D+'drama'",
        "/rows/cinema/films?order=title",
        "/rows/cinema/films?at=v999",
        "/search/cinema/films?text=drama",
        "/bytes/cinema/films?column=genre&row=1",
        "/table/media/pictures",
        "/cell/media/pictures?column=picture&row=1",
    ],
)
def test_policies_and_grants_hold_on_every_page(ann: httpx.Client, address: str) -> None:
    response = ann.get(address)
    assert response.status_code in (400, 403, 404) or "chip bad" in response.text, response.text[:500]
    assert "Film 1" not in response.text and "IHDR" not in response.text


def test_calls_of_a_page_are_in_the_audit_with_its_request_id(ann: httpx.Client, secured: Secured) -> None:
    response = ann.get("/rows/cinema/films")
    request_id = response.headers["x-request-id"]
    with secured.http("administrator") as http:
        deadline = time.monotonic() + PATIENCE_SECONDS
        mine: list[dict[str, Any]] = []
        while not {"DescribeTable", "QueryTable", "ListNamespaces"} <= {record["operation"] for record in mine}:
            assert time.monotonic() < deadline, mine
            records = http.post("/tiltyard/v1/audit", json={"principal": "ann", "limit": 1000}).json()["records"]
            mine = [record for record in records if record["request_id"] == request_id]
        assert {record["method"] for record in mine} == {"session"}
        refused = http.post("/tiltyard/v1/audit", json={"operation": "SignIn", "limit": 10}).json()["records"]
        assert all(record["status"] in (303, 401) for record in refused)


def test_pages_count_for_the_rate_limit_of_their_reader(secured: Secured) -> None:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as client:
        sign_in(client, secured.keys["slow"])
        responses = [client.get("/") for _ in range(12)]
        refused = [response for response in responses if response.status_code == 429]
        assert refused and "Wait a moment" in refused[0].text and "retry-after" in refused[0].headers


def test_search_by_words_shows_scores_best_first(administrator: httpx.Client) -> None:
    text = administrator.get("/search/cinema/films", params={"text": "horror", "size": "25"}).text.partition("<main")[2]
    scores = [float(score) for score in re.findall(r'<td class="num">(\d+\.\d{4})</td>', text)]
    assert len(scores) == 25 and scores == sorted(scores, reverse=True)
    assert "A horror film" in text and "A comedy film" not in text


def test_hybrid_search_joins_both_by_rank(administrator: httpx.Client) -> None:
    params = {"mode": "hybrid", "text": "horror", "row": "5", "size": "10", "plan": "explain"}
    text = administrator.get("/search/cinema/films", params=params).text.partition("<main")[2]
    assert all(f">{name}</th>" in text for name in ("relevance", "score", "distance"))
    assert "Plan of the text search" in text and "Plan of the vector search" in text


def test_text_is_turned_into_a_vector_where_the_operator_set_a_function_up(
    administrator: httpx.Client, secured: Secured
) -> None:
    declared = json.dumps([{"name": "counter", "source_column": "text", "vector_column": "vector", "model": {}}])
    with secured.http("administrator") as http:
        body = {"embedding_functions": declared}
        done = http.post(f"/v1/table/{FILMS}/schema_metadata/update", json=body)
        assert done.status_code == 200, done.text
        params = {"mode": "vector", "meaning": "seven!!", "column": "id"}
        text = administrator.get("/search/cinema/films", params=params).text.partition("<main")[2]
        assert re.findall(r'<td class="num">([^<]*)</td>', text)[:2] == ["0.0000", "7"]
        failing = administrator.get("/search/cinema/films", params=params | {"meaning": "fail"})
        assert failing.status_code == 503 and "embedding function" in failing.text and "boom" not in failing.text
        other = declared.replace("counter", "os.system")
        http.post(f"/v1/table/{FILMS}/schema_metadata/update", json={"embedding_functions": other})
        refused = administrator.get("/search/cinema/films", params=params)
        assert refused.status_code == 400 and "No embedding function is set up" in refused.text


def test_author_of_a_version_is_told_to_those_who_see_the_audit(
    ann: httpx.Client, administrator: httpx.Client, secured: Secured
) -> None:
    with secured.http("administrator") as http:
        assert http.post("/v1/table/media$pictures/delete", json={"predicate": "id = 0"}).status_code == 200
        grant = {"object_kind": "namespace", "id": ["media"], "grantee": "ann", "privileges": ["read"]}
        assert http.post("/tiltyard/v1/grant/add", json=grant).status_code == 200
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "<strong>DeleteFromTable</strong>" not in (text := administrator.get("/versions/media/pictures").text):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        assert text.count("by <bdi>administrator</bdi>") == 2 and "<strong>CreateTable</strong>" in text
        hers = ann.get("/versions/media/pictures").text
        assert "DeleteFromTable" not in hers and "which administrators see" in hers and "Version 2" in hers
        assert http.post("/tiltyard/v1/grant/revoke", json=grant).status_code == 200


def test_versions_hold_to_policies_and_grants(ann: httpx.Client) -> None:
    old = ann.get("/compare/cinema/films", params={"old": "v1", "new": "v1"})
    assert old.status_code == 403 and "read its latest version" in old.text
    assert ann.get("/versions/cinema/films").status_code == 403
    latest = ann.get("/compare/cinema/films").text
    assert "without <bdi>genre" in latest and "<dt>Rows before</dt><dd>40</dd>" in latest and "drama" not in latest
    token = re.search(r'"x-csrf-token": "([0-9a-f]{64})"', unescape(latest))
    assert token is not None
    for fields in ({"action": "restore", "version": "1"}, {"action": "create-tag", "tag": "x", "version": "1"}):
        assert ann.post("/versions/cinema/films", data={"csrf": token[1], **fields}).status_code == 403


def test_counts_and_values_to_filter_by_are_those_that_the_policy_shows(
    ann: httpx.Client, administrator: httpx.Client
) -> None:
    assert "<strong>200</strong> rows" in administrator.get("/counts/cinema/films").text
    assert "<strong>40</strong> rows" in ann.get("/counts/cinema/films").text
    assert "drama" in administrator.get("/facets/cinema/films").text
    assert not re.search("drama|genre|title", ann.get("/facets/cinema/films").text)
    page = ann.get("/rows/cinema/films").text
    placeholder = re.search('placeholder="Filter in SQL([^"]+)"', page)
    assert placeholder is not None and "year" in placeholder[1] and "genre" not in placeholder[1]
    assert '<option value="genre"' not in page
    refused = ann.get("/rows/cinema/films?where=genre&operator=is&value=drama&add=1")
    assert refused.status_code == 400 and "no column" in refused.text


def test_tabs_are_those_that_the_reader_may_use(ann: httpx.Client, administrator: httpx.Client) -> None:
    def tabs(client: httpx.Client) -> list[str]:
        text = client.get("/table/cinema/films").text
        inner = text.partition('aria-label="Pages of this table"')[2].partition("</nav>")[0]
        return re.findall(r">(\w+)</a>", inner)

    assert tabs(administrator) == ["Overview", "Rows", "Search", "Map", "Versions", "Indexes", "Access", "Manage"]
    assert tabs(ann) == ["Overview", "Rows", "Search", "Map", "Access"]
