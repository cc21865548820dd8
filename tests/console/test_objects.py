"""Objects that are created, changed and dropped in the console: by forms, under grants, kept when they are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest

from tests.console.test_sign_in import CSRF, sign_in
from tests.services.secured import Secured, secured_server
from tests.services.wire import Wire, stream

ODD = "a.b/c $x`'\"<b>"
ODD_COLUMN = "c $x'\"<b>"
BETWEEN = "§"
"""A delimiter that is in none of the names."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("objects"), names=("ann", "bob")) as running:
        with running.wire("administrator") as wire:
            wire.good(wire.namespace(["lab"], "create"))
            vectors = pa.FixedSizeListArray.from_arrays(pa.array([float(n) for n in range(400)], pa.float32()), 4)
            table = pa.table({"id": range(100), "text": ["some words"] * 100, "v w": vectors})
            wire.good(wire.table(["lab", "papers"], "create", stream(table)))
        with running.http("administrator") as http:
            for name, privileges in (("ann", ["read", "write", "create", "alter", "drop"]), ("bob", ["read"])):
                grant = {"object_kind": "namespace", "id": ["lab"], "grantee": name, "privileges": privileges}
                assert http.post("/tiltyard/v1/grant/add", json=grant).status_code == 200
        yield running


@pytest.fixture
def wire(secured: Secured) -> Iterator[Wire]:
    with secured.wire("administrator") as opened:
        yield opened


