"""Pages of a table over HTTP: overview, rows, cells, downloads, search; and values that attack their readers."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import lance
import lancedb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.services.console_data import BIDI, LONG_TEXT_BYTES, films, pictures
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream


def main_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text[:2000]
    return response.text.partition("<main")[2]


def test_overview_shows_schema_figures_and_snippets_with_the_address(http: httpx.Client, server: ServerProcess) -> None:
    text = unescape(main_of(http.get("/table/cinema/films")))
    assert "fixed_size_list<float32>[16]" in text and "<dt>Rows</dt><dd>200" in text
    assert f'host_override="{server.url}"' in text and "namespace_path=['cinema']" in text
    assert f"curl -s '{server.url}/v1/table/cinema%24films/query'" in text


def test_overview_snippets_open_the_table(http: httpx.Client) -> None:
    text = main_of(http.get("/table/cinema/films"))
    snippets = [unescape(code) for code in re.findall(r"<pre[^>]*><code>(.*?)</code>", text, re.DOTALL)]
    for number, name in ((0, "table"), (1, "dataset")):
        names: dict[str, object] = {}
        exec(compile(snippets[number], f"snippet {number}", "exec"), names)
        opened = names[name]
        assert opened.count_rows() == 200  # type: ignore[attr-defined]


def test_overview_shows_the_contract_and_what_its_checks_have_found(http: httpx.Client, server: ServerProcess) -> None:
    table, arrow = f"{server.url}/v1/table/cinema$priced", {"content-type": "application/vnd.apache.arrow.stream"}
    own = f"{server.url}/tiltyard/v1/table/cinema$priced/contract"
    httpx.post(f"{table}/create", content=stream(pa.table({"price": [1, 2]})), headers=arrow).raise_for_status()
    try:
        assert 'id="contract"' not in main_of(http.get("/table/cinema/priced"))
        checks = ["expect(price > 0)", "test: expect(price <> 2)", "warn: expect(price < 9)"]
        httpx.post(f"{own}/set", json={"checks": checks, "on_failure": "reject"}).raise_for_status()
        httpx.post(f"{table}/insert", content=stream(pa.table({"price": [9, -1]})), headers=arrow).raise_for_status()
        httpx.post(f"{own}/test", json={}).raise_for_status()
        text = unescape(re.sub(r"<[^>]*>", "", main_of(http.get("/table/cinema/priced"))))
        assert "Rows that fail are parked" in text and "expect(price > 0)" in text
        assert "1 row parked" in text and "expect(price < 9): 1" in text
        assert "failed" in text and "1 of 3 rows fail, the first is a row with price = 2" in text
    finally:
        httpx.post(f"{table}/drop", json={}).raise_for_status()


def test_declared_table_says_that_it_has_no_data(http: httpx.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        wire.good(wire.table(["cinema", "declared"], "declare"))
        try:
            assert "Declared, without data yet" in main_of(http.get("/table/cinema/declared"))
            assert "No data yet" in main_of(http.get("/rows/cinema/declared"))
            assert main_of(http.get("/search/cinema/declared"))
        finally:
            wire.good(wire.table(["cinema", "declared"], "drop"))


def test_view_shows_its_query_its_source_and_its_rows(http: httpx.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        query = "SELECT id, title FROM cinema.films WHERE year > 2010"
        wire.good(wire.http.post("/v1/view/cinema%24recent/create", json={"query": query}))
        try:
            overview = main_of(http.get("/table/cinema/recent"))
            assert "year &gt; 2010" in overview and '<span class="chip good">view</span>' in overview
            assert 'A view of <a href="/console/table/cinema/films"' in overview
            assert "Fragments" not in overview and ">Versions</a>" not in overview and ">Map</a>" not in overview
            check_snippets_of_view(overview)
            text = main_of(http.get("/rows/cinema/recent?filter=id+%3C+100"))
            assert text.count("<tr>") == 1 + 9
            assert main_of(http.get("/search/cinema/recent"))
        finally:
            wire.good(wire.table(["cinema", "recent"], "drop"))


def check_snippets_of_view(page: str) -> None:
    """Run each snippet of a view as it stands there: it reads the view's rows."""
    found = re.findall(r"<summary>([^<]+)</summary>.*?<code>(.*?)</code>", page.partition('id="open"')[2], re.DOTALL)
    snippets = {name: unescape(code) for name, code in found}
    assert set(snippets) == {"lancedb", "SQL in Python", "curl"}
    names: dict[str, Any] = {}
    exec(compile(snippets["lancedb"], "lancedb", "exec"), names)
    assert names["table"].count_rows() == 18 and names["table"].head(5).num_rows == 5
    exec(compile(snippets["SQL in Python"], "SQL", "exec"), names)
    assert names["rows"].num_rows == 5
    command = snippets["curl"].replace("> rows.arrow", "")
    rows = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert pa.ipc.open_file(rows).read_all().num_rows == 5


