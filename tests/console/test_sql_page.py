"""The SQL page over HTTP: under grants and policies, within bounds, in the audit; a query ends once its reader left."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.console.test_sign_in import PATIENCE_SECONDS, sign_in
from tests.services.console_data import BIDI, make_tables
from tests.services.secured import Secured, secured_server
from tiltyard.console.sql_editor.results import MAX_CELLS, MAX_ROWS
from tiltyard.model.text.sql_text import sql_name

CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
LONG = "SELECT sum(a.id * b.id * c.id * d.id) AS n FROM cinema.films a, cinema.films b, cinema.films c, cinema.films d"
"""A query of 1,600,000,000 rows."""
THOUSANDS = "SELECT a.id, b.title FROM cinema.films a, cinema.films b"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    environ = {"TILTYARD_AUDIT": "all", "TILTYARD_MAX_QUERIES": "1"}
    with secured_server(tmp_path_factory.mktemp("sql-page"), environ=environ, names=("ann", "bob")) as running:
        make_tables(running.url, running.keys["administrator"])
        with running.http("administrator") as http:
            grant = {"object_kind": "namespace", "id": ["cinema"], "grantee": "ann", "privileges": ["read"]}
            policy = {
                "name": "recent",
                "filter": "year >= 2000",
                "masks": [{"column": "title", "mask": "null"}, {"column": "genre", "mask": "hide"}],
            }
            for path, body in (("grant/add", grant), ("table/cinema$films/policy/set", policy)):
                response = http.post(f"/tiltyard/v1/{path}", json=body)
                assert response.status_code == 200, response.text
        yield running


class Person:
    """Somebody at the SQL page."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        token = CSRF.search(http.get("/sql").text)
        assert token is not None
        self.csrf = token[1]

    def run(self, query: str, action: str = "run", **options: Any) -> httpx.Response:
        """Run a query as the page's script does: the response is the result alone."""
        fields = {"csrf": self.csrf, "query": query, "action": action}
        return self.http.post("/sql", data=fields, headers={"hx-request": "true"}, **options)

    def download(self, query: str, form: str) -> httpx.Response:
        return self.http.post("/sql-download", data={"csrf": self.csrf, "query": query, "format": form})


def person(secured: Secured, name: str) -> Iterator[Person]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as client:
        sign_in(client, secured.keys[name])
        yield Person(client)


@pytest.fixture(scope="module")
def ann(secured: Secured) -> Iterator[Person]:
    yield from person(secured, "ann")


@pytest.fixture(scope="module")
def administrator(secured: Secured) -> Iterator[Person]:
    yield from person(secured, "administrator")


def running_queries(secured: Secured) -> int:
    """How many queries run, by the metrics."""
    with secured.http("administrator") as http:
        (line,) = [line for line in http.get("/metrics").text.splitlines() if "SQL queries running" in line]
    return int(float(line.rsplit(" ", 1)[1]))


