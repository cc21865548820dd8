"""Files that are uploaded: what becomes of them over HTTP, what is refused, and what a hostile one may cost."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.console.test_sign_in import sign_in
from tests.services.secured import Secured, secured_server
from tests.services.wire import Wire

TOKEN = re.compile(r'"x-csrf-token": "([0-9a-f]{64})"')
FILMS = b"title,year,zip\nAlien,1979,007\nBrazil,1985,123\n"
Fields = Mapping[str, Any] | Sequence[tuple[str, Any]]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, temporary: Path) -> Iterator[Secured]:
    environ = {"TMPDIR": str(temporary), "TILTYARD_MAX_UPLOAD_BYTES": str(8 << 20)}
    with secured_server(tmp_path_factory.mktemp("upload"), environ=environ, names=("ann", "bob")) as running:
        with running.wire("administrator") as wire:
            wire.good(wire.namespace(["lab"], "create"))
            wire.good(wire.namespace(["other"], "create"))
        with running.http("administrator") as http:
            for grantee, privileges in (("ann", ["read", "write", "create"]), ("bob", ["read"])):
                grant = {"object_kind": "namespace", "id": ["lab"], "grantee": grantee, "privileges": privileges}
                assert http.post("/tiltyard/v1/grant/add", json=grant).status_code == 200
        yield running


class Sender:
    """A signed-in browser, as far as it sends files."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        token = TOKEN.search(unescape(http.get("/").text))
        assert token is not None
        self.token = token[1]

    def send(self, address: str, content: bytes, fields: Fields, **headers: str) -> httpx.Response:
        form = urlencode(fields, doseq=True).encode()
        own = {"x-csrf-token": self.token, "x-form-bytes": str(len(form)), "hx-request": "true"}
        return self.http.post(address, content=form + content, headers={**own, **headers})

    def look(self, address: str, content: bytes, fields: Fields) -> httpx.Response:
        """Look at a file that is sent as a whole."""
        return self.send(address, content, fields)

    def bring(self, address: str, content: bytes, fields: Fields) -> dict[str, Any]:
        """Bring in a file; return the last line of the answer."""
        response = self.send(address, content, fields)
        assert response.status_code == 200, response.text
        assert response.headers["cache-control"] == "no-store"
        last: dict[str, Any] = json.loads(response.text.splitlines()[-1])
        return last


def sender(secured: Secured, name: str) -> Iterator[Sender]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=120) as client:
        sign_in(client, secured.keys[name])
        yield Sender(client)


@pytest.fixture
def ann(secured: Secured) -> Iterator[Sender]:
    yield from sender(secured, "ann")


@pytest.fixture
def bob(secured: Secured) -> Iterator[Sender]:
    yield from sender(secured, "bob")


@pytest.fixture
def wire(secured: Secured) -> Iterator[Wire]:
    with secured.wire("administrator") as opened:
        yield opened


def rows_of(wire: Wire, name: str) -> list[dict[str, Any]]:
    body = {"k": 1000, "vector": {}}
    response = wire.table(["lab", name], "query", body)
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = pa.ipc.open_file(response.content).read_all().to_pylist()
    return rows


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_columns_and_first_rows_are_shown_and_escaped(ann: Sender) -> None:
    content = b'"<script>alert(1)</script>",year\n<img src=x onerror=alert(1)>,1979\n\xe2\x80\xaetxt,1980\n'
    response = ann.look("/upload-sample/lab", content, {"name": "x", "title": "a.csv"})
    assert response.status_code == 200, response.text
    assert "<script>" not in response.text and "<img" not in response.text
    assert "&lt;script&gt;" in response.text and "⟨U+202E⟩" in response.text
    assert 'value="int64"' in response.text and "guessed from the text" in response.text