def test_lineage_links_what_tables_were_made_from(http: httpx.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        location = wire.good(wire.table(["cinema", "films"], "describe", {}))["location"]
        wire.good(wire.table(["cinema", "copied"], "clone", {"source_location": location}))
        try:
            assert '<a href="/console/table/cinema/films"' in http.get("/lineage/cinema/copied").text
            text = http.get("/lineage/cinema/films").text
            assert "Made from it" in text and '<a href="/console/table/cinema/copied"' in text
            assert '<option value="title">' in text and 'hx-target="#lineage-path"' in text
            path = http.get("/lineage/cinema/copied", params={"column": "title"}).text
            assert "<select" not in path and path.index("copied") < path.index("direct") < path.index("films")
            assert "Made from <code>title</code>" in http.get("/lineage/cinema/films?column=title").text
            assert "No job has recorded" in http.get("/lineage/cinema/films?column=%3Cb%3E").text  # it has none
            assert "Made from it" in http.get("/lineage/cinema/films?column=").text
        finally:
            wire.good(wire.table(["cinema", "copied"], "drop"))


def test_rows_are_filtered_ordered_and_paged_at_one_version(http: httpx.Client, server: ServerProcess) -> None:
    first = http.get("/rows/cinema/films", params={"filter": "id < 60", "order": "-id", "column": ["id", "title"]})
    text = main_of(first)
    assert re.findall(r'<td class="num">(\d+)</td>', text) == [str(number) for number in range(59, 34, -1)]
    following = re.search(r'rel="next" href="([^"]+)"', text)
    assert following is not None and re.search(r"\bat=v\d+", following[1])
    second = main_of(http.get(f"{server.url}{unescape(following[1])}"))
    assert re.findall(r'<td class="num">(\d+)</td>', second)[0] == "34"


def test_wrong_filter_is_said_beside_the_form_which_keeps_it(http: httpx.Client) -> None:
    response = http.get("/rows/cinema/films", params={"filter": "nothing = 3"})
    assert response.status_code == 400
    assert 'value="nothing = 3"' in response.text and 'role="alert"' in response.text
    assert "Traceback" not in response.text


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("rows/cinema/films?at=v999", 404),
        ("rows/cinema/films?at=tag:none", 404),
        ("rows/cinema/films?at=branch:none", 404),
        ("rows/cinema/films?at=yesterday", 400),
        ("rows/cinema/films?size=1000000", 400),
        ("rows/cinema/films?offset=-1", 400),
        ("rows/cinema/films?column=none", 200),
        ("rows/cinema/films?order=none", 400),
        ("rows/cinema/films?filter=" + "x" * 10_001, 400),
        ("rows", 404),
        ("search/cinema/films?mode=magic", 400),
        ("search/cinema/films?mode=vector&vector=abc", 400),
        ("search/cinema/films?mode=vector&vector=[1,2]", 400),
        ("search/cinema/films?mode=like&row=99999999", 400),
        ("search/cinema/films?mode=vector&meaning=x", 400),
        ("search/cinema/films?mode=vector&vector=" + "[" * 2000, 400),
        ("download/cinema/films?format=xls", 400),
        ("download/cinema/films?filter=nothing=1", 404),
        ("bytes/cinema/films?column=title&row=1", 400),
        ("bytes/media/pictures?column=picture&row=77777", 400),
        ("bytes/media/pictures?column=picture&row=x", 400),
    ],
)
def test_page_that_cannot_be_made_says_why(http: httpx.Client, address: str, status: int) -> None:
    response = http.get(f"/{address}")
    assert response.status_code == status, response.text[:2000]
    assert "Traceback" not in response.text