def cells_of(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", response.text)]


def test_result_shows_rows_time_and_unique_column_names(administrator: Person) -> None:
    response = administrator.run("SELECT a.id, b.id FROM cinema.films a JOIN cinema.films b USING (id) WHERE a.id < 2")
    assert cells_of(response) and re.search(r"2 rows in [\d.]+ m?s", response.text)
    assert ">id</bdi>" in response.text and ">id_2</bdi>" in response.text


def test_first_rows_are_shown_and_the_rest_is_counted(administrator: Person) -> None:
    response = administrator.run(THOUSANDS)
    assert response.text.count("<tr>") == MAX_ROWS + 1 and "A download has all of them" in response.text
    assert re.search(r"The first 1,000 (?:of 40,000 rows|rows of more)", response.text)
    columns = ", ".join(f"id + {number} AS c{number}" for number in range(100))
    assert administrator.run(f"SELECT {columns} FROM cinema.films, (VALUES (1), (2))").text.count("<tr>") == (
        MAX_CELLS // 100 + 1
    )


def test_grants_filters_and_masks_hold_and_are_said(ann: Person, administrator: Person) -> None:
    response = ann.run("SELECT * FROM cinema.films")
    text = unescape(response.text)
    assert "40 rows" in text and "policy applies" in text and "has some of its rows, and masks" in text
    assert "Film" not in text and "genre" not in text.partition("<thead>")[2].partition("</thead>")[0]
    for query in ("SELECT genre FROM cinema.films", "SELECT * FROM media.pictures", f"SELECT 1; {THOUSANDS}"):
        refused = ann.run(query)
        assert refused.status_code in (400, 404), refused.text
    plan = ann.run("SELECT title FROM cinema.films", "explain")
    assert plan.status_code == 406 and "its plan is not shown" in plan.text
    lines = [json.loads(line) for line in ann.download("SELECT * FROM cinema.films", "jsonl").text.splitlines()]
    assert len(lines) == 40 and {line["title"] for line in lines} == {None} and "genre" not in lines[0]
    names = ann.http.get("/sql-names").json()
    assert names["tables"] == [{"path": ["cinema", "films"]}] and names["has_all"]
    columns = [column["name"] for column in ann.http.get("/sql-columns/cinema/films").json()["columns"]]
    assert columns == ["id", "title", "year", "text", "vector"]
    assert ann.http.get("/sql-columns/media/pictures").status_code == 404
    assert len(administrator.http.get("/sql-names").json()["tables"]) == 3


def test_errors_are_beside_the_editor_with_their_place(administrator: Person) -> None:
    wrong = administrator.run("SELECT id -- the key\nFROM cinema.films\nWHERE /* all */ ORDER BY id")
    assert wrong.status_code == 400 and 'data-offset="61"' in wrong.text, wrong.text
    assert "Line 3, column 23" in wrong.text and "<mark>BY</mark>" in wrong.text
    explained = administrator.run("SELECT 1 FROM (SELEC 2", "explain")
    assert "Line 1, column 22" in explained.text, explained.text
    missing = administrator.run("SELECT titel FROM cinema.films")
    assert "<mark>titel</mark>" in missing.text and "Line 1, column 8" in missing.text
    assert "<mark>series</mark>" in administrator.run("SELECT 1 FROM cinema.series").text
    several = administrator.run("SELECT 1; SELECT 2")
    assert several.status_code == 400 and "several statements" in several.text
    changing = administrator.run("DELETE FROM cinema.films")
    assert changing.status_code == 406 and "Queries only read" in changing.text
    assert "There is no query" in administrator.run(" \n").text
    assert administrator.run("SELECT 1", "destroy").status_code == 400


def test_page_without_scripts_has_the_text_and_the_result(administrator: Person) -> None:
    fields = {"csrf": administrator.csrf, "query": "SELECT 41 + 1\r\nAS </textarea>"}
    page = administrator.http.post("/sql", data=fields)
    assert page.status_code == 400 and "SELECT 41 + 1\nAS &lt;/textarea&gt;</textarea>" in page.text
    page = administrator.http.post("/sql", data=fields | {"query": "SELECT 41 + 1 AS n"})
    assert page.status_code == 200 and '<td class="num">42</td>' in page.text and "<main" in page.text
    page = administrator.download("SELECT nothing", "csv")
    assert page.status_code == 400 and "SELECT nothing</textarea>" in page.text
    assert administrator.http.post("/sql", data={"query": "SELECT 1"}).status_code == 403


def test_values_of_hostile_tables_are_text(administrator: Person) -> None:
    text = administrator.run("SELECT * FROM media.hostile").text
    assert len(text) < 40_000 and "<script>document" not in text and "&lt;script&gt;document" in text
    assert "\u202e" not in text and BIDI.replace("\u202e", "⟨U+202E⟩") in text
    assert "data:image" not in text and "<svg xmlns" not in text
    echoed = administrator.run("SELECT '<img src=x onerror=alert(1)>' AS \"<b>\"").text
    assert "<img" not in echoed and "<b>" not in echoed
    problem = administrator.run('SELECT "<img src=x>" FROM cinema.films').text
    assert "<img" not in problem and "&lt;img" in problem


def test_images_are_in_the_result_itself_and_nothing_else_is(administrator: Person) -> None:
    text = administrator.run("SELECT picture, sound FROM media.pictures").text
    assert text.count('<img src="data:image/png;base64,') == 6 and "audio/wav" in text
    policy = administrator.http.get("/sql").headers["content-security-policy"]
    assert "img-src 'self' data:;" in policy and "script-src 'self';" in policy
    assert "data:" not in administrator.http.get("/").headers["content-security-policy"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "arrow"])
def test_download_has_all_rows(administrator: Person, form: str) -> None:
    response = administrator.download(THOUSANDS, form)
    assert response.headers["content-disposition"] == f'attachment; filename="query.{form}"'
    if form == "parquet":
        table = pq.read_table(io.BytesIO(response.content))
    elif form == "arrow":
        table = pa.ipc.open_stream(response.content).read_all()
    else:
        assert len(response.text.splitlines()) == 40_000 + (form == "csv")
        return
    assert table.num_rows == 40_000 and table.column_names == ["id", "title"]


def test_unknown_format_and_statements_are_not_downloaded(administrator: Person) -> None:
    assert "The format is one of" in administrator.download("SELECT 1", "xlsx").text
    assert "is run, not downloaded" in administrator.download("SHOW MATERIALIZED VIEWS", "csv").text


def test_plan_is_a_tree_of_steps(administrator: Person) -> None:
    for query, action in (
        ("SELECT genre, count(*) FROM cinema.films GROUP BY genre", "explain"),
        ("EXPLAIN SELECT genre FROM cinema.films", "explain"),
        ("EXPLAIN ANALYZE SELECT genre FROM cinema.films WHERE id > 3", "run"),
    ):
        text = administrator.run(query, action).text
        assert '<ul class="plan">' in text and "FilteredReadExec</strong>" in text and "FFI_" not in text, text
    assert "rows scanned" in text
    assert "┌──" in administrator.run("EXPLAIN FORMAT TREE SELECT 1").text