def test_each_format_becomes_a_table_with_the_types_that_were_chosen(ann: Sender, wire: Wire) -> None:
    table = pa.table({"title": ["Alien", "Brazil"], "year": pa.array([1979, 1985], pa.int64()), "zip": ["007", "123"]})
    lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    files = {
        "a.csv": FILMS,
        "a.tsv": FILMS.replace(b",", b"\t"),
        "a.csv.gz": gzip.compress(FILMS),
        "a.jsonl": lines,
        "a.parquet": parquet(table),
        "a.arrow": arrow(table),
    }
    for number, (title, content) in enumerate(files.items()):
        fields = {"name": f"format {number}`\"'", "title": title, "cast-name": "year", "cast-type": "int16"}
        last = ann.bring("/upload/lab", content, fields)
        assert last["done"]["rows"] == 2, (title, last)
        assert last["done"]["address"].startswith("/console/rows/lab/format%20")
        assert rows_of(wire, fields["name"]) == table.to_pylist(), title
        described = wire.table(["lab", fields["name"]], "describe", {"load_detailed_metadata": True}).json()
        assert [column["type"]["type"] for column in described["schema"]["fields"]] == ["utf8", "int16", "utf8"], title


def test_csv_is_read_with_the_separator_and_the_escape_of_the_form(ann: Sender, wire: Wire) -> None:
    page = ann.http.get("/upload/lab").text
    assert 'name="delimiter"' in page and 'name="escape"' in page
    fields = {"title": "quoted.csv", "name": "quoted", "delimiter": ";", "escape": "\\"}
    ann.bring("/upload/lab", b"a;b\n1;x\\;y\n2;z\n", fields)
    assert rows_of(wire, "quoted") == [{"a": 1, "b": "x;y"}, {"a": 2, "b": "z"}]


def test_rows_are_added_updated_by_key_and_replaced(ann: Sender, wire: Wire) -> None:
    ann.bring("/upload/lab", FILMS, {"name": "films", "title": "films.csv"})
    more = b"year,title,mood\n1990,Alien,dark\n2001,Amelie,light\n"
    look = ann.look("/upload-into-sample/lab/films", more, {"title": "more.csv", "mode": "append"})
    assert "not in the table: left out" in look.text and "become null" in look.text, look.text
    last = ann.bring("/upload-into/lab/films", more, {"title": "more.csv", "mode": "upsert", "key": "title"})
    assert (last["done"]["rows"], last["done"]["rejected"]) == (2, 0), last
    found = {row["title"]: (row["year"], row["zip"]) for row in rows_of(wire, "films")}
    assert found == {"Alien": (1990, "007"), "Brazil": (1985, "123"), "Amelie": (2001, None)}
    ann.bring("/upload-into/lab/films", more, {"title": "more.csv", "mode": "append", "leave-out": "title"})
    assert len(rows_of(wire, "films")) == 5
    ann.bring("/upload-into/lab/films", more, {"title": "more.csv", "mode": "overwrite"})
    assert rows_of(wire, "films") == [
        {"year": 1990, "title": "Alien", "mood": "dark"},
        {"year": 2001, "title": "Amelie", "mood": "light"},
    ]
    response = ann.send("/upload-into/lab/films", more, {"title": "more.csv", "mode": "upsert"})
    assert response.status_code == 400 and "Choose the columns of the key" in response.text


def test_rows_that_do_not_fit_end_it_or_are_told(ann: Sender, wire: Wire) -> None:
    content = b"id,when\n1,2020-01-01\nx,2020-01-02\n3,never\n4,2020-01-04\n"
    types = [("cast-name", "id"), ("cast-type", "int64"), ("cast-name", "when"), ("cast-type", "date32")]
    fields = [("name", "days"), ("title", "days.csv"), *types]
    last = ann.bring("/upload/lab", content, fields)
    assert "line 3" in last["problem"] and "'id'" in last["problem"] and "--" not in last["problem"], last
    assert wire.table(["lab", "days"], "exists").status_code == 404
    done = ann.bring("/upload/lab", content, [*fields, ("rejected", "leave-out")])["done"]
    assert (done["rows"], done["rejected"]) == (2, 2)
    assert [row for _, row in done["examples"]] == ["x,2020-01-02", "3,never"]
    assert len(rows_of(wire, "days")) == 2


