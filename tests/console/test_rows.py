"""Rows over HTTP: conditions that are put together, counts, values to filter by, names of files; each as its reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from html import unescape
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pyarrow as pa
import pytest

from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.console.saved_files import attachment

NAME = 'täble "1'
ADDRESS = f"rows/media/{NAME}"
ROWS = 300


@pytest.fixture(scope="module", autouse=True)
def table(server: ServerProcess) -> Iterator[None]:
    """Make a table of every type that conditions compare, with names that SQL would take for something else."""
    numbers = range(ROWS)
    rows = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "Größe": [("klein", "groß", "mittel")[number % 3] for number in numbers],
            "order": [(True, False, None)[number % 3] for number in numbers],
            "day": [date(2020, 1, 1 + number % 3) for number in numbers],
            "at": pa.array([datetime(2020, 1, 1, number % 24) for number in numbers], pa.timestamp("us")),  # noqa: DTZ001  # without a zone
            "zoned": pa.array([datetime(2020, 1, 1, number % 24) for number in numbers], pa.timestamp("ms", "UTC")),  # noqa: DTZ001  # as UTC
            "price": pa.array([1.5 * (number % 7) for number in numbers], pa.float32()),
            "exact": pa.array([number % 5 for number in numbers]).cast(pa.decimal128(21, 2)),
            "inner": [{"a b": number % 3, "c": "x`y"} for number in numbers],
            "note": [f"it's a 'quote' {number % 4}" for number in numbers],
        }
    )
    with Wire(server.url) as wire:
        wire.good(wire.table(["media", NAME], "create", stream(rows)))
        yield
        wire.good(wire.table(["media", NAME], "drop"))


def shown_filter(response: httpx.Response) -> str:
    assert response.status_code == 303, response.text
    [text] = parse_qs(urlsplit(response.headers["location"]).query)["filter"]
    return text


def counted(http: httpx.Client, filter_text: str) -> str:
    return " ".join(
        re.sub("<[^>]+>", "", http.get(f"/counts/media/{NAME}", params={"filter": filter_text}).text).split()
    )


@pytest.mark.parametrize(
    ("column", "operator", "value", "expected", "count"),
    [
        ("Größe", "contains", "ro", "contains(`Größe`, 'ro')", 100),
        ("Größe", "among", "klein, mittel", "`Größe` IN ('klein', 'mittel')", 200),
        ("note", "is", "it's a 'quote' 1", "`note` = 'it''s a ''quote'' 1'", 75),
        ("note", "is", "' OR TRUE --", "`note` = ''' OR TRUE --'", 0),
        ("order", "false", "", "`order` = FALSE", 100),
        ("order", "null", "", "`order` IS NULL", 100),
        ("day", "at_least", "2020-01-02", "`day` >= date '2020-01-02'", 200),
        ("at", "less", "2020-01-01T05:00", "`at` < timestamp '2020-01-01T05:00:00'", 65),
        ("zoned", "less", "2020-01-01T05:00", "`zoned` < timestamp '2020-01-01T05:00:00'", 65),
        ("price", "among", "1.5, 3", "`price` IN (1.5, 3.0)", 86),
        ("exact", "more", "2.5", "`exact` > CAST('2.50' AS DECIMAL(21, 2))", 120),
        ("inner.a b", "is", "1", "`inner`.`a b` = 1", 100),
        ("inner.c", "is", "x`y", "`inner`.`c` = 'x`y'", 300),
    ],
)
def test_condition_becomes_the_filters_own_sql(
    http: httpx.Client, column: str, operator: str, value: str, expected: str, count: int
) -> None:
    params = {"where": column, "operator": operator, "value": value, "add": "1"}
    assert shown_filter(http.get(f"/{ADDRESS}", params=params)) == expected
    assert counted(http, expected) == f"{count} of {ROWS} rows fit the filter"


@pytest.mark.parametrize(
    ("filter_text", "joined"),
    [
        ("id < 9", "id < 9 AND `order` = TRUE"),
        ("id < 9 OR id > 20", "(id < 9 OR id > 20) AND `order` = TRUE"),
        ("id < 9 AND `order` = TRUE", "id < 9 AND `order` = TRUE"),
        ("id < 9 -- few", "(id < 9 -- few) AND `order` = TRUE"),
    ],
)
def test_condition_narrows_the_filter_that_is_there(http: httpx.Client, filter_text: str, joined: str) -> None:
    params = {"filter": filter_text, "where": "order", "operator": "true", "add": "1"}
    assert shown_filter(http.get(f"/{ADDRESS}", params=params)) == joined


def test_form_that_only_applies_adds_nothing_and_leaves_its_fields_out_of_the_address(http: httpx.Client) -> None:
    answer = http.get(f"/{ADDRESS}", params={"filter": "id < 9", "where": "Größe", "operator": "is", "value": ""})
    assert shown_filter(answer) == "id < 9" and "where" not in answer.headers["location"]


@pytest.mark.parametrize(
    ("column", "operator", "value", "message"),
    [
        ("price", "is", "many", "compared with a number, as 0.5, not 'many'"),
        ("price", "is", "nan", "compared with a number"),
        ("exact", "is", "2.555", "compared with a number of its digits"),
        ("day", "is", "yesterday", "compared with a date"),
        ("price", "is", "", "Enter a value"),
        ("order", "is", "1", "can be compared by 'is true', 'is false'"),
        ("nothing", "is", "1", "no column 'nothing'"),
        ("id`; DROP", "is", "1", "no column"),
    ],
)
def test_condition_that_cannot_be_made_is_said_and_keeps_what_was_entered(
    http: httpx.Client, column: str, operator: str, value: str, message: str
) -> None:
    params = {"filter": "id < 3", "where": column, "operator": operator, "value": value, "add": "1"}
    answer = http.get(f"/{ADDRESS}", params=params)
    text = unescape(answer.text)
    assert answer.status_code == 400 and message in text
    assert 'value="id < 3"' in text and f'value="{value}"' in text and "<details" in text
    assert text.count("<tr>") == 1 + 3  # the filter that was there still holds


def test_operators_are_those_of_the_columns_type(http: httpx.Client) -> None:
    of_text = http.get(f"/condition/media/{NAME}", params={"where": "note"}).text
    of_days = http.get(f"/condition/media/{NAME}", params={"where": "day"}).text
    of_truth = http.get(f"/condition/media/{NAME}", params={"where": "order"}).text
    assert "begins with" in of_text and "begins with" not in of_days
    assert 'type="date"' in of_days and 'name="value"' not in of_truth


def test_values_of_few_are_counted_and_lead_to_the_filter_and_back(http: httpx.Client, server: ServerProcess) -> None:
    text = http.get(f"/facets/media/{NAME}", params={"filter": "id < 30"}).text
    assert re.findall(r"<h2><bdi>([^<]+)", text)[:2] == ["Größe", "order"] and "<bdi>id<" not in text
    [address, *_] = [unescape(found) for found in re.findall(r'href="([^"]+)"', text)]
    assert "id < 30 AND `Größe` = 'klein'" in unquote(address)
    assert http.get(f"{server.url}{address}").text.count("<tr>") == 1 + 10
    chosen = http.get(f"{server.url}{address.replace('/rows/', '/facets/')}").text
    back = re.search(r'href="([^"]+)" aria-current="true"', chosen)
    assert back is not None and parse_qs(urlsplit(unescape(back[1])).query)["filter"] == ["id < 30"]


def test_counts_and_values_of_a_filter_that_is_wrong_are_left_out(http: httpx.Client) -> None:
    assert counted(http, "nothing = 1") == ""
    assert "<h2>" not in http.get(f"/facets/media/{NAME}", params={"filter": "nothing = 1"}).text


def test_placeholder_is_of_the_tables_own_columns(http: httpx.Client) -> None:
    text = unescape(http.get("/rows/cinema/films").text)
    found = re.search(r'placeholder="Filter in SQL, as ([^"]+)"', text)
    assert found is not None and re.fullmatch(r"`year` >= \d+ AND `genre` = '\w+'", found[1])
    assert http.get("/rows/cinema/films", params={"filter": found[1]}).status_code == 200


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("films", 'attachment; filename="films.csv"'),
        ("täble", "attachment; filename=\"table.csv\"; filename*=UTF-8''t%C3%A4ble.csv"),
        ('a"b\\c/d\r\nx', 'attachment; filename="a_b_c_d__x.csv"'),
        ("映画", "attachment; filename=\"file.csv\"; filename*=UTF-8''%E6%98%A0%E7%94%BB.csv"),
        ("../..", 'attachment; filename="_.csv"'),
        ("\u202efdp", 'attachment; filename="_fdp.csv"'),
    ],
)
def test_file_to_save_has_the_tables_name(name: str, header: str) -> None:
    assert attachment(name, "csv") == header


def test_numbers_that_are_none_and_days_beyond_pythons_spoil_no_page(http: httpx.Client, server: ServerProcess) -> None:
    rows = pa.table(
        {
            "x": pa.array([float("nan"), float("inf"), None, 1.5] * 3),
            "day": pa.array([10**9, 0, 1] * 4, pa.int32()).cast(pa.date32()),
        }
    )
    with Wire(server.url) as wire:
        wire.good(wire.table(["odd"], "create", stream(rows)))
        try:
            text = unescape(http.get("/rows/odd").text)
            assert "as `x` >= 1.5" in text and text.count("<tr>") == 1 + 12
            assert re.findall(r"<bdi>([\d-]+)</bdi>", http.get("/facets/odd").text) == ["1970-01-01", "1970-01-02"]
        finally:
            wire.good(wire.table(["odd"], "drop"))


def test_download_and_cell_are_named_after_their_table(http: httpx.Client) -> None:
    download = http.get(f"/download/media/{NAME}", params={"format": "csv"})
    assert "filename*=UTF-8''t%C3%A4ble%20_1.csv" in download.headers["content-disposition"]
    cell = http.get("/bytes/media/hostile", params={"column": "blob", "row": "2"})
    assert cell.headers["content-disposition"] == 'attachment; filename="hostile-blob-2.bin"'


def test_error_stands_within_the_page_with_sections_and_tree(http: httpx.Client) -> None:
    for address, status in (
        ("/table/cinema/nothing", 404),
        ("/rows/cinema/films?at=yesterday", 400),
        ("/nowhere", 404),
    ):
        answer = http.get(address)
        assert answer.status_code == status and answer.text.count("<h1") == 1
        assert 'aria-label="Sections"' in answer.text and 'href="/console/namespace/cinema"' in answer.text
        assert "/console/table/cinema/nothing" not in answer.text