def test_types_that_no_table_has_are_shown(administrator: Person) -> None:
    query = "SELECT interval '1 day' AS i, DATE '2020-01-02' AS d, 1.50::DECIMAL(10, 2) AS n, NULL AS z"
    assert cells_of(administrator.run(query))[1:3] == ["2020-01-02", "1.50"]


def test_statements_on_views_call_their_operations(administrator: Person, ann: Person) -> None:
    created = administrator.run("CREATE MATERIALIZED VIEW cinema.old AS SELECT id FROM cinema.films WHERE year < 1930")
    assert "/console/job?id=" in created.text, created.text
    shown = administrator.http.post(
        "/sql", data={"csrf": administrator.csrf, "query": "DESCRIBE MATERIALIZED VIEW cinema.old"}
    )
    assert "SELECT id FROM cinema.films" in unescape(shown.text.partition('id="result"')[2])
    assert ann.run("DROP MATERIALIZED VIEW cinema.old").status_code == 403
    assert "has no plan" in administrator.run("DROP MATERIALIZED VIEW cinema.old", "explain").text
    assert cells_of(administrator.run("DROP MATERIALIZED VIEW cinema.old")) == ["old"]


def test_reader_who_leaves_ends_the_query_and_frees_its_slot(administrator: Person, secured: Secured) -> None:
    with pytest.raises(httpx.ReadTimeout):
        administrator.run(LONG, timeout=1.5)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while running_queries(secured):
        assert time.monotonic() < deadline, "the query still runs"
        time.sleep(0.05)
    assert cells_of(administrator.run("SELECT 1 AS one")) == ["1"]  # its slot is free: there is one


def test_download_ends_once_its_reader_may_not_read_any_more(secured: Secured) -> None:
    query = "SELECT a.* FROM cinema.films a, cinema.films b, cinema.films c, cinema.films d"
    grant = {"object_kind": "namespace", "id": ["cinema"], "grantee": "bob", "privileges": ["read"]}
    with secured.http("administrator") as http, httpx.Client(base_url=f"{secured.url}/console", timeout=60) as client:
        assert http.post("/tiltyard/v1/grant/add", json=grant).status_code == 200
        sign_in(client, secured.keys["bob"])
        fields = {"csrf": Person(client).csrf, "query": query, "format": "csv"}
        with client.stream("POST", "/sql-download", data=fields) as response:
            chunks = response.iter_bytes()
            assert next(chunks).startswith(b"id,title")
            assert http.post("/tiltyard/v1/grant/revoke", json=grant).status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                read_until(chunks, time.monotonic() + PATIENCE_SECONDS)


def read_until(chunks: Iterator[bytes], deadline: float) -> None:
    for _ in chunks:
        assert time.monotonic() < deadline, "the download goes on"


def test_queries_are_in_the_audit_with_their_tables(ann: Person, secured: Secured) -> None:
    request_id = ann.run("SELECT count(*) FROM cinema.films").headers["x-request-id"]
    with secured.http("administrator") as http:
        deadline = time.monotonic() + PATIENCE_SECONDS
        found: list[tuple[str, str, str]] = []
        while not found:
            assert time.monotonic() < deadline, "the query is not in the audit"
            records = http.post("/tiltyard/v1/audit", json={"principal": "ann", "limit": 1000}).json()["records"]
            found = [
                (record["operation"], record["object"], record["outcome"])
                for record in records
                if record["request_id"] == request_id and record["operation"] == "ExecuteQuery"
            ]
    assert found == [("ExecuteQuery", "cinema$films", "ok")]


def test_table_links_to_a_query_of_it(administrator: Person) -> None:
    assert 'href="/console/sql/cinema/films"' in administrator.http.get("/table/cinema/films").text
    page = unescape(administrator.http.get("/sql/cinema/films").text)
    query = page.partition("<textarea")[2].partition(">\n")[2].partition("</textarea>")[0]
    assert query.startswith('SELECT "id", "title"') and '\nFROM "cinema"."films"\nLIMIT 100' in query
    assert "100 rows" in administrator.run(query).text
    assert 'href="/console/sql/cinema/films?at=v1"' in administrator.http.get("/rows/cinema/films?at=v1").text
    page = unescape(administrator.http.get("/sql/cinema/films?at=v1").text)
    query = page.partition("<textarea")[2].partition(">\n")[2].partition("</textarea>")[0]
    assert "\nFROM table_version('cinema.films', 1)\n" in query and "100 rows" in administrator.run(query).text


def test_quoted_name_is_one_name() -> None:
    assert sql_name('a"b; DROP') == '"a""b; DROP"'