def test_broken_files_and_forms_are_refused_in_words(ann: Sender, wire: Wire) -> None:
    whole = parquet(pa.table({"a": list(range(1000))}))
    cases: list[tuple[str, bytes, Fields, str]] = [
        ("cut", whole[:-20], {"title": "a.parquet"}, "is not a Parquet file"),
        ("zeros", whole[:4] + bytes(len(whole) - 300) + whole[-296:], {"title": "a.parquet"}, "a.parquet"),
        ("no csv", b"\xff\xfe\0a\0", {"title": "a.csv"}, "UTF-16"),
        ("twice", b"a,a\n1,2\n", {"title": "a.csv"}, "both called"),
        ("no format", b"abc", {"title": "a.exe"}, "no known format"),
        ("no gzip", b"abc", {"title": "a.csv.gz"}, "cannot be unpacked"),
        ("empty", b"", {"title": "a.csv"}, "empty"),
        ("separator", b"a;b\n1;2\n", {"title": "a.csv"}, "the separator ';'"),
        ("escape", FILMS, {"title": "a.csv", "escape": ","}, "the escape"),
        ("type", FILMS, {"title": "a.csv", "cast-name": "year", "cast-type": "list<" * 60}, "is not a type"),
        (
            "huge type",
            FILMS,
            {"title": "a.csv", "cast-name": "year", "cast-type": "float32[9999999999]"},
            "is not a type",
        ),
        ("format", FILMS, {"title": "a.csv", "format": "lance"}, "The format is one of"),
        ("no name", FILMS, {"title": "a.csv", "name": ""}, "name"),
        (
            "all left out",
            FILMS,
            [("title", "a.csv"), *(("leave-out", n) for n in ("title", "year", "zip"))],
            "left out",
        ),
    ]
    for case, content, fields, words in cases:
        form = [("name", "broken"), *(fields.items() if isinstance(fields, Mapping) else fields)]
        response = ann.send("/upload/lab", content, form)
        assert response.status_code in (200, 400), (case, response.text)
        assert words in unescape(response.text), (case, response.text)
        assert "Traceback" not in response.text and "/file." not in response.text, (case, response.text)
    assert wire.table(["lab", "broken"], "exists").status_code == 404


def test_files_that_expand_are_refused_before_they_cost(ann: Sender, wire: Wire, temporary: Path) -> None:
    zeros = gzip.compress(b"text\n" + (b"a" * 20_000 + b"\n") * 4_500)
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 16_000, pa.int32()), pa.array(["x" * 5_000]))
    bombs = {"a.csv.gz": zeros, "a.arrow": arrow(pa.table({"text": words}))}
    one = pa.table({"text": pa.array(["y" * 10_000] * 8_000)})
    bombs["a.parquet"] = parquet(one, compression="zstd", use_dictionary=True)
    for title, content in bombs.items():
        assert len(content) < 1 << 20
        last = ann.bring("/upload/lab", content, {"name": "bomb", "title": title})
        assert re.search(r"would become more than|grows too much", last.get("problem", "")), (title, last)
    assert wire.table(["lab", "bomb"], "exists").status_code == 404
    assert list(temporary.glob("tiltyard-file-*")) == []


def test_file_that_is_too_large_is_refused_before_it_comes(ann: Sender) -> None:
    response = ann.send("/upload/lab", b"x" * ((8 << 20) + 1), {"name": "large", "title": "a.csv"})
    assert response.status_code == 413 and "tiltyard import" in response.text
    page = ann.http.get("/upload/lab").text
    assert f'data-most="{8 << 20}"' in page
    lying = ann.send("/upload/lab", FILMS, {"name": "x"}, **{"x-form-bytes": "1000000000"})
    assert lying.status_code == 400, lying.text
    without = ann.send("/upload/lab", FILMS, {"name": "x"}, **{"x-form-bytes": ""})
    assert without.status_code == 411, without.text