class Person:
    """A signed-in person, who sends forms."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        token = CSRF.search(http.get("/access/keys").text)
        assert token is not None
        self.token = token[1]

    def send(self, address: str, token: str | None = None, **fields: Any) -> httpx.Response:
        data = {"csrf": self.token if token is None else token}
        data |= {name.rstrip("_").replace("__", "-"): value for name, value in fields.items()}
        return self.http.post(address, data=data)


def person(secured: Secured, name: str) -> Iterator[Person]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as client:
        sign_in(client, secured.keys[name])
        yield Person(client)


@pytest.fixture
def ann(secured: Secured) -> Iterator[Person]:
    yield from person(secured, "ann")


@pytest.fixture
def bob(secured: Secured) -> Iterator[Person]:
    yield from person(secured, "bob")


def address(*names: str) -> str:
    return "/".join(quote(name, safe="") for name in names)


def columns_of(wire: Wire, *path: str) -> dict[str, tuple[str, bool, dict[str, str]]]:
    described = wire.table(path, "describe", {"load_detailed_metadata": True}, delimiter=BETWEEN).json()
    return {
        field["name"]: (field["type"]["type"], field["nullable"], field.get("metadata") or {})
        for field in described["schema"]["fields"]
    }


def test_namespace_and_table_of_odd_names_are_created_with_what_was_entered(ann: Person, wire: Wire) -> None:
    response = ann.send("/create-namespace/lab", name=ODD, properties="owner = ann\nsource=a=b")
    assert response.headers.get("location") == f"/console/namespace/{address('lab', ODD)}", response.text
    described = wire.namespace(["lab", ODD], "describe", delimiter=BETWEEN).json()["properties"]
    assert described == {"owner": "ann", "source": "a=b"}
    fields: dict[str, Any] = {
        "name": ODD,
        "comment": "<i>tables</i>",
        "column__name": ["id", ODD_COLUMN, "vector", ""],
        "column__type": ["bigint", "decimal(10, 2)", "vector(3)", ""],
        "column__comment": ["the key", "", "", ""],
        "column__nullable": ["1", "2", "3"],
        "action": "create",
    }
    response = ann.send(f"/create-table/{address('lab', ODD)}", **fields)
    assert response.headers.get("location") == f"/console/table/{address('lab', ODD, ODD)}", response.text
    found = columns_of(wire, "lab", ODD, ODD)
    assert {name: entry[:2] for name, entry in found.items()} == {
        "id": ("int64", False),
        ODD_COLUMN: ("decimal:128:10:2", True),
        "vector": ("fixed_size_list", True),
    }
    assert found["id"][2]["comment"] == "the key"
    page = ann.http.get(f"/table/{address('lab', ODD, ODD)}").text
    assert "&lt;i&gt;tables&lt;/i&gt;" in page and "<i>tables" not in page and "<b>" not in page


def test_form_that_is_refused_keeps_what_was_entered(ann: Person) -> None:
    fields: dict[str, Any] = {
        "name": "kept",
        "comment": "what it holds",
        "column__name": ["id", "second<"],
        "column__type": ["int64", "strnig"],
        "column__comment": ["", "the comment"],
        "column__nullable": ["1"],
        "action": "create",
    }
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({}, 400, "second<: 'strnig' is not a type"),
        ({"column__type": ["int64", "list<" * 50]}, 400, "is not a type"),
        ({"column__name": ["id", ""]}, 400, "needs a name and a type"),
        ({"column__name": ["", ""], "column__type": ["", ""], "column__comment": ["", ""]}, 400, "at least one column"),
        ({"name": ""}, 400, "Enter a name"),
        ({"name": "papers", "column__type": ["int64", "string"]}, 409, "exists"),
    ]
    for change, status, words in cases:
        sent = {**fields, **change}
        response = ann.send("/create-table/lab", **sent)
        text = unescape(response.text)
        assert (response.status_code, words in text) == (status, True), (change, response.status_code, text[:3000])
        if sent["name"]:
            assert f'value="{sent["name"]}"' in text and 'value="what it holds"' in text
        for name in sent["column__name"]:
            assert f'value="{name}"' in text
        assert '<nav id="tree"' in text or 'id="tree"' in text
    more = ann.send("/create-table/lab", **{**fields, "action": "more"})
    assert more.text.count('name="column-name"') == 7 and "strnig" in more.text
    refused = ann.send("/create-namespace/lab", name="x", properties="no equals sign")
    assert refused.status_code == 400 and "no equals sign" in refused.text


def test_table_is_renamed_commented_dropped_and_brought_back(ann: Person, wire: Wire) -> None:
    table = pa.table({"a": [1], "b c": ["x"]})
    wire.good(wire.table(["lab", "first"], "create", stream(table)))
    here = "/manage/lab/first"
    assert ann.send(here, action="comment", comment="of mine").status_code == 303
    assert ann.send(here, action="properties", properties="owner=ann\nstage=raw").status_code == 303
    assert wire.table(["lab", "first"], "describe").json()["properties"]["stage"] == "raw"
    refused = ann.send(here, action="properties", properties="tiltyard.x=1")
    assert refused.status_code == 400 and "tiltyard.x=1</textarea>" in refused.text
    sent = ann.send(here, action="columns", column=["a", "b c"], column__comment=["", "dotted"])
    assert sent.status_code == 303, sent.text
    assert columns_of(wire, "lab", "first")["b c"][2]["comment"] == "dotted"
    ann.send(here, action="columns", column=["a", "b c"], column__comment=["", ""])
    assert "comment" not in columns_of(wire, "lab", "first")["b c"][2]
    taken = ann.send(here, action="rename", name="papers", namespace="lab")
    assert taken.status_code == 409 and 'value="papers"' in taken.text
    moved = ann.send(here, action="rename", name=ODD, namespace="lab")
    assert moved.headers.get("location") == f"/console/manage/{address('lab', ODD)}", moved.text
    here = f"/manage/{address('lab', ODD)}"
    wrong = ann.send(here, action="drop", confirm="a.b/c")
    assert wrong.status_code == 400 and "nothing was dropped" in wrong.text
    assert wire.table(["lab", ODD], "exists", delimiter=BETWEEN).status_code == 200
    assert ann.send(here, action="drop", confirm=ODD).headers["location"] == "/console/namespace/lab"
    listed = ann.http.get("/dropped").text
    number = re.search(r'name="dropped_id" value="(\d+)"', listed)
    assert number is not None and "&lt;b&gt;" in listed
    back = {"action": "table", "id": ["lab", ODD], "dropped_id": number[1]}
    clash = ann.send("/dropped", **back, new_name="papers")
    assert clash.status_code == 409 and 'value="papers"' in clash.text
    assert ann.send("/dropped", **back, new_name="back").headers["location"] == "/console/table/lab/back"
    assert wire.table(["lab", "back"], "count_rows").json() == 1
    wire.good(wire.table(["lab", "back"], "drop"))


def test_namespace_is_dropped_with_its_name_typed_and_brought_back(ann: Person, wire: Wire) -> None:
    ann.send("/create-namespace/lab", name="inner")
    wire.good(wire.table(["lab", "inner", "t"], "create", stream(pa.table({"a": [1]}))))
    here = "/drop-namespace/lab/inner"
    assert "type its name" in ann.http.get(here).text
    assert ann.send(here, confirm="lab").status_code == 400
    full = ann.send(here, confirm="inner")
    assert full.status_code == 409 and "not empty" in full.text.lower(), full.text
    assert ann.send(here, confirm="inner", behavior="cascade").headers["location"] == "/console/namespace/lab"
    back = ann.send("/dropped", action="namespace", id=["lab", "inner"])
    assert back.headers.get("location") == "/console/namespace/lab/inner", back.text
    assert wire.table(["lab", "inner", "t"], "exists").status_code == 200


def test_index_form_offers_what_fits_the_column_and_builds_it(ann: Person, wire: Wire) -> None:
    def offered(column: str) -> list[str]:
        page = ann.http.get("/indexes/lab/papers", params={"column": column}).text
        return re.findall(r'<option value="([A-Z_]+)"', page)

    assert offered("id")[0] == "BTREE" and not {"FTS", "IVF_PQ", "LABEL_LIST"} & set(offered("id"))
    assert {"FTS", "NGRAM", "BITMAP"} <= set(offered("text"))
    assert offered("`v w`")[0] == "IVF_PQ" and all(kind.startswith("IVF_") for kind in offered("`v w`"))
    page = ann.http.get("/indexes/lab/papers", params={"column": "`v w`", "index_type": "IVF_FLAT"}).text
    assert "The vectors have 4 numbers" in page and '<option value="hamming"' not in page
    made = ann.send(
        "/indexes/lab/papers", action="create", column="`v w`", index_type="IVF_FLAT", distance_type="cosine", name="v"
    )
    assert made.status_code == 303, made.text
    fts = {"column": "text", "index_type": "FTS", "parameter.language": "German", "parameter.with_position": "yes"}
    assert ann.send("/indexes/lab/papers", action="create", **fts).status_code == 303
    wrong = ann.send("/indexes/lab/papers", action="create", **{**fts, "parameter.language": "Klingon", "name": "k"})
    assert wrong.status_code == 400 and 'value="Klingon"' in wrong.text and 'value="k"' in wrong.text, wrong.text
    twice = ann.send("/indexes/lab/papers", action="create", column="`v w`", index_type="IVF_FLAT", name="v")
    assert twice.status_code == 409, twice.text
    listed = ann.http.get("/indexes/lab/papers", headers={"hx-request": "true"}).text
    assert "<html" not in listed and "text_idx" in listed and ">v<" in listed
    dropped = ann.send("/indexes/lab/papers", action="drop", index="v")
    assert dropped.status_code == 303, dropped.text
    names = {entry["index_name"] for entry in wire.table(["lab", "papers"], "index/list").json()["indexes"]}
    assert names == {"text_idx"}


def test_tag_is_moved(ann: Person, wire: Wire) -> None:
    wire.good(wire.table(["lab", "tagged"], "create", stream(pa.table({"a": [1]}))))
    wire.good(wire.table(["lab", "tagged"], "insert", stream(pa.table({"a": [2]}))))
    here = "/versions/lab/tagged"
    assert ann.send(here, action="create-tag", tag="now", version="1").status_code == 303
    assert ann.send(here, action="move-tag", tag="now", version="2").status_code == 303
    found = wire.table(["lab", "tagged"], "tags/version", {"tag": "now"}).json()
    assert found["version"] == 2
    refused = ann.send(here, action="move-tag", tag="now", version="99")
    assert refused.status_code == 400, refused.text


def test_who_may_not_change_is_offered_nothing_and_refused(bob: Person, ann: Person, wire: Wire) -> None:
    words = ("create-table", "create-namespace", "drop-namespace", "/console/upload")
    assert not any(word in bob.http.get("/namespace/lab").text for word in words)
    assert all(word in ann.http.get("/namespace/lab").text for word in words)
    overview = bob.http.get("/table/lab/papers").text
    assert "/console/manage/" not in overview and "upload-into" not in overview
    indexes = bob.http.get("/indexes/lab/papers").text
    assert "Create an index" not in indexes and 'value="drop"' not in indexes
    managed = bob.http.get("/manage/lab/papers").text
    assert "Nothing to change" in managed and 'name="action"' not in managed
    for page in ("/create-table/lab", "/create-namespace/lab", "/drop-namespace/lab"):
        assert bob.http.get(page).status_code == 403, page
    before = columns_of(wire, "lab", "papers")
    forms: list[tuple[str, dict[str, Any]]] = [
        ("/create-table/lab", {"name": "t", "column__name": "a", "column__type": "int64", "column__comment": ""}),
        ("/create-namespace/lab", {"name": "n"}),
        ("/drop-namespace/lab", {"confirm": "lab", "behavior": "cascade"}),
        ("/manage/lab/papers", {"action": "rename", "name": "his", "namespace": "lab"}),
        ("/manage/lab/papers", {"action": "comment", "comment": "his"}),
        ("/manage/lab/papers", {"action": "columns", "column": "id", "column__comment": "his"}),
        ("/manage/lab/papers", {"action": "drop", "confirm": "papers"}),
        ("/indexes/lab/papers", {"action": "create", "column": "id", "index_type": "BTREE"}),
        ("/indexes/lab/papers", {"action": "drop", "index": "text_idx"}),
        ("/versions/lab/papers", {"action": "move-tag", "tag": "now", "version": "1"}),
    ]
    for target, fields in forms:
        response = bob.send(target, **fields)
        assert response.status_code == 403, (target, fields, response.status_code, response.text[:500])
        forged = ann.send(target, token="0" * 64, **fields)
        assert forged.status_code == 403, (target, forged.status_code)
    assert bob.http.get("/dropped").status_code == 200
    assert bob.send("/dropped", action="table", id=["lab", "back"]).status_code in (400, 404)
    assert columns_of(wire, "lab", "papers") == before
    assert wire.namespace(["lab"], "exists").status_code == 200