def test_tag_and_older_version_show_their_rows(http: httpx.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        wire.good(wire.table(["cinema", "tagged"], "create", stream(films(3))))
        wire.good(wire.table(["cinema", "tagged"], "tags/create", {"tag": "three", "version": 1}))
        wire.good(wire.table(["cinema", "tagged"], "insert", stream(films(2))))
        try:
            assert main_of(http.get("/rows/cinema/tagged")).count("<tr>") == 1 + 5
            assert main_of(http.get("/rows/cinema/tagged?at=tag:three")).count("<tr>") == 1 + 3
            assert main_of(http.get("/rows/cinema/tagged?at=v1")).count("<tr>") == 1 + 3
        finally:
            wire.good(wire.table(["cinema", "tagged"], "drop"))


def test_image_cell_is_fetched_by_itself_and_in_ranges(http: httpx.Client, server: ServerProcess) -> None:
    text = main_of(http.get("/rows/media/pictures"))
    [address, *_] = [
        unescape(found) for found in re.findall(r'hx-get="(/console/cell/[^"]+column=picture[^"]*)"', text)
    ]
    cell = http.get(f"{server.url}{address}", headers={"hx-request": "true"}).text
    source = re.search(r'<img src="([^"]+)"', cell)
    assert source is not None
    image = http.get(f"{server.url}{unescape(source[1])}")
    expected = pictures()["picture"][0].as_py()
    assert (image.content, image.headers["content-type"]) == (expected, "image/png")
    assert image.headers["content-security-policy"] == "default-src 'none'; sandbox"
    part = http.get(f"{server.url}{unescape(source[1])}", headers={"range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, expected[4:8])
    assert part.headers["content-range"] == f"bytes 4-7/{len(expected)}"
    beyond = http.get(f"{server.url}{unescape(source[1])}", headers={"range": f"bytes={len(expected)}-"})
    assert beyond.status_code == 416
    sounds = http.get(f"{server.url}{address.replace('column=picture', 'column=sound')}").text
    assert "<audio controls" in sounds and "audio/wav" in sounds


def test_blob_cell_is_read_in_ranges(http: httpx.Client, server: ServerProcess) -> None:
    image = pictures()["picture"][3].as_py()
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")])
    rows = pa.table([pa.array([0, 1]), lance.blob_array([image, None])], schema=schema)
    database = lancedb.connect("db://media", api_key="none", host_override=server.url)
    database.create_table("blobs", rows)
    try:
        cells = re.findall(r'hx-get="(/console/cell/[^"]+)"', main_of(http.get("/rows/media/blobs")))
        assert len(cells) == 2 and "kind=blob" in cells[0]
        shown = [http.get(f"{server.url}{unescape(cell)}").text for cell in cells]
        source = re.search(r'<img src="([^"]+)"', shown[0])
        assert source is not None and "null" in shown[1]
        address = f"{server.url}{unescape(source[1])}"
        assert http.get(address).content == image
        part = http.get(address, headers={"range": "bytes=10-"})
        assert (part.status_code, part.content) == (206, image[10:])
    finally:
        database.drop_table("blobs")


def test_vectors_are_sparklines_and_nested_values_unfold(http: httpx.Client) -> None:
    assert main_of(http.get("/rows/cinema/films")).count("<polyline points=") == 25
    text = unescape(main_of(http.get("/rows/media/pictures")))
    assert "{width, tags}" in text and '"synthetic"' in text and "2 items" in text


def test_hostile_values_are_text_and_short(http: httpx.Client, server: ServerProcess) -> None:
    response = http.get("/rows/media/hostile")
    text = main_of(response)
    assert len(response.content) < 40_000 and LONG_TEXT_BYTES > 9_000_000
    assert "<script>document" not in text and "&lt;script&gt;document" in text
    assert "\u202e" not in text and BIDI.replace("\u202e", "⟨U+202E⟩") in text
    assert 'href="javascript:' not in text and "javascript:alert(1)" in text
    assert '" onmouseover' not in text
    rows = re.findall(r'hx-get="(/console/cell/[^"]+column=blob[^"]*)"', text)
    for address in rows[:2]:
        cell = http.get(f"{server.url}{unescape(address)}").text
        assert "<img" not in cell and "<svg" not in cell
        link = re.search(r'href="([^"]+)" download', cell)
        assert link is not None
        value = http.get(f"{server.url}{unescape(link[1])}")
        assert value.headers["content-type"] == "application/octet-stream"
        assert value.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in value.headers["content-security-policy"]


def test_downloads_hold_all_rows_that_are_shown(http: httpx.Client) -> None:
    params = {"filter": "year >= 1950", "order": "id", "column": ["id", "title", "vector"]}
    expected = [number for number in range(200) if 1920 + number % 100 >= 1950]
    lines = list(
        csv.DictReader(io.StringIO(http.get("/download/cinema/films", params={**params, "format": "csv"}).text))
    )
    assert [int(line["id"]) for line in lines] == expected and len(json.loads(lines[0]["vector"])) == 16
    text = http.get("/download/cinema/films", params={**params, "format": "jsonl"}).text
    assert [json.loads(line)["id"] for line in text.splitlines()] == expected
    parquet = http.get("/download/cinema/films", params={**params, "format": "parquet"})
    assert pq.read_table(io.BytesIO(parquet.content))["id"].to_pylist() == expected
    arrow = http.get("/download/cinema/films", params={**params, "format": "arrow"})
    table = pa.ipc.open_stream(arrow.content).read_all()
    assert table["id"].to_pylist() == expected and table.column_names == ["id", "title", "vector"]
    assert arrow.headers["content-disposition"] == 'attachment; filename="films.arrow"'


def test_download_of_bytes_is_base64_where_text_is_needed(http: httpx.Client) -> None:
    lines = http.get("/download/media/pictures", params={"format": "jsonl"}).text.splitlines()
    assert len(lines) == 6 and json.loads(lines[0])["picture"].startswith("iVBORw0KGgo")
    assert json.loads(lines[0])["shape"]["tags"] == ["synthetic", "small"]


def test_search_by_vector_and_by_row_finds_the_nearest(http: httpx.Client) -> None:
    vector = json.dumps(films()["vector"][7].as_py())
    text = main_of(http.get("/search/cinema/films", params={"mode": "vector", "vector": vector, "column": ["id"]}))
    assert re.findall(r'<td class="num">([^<]*)</td>', text)[:2] == ["0.0000", "7"]
    like = main_of(
        http.get("/search/cinema/films", params={"mode": "like", "row": "7", "filter": "id <> 7", "column": ["id"]})
    )
    assert "distance" in like and len(re.findall(r"<tr>", like)) == 11


def test_search_by_words_needs_an_index_and_says_so(http: httpx.Client) -> None:
    response = http.get("/search/media/pictures", params={"text": "synthetic"})
    assert response.status_code == 400 and "full-text index" in response.text


@pytest.mark.parametrize("plan", ["explain", "analyze"])
def test_plan_of_a_search_is_a_tree(http: httpx.Client, plan: str) -> None:
    params = {"mode": "like", "row": "3", "filter": "year > 1950", "plan": plan}
    text = main_of(http.get("/search/cinema/films", params=params))
    assert re.search(r"Answered by <strong>(scan|cached_columns)</strong>: Lance finds the rows", text)
    assert ("<dt>view</dt>" in text) == (plan == "explain")
    steps = re.findall(r"<strong>(\w+)</strong>", text)
    assert len(steps) > 2 and text.count("<ul>") >= 2
    assert ("output rows" in text) == (plan == "analyze")


FAR = "far"
FAR_DAYS = pa.array([10**9, 0, -(10**9)], pa.int32()).cast(pa.date32())


@pytest.fixture
def far_times(server: ServerProcess) -> Iterator[None]:
    """Make a table of dates, times and durations that Python has none of, alone and within others."""
    moments = pa.array([10**17, 0, 2**62], pa.int64())
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "day": FAR_DAYS,
            "moment": moments.cast(pa.timestamp("us")),
            "zoned": pa.array([9 * 10**15, 0, 1], pa.int64()).cast(pa.timestamp("ms", "Europe/Berlin")),
            "exact": moments.cast(pa.timestamp("ns")),
            "length": moments.cast(pa.duration("s")),
            "days": pa.ListArray.from_arrays([0, 1, 2, 3], FAR_DAYS),
            "inner": pa.StructArray.from_arrays([FAR_DAYS], ["day"]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(range(6), pa.float32()), 2),
        }
    )
    with Wire(server.url) as wire:
        wire.good(wire.table([FAR], "create", stream(rows)))
        wire.good(wire.table([FAR], "update", {"updates": [["id", "id + 10"]], "predicate": "id = 2"}))
        yield
        wire.good(wire.table([FAR], "drop"))


@pytest.mark.usefixtures("far_times")
def test_times_beyond_pythons_are_texts_on_every_page(http: httpx.Client) -> None:
    for address in (
        *(f"rows/{FAR}", f"rows/{FAR}?order=day", f"table/{FAR}", f"map/{FAR}", f"versions/{FAR}"),
        *(f"map-points/{FAR}?column=vector&color={name}" for name in ("day", "moment", "zoned", "exact", "length")),
        *(f"search/{FAR}?kind=vector&vector=1,2&column=vector", f"map-row/{FAR}?row=0", f"see-as/{FAR}?principal=x"),
        *(f"download/{FAR}?format={form}" for form in ("parquet", "arrow")),
    ):
        response = http.get(f"/{address}")
        assert response.status_code == 200, (address, response.text)
    shown = main_of(http.get(f"/rows/{FAR}"))
    assert "5138-11-16 09:46:40" in shown and "25024-08-24" in shown and "out of range: 1000000000" in shown
    csv_rows = list(csv.DictReader(io.StringIO(http.get(f"/download/{FAR}?format=csv").text)))
    assert [row["moment"][:10] for row in csv_rows if row["id"] != "3"] == ["5138-11-16", "1970-01-01"]
    lines = [json.loads(line) for line in http.get(f"/download/{FAR}?format=jsonl").text.splitlines()]
    assert {line["id"]: line["days"] for line in lines}[12] == ["1970-01-01"] and len(lines) == 3
    compared = http.get(f"/compare/{FAR}?old=v1&new=v2").text
    assert "Only after" in compared and re.search(r"Only after</dt>\s*<dd>1<", compared), compared