def test_who_may_not_write_is_offered_nothing_and_refused(
    ann: Sender, bob: Sender, secured: Secured, wire: Wire
) -> None:
    ann.bring("/upload/lab", FILMS, {"name": "mine", "title": "films.csv"})
    assert "/console/upload/lab" in ann.http.get("/namespace/lab").text
    assert "/console/upload/lab" not in bob.http.get("/namespace/lab").text
    assert bob.http.get("/upload/lab").status_code == 403
    assert bob.http.get("/upload-into/lab/mine").status_code == 403
    for address, fields in (
        ("/upload/lab", {"name": "his", "title": "a.csv"}),
        ("/upload-sample/lab", {"name": "his", "title": "a.csv"}),
        ("/upload-into/lab/mine", {"mode": "append", "title": "a.csv"}),
        ("/upload-into/lab/mine", {"mode": "overwrite", "title": "a.csv"}),
        ("/upload-into/lab/mine", {"mode": "upsert", "key": "title", "title": "a.csv"}),
        ("/upload-into-sample/lab/mine", {"title": "a.csv"}),
    ):
        response = bob.send(address, FILMS, fields)
        assert response.status_code == 403, (address, response.text)
    assert bob.send("/upload/other", FILMS, {"name": "his", "title": "a.csv"}).status_code == 404
    assert len(rows_of(wire, "mine")) == 2 and wire.table(["lab", "his"], "exists").status_code == 404
    with secured.http("administrator") as http:
        records = http.post("/tiltyard/v1/audit", json={"operation": "CreateTable", "principal": "ann"})
    assert records.status_code == 200 and "mine" in records.text, records.text


def test_forged_and_foreign_requests_change_nothing(ann: Sender, wire: Wire) -> None:
    fields = {"name": "forged", "title": "a.csv"}
    assert ann.send("/upload/lab", FILMS, fields, **{"x-csrf-token": "0" * 64}).status_code == 403
    assert ann.send("/upload/lab", FILMS, fields, origin="http://evil.example").status_code == 403
    with httpx.Client(base_url=str(ann.http.base_url)) as stranger:
        response = Sender.send(_stranger(stranger), "/upload/lab", FILMS, fields)
        assert response.headers["hx-redirect"].startswith("/console/sign-in"), response.text
    assert wire.table(["lab", "forged"], "exists").status_code == 404


def _stranger(http: httpx.Client) -> Sender:
    sender = object.__new__(Sender)
    sender.http, sender.token = http, "0" * 64
    return sender


def test_beginning_and_end_of_a_large_file_are_enough_to_look_at_it(ann: Sender) -> None:
    table = pa.table({"id": pa.array(range(300_000)), "name": [f"name {number}" for number in range(300_000)]})
    content = parquet(table, row_group_size=10_000, compression="none", use_dictionary=False)
    head, tail = content[: 1 << 20], content[-(64 << 10) :]
    fields = {"name": "x", "title": "large.parquet", "head": len(head), "size": len(content)}
    response = ann.look("/upload-sample/lab", head + tail, fields)
    assert response.status_code == 200, response.text
    assert "name 11" in response.text and 'value="int64"' in response.text
    text = b"id,name\n" + b"".join(b'%d,"name\n%d"\n' % (number, number) for number in range(100_000))
    cut = text[: (1 << 20) + 12345]
    fields = {"name": "x", "title": "large.csv", "head": len(cut), "size": len(cut) + 1}
    response = ann.look("/upload-sample/lab", cut, fields)
    assert response.status_code == 200 and 'value="int64"' in response.text, response.text
    assert os.path.sep not in re.findall(r"<p[^>]*>(.*?)</p>", response.text)
