"""What people guess from lancedb, pandas and deltalake, on a server and a folder: it works, or says the word to use."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

import make_guesses
import tiltyard
from tests.cli.conftest import wait_for
from tests.services.secured import Secured, secured_server
from tiltyard.calls.http_caller import HttpCaller, key_headers
from tiltyard.lake.operations.guesses import LAKE_GUESSES, TABLE_GUESSES
from tiltyard.model.text.sql_text import sql_literal

VECTORS = pa.array([[float(number), 0.0] for number in range(10)], pa.list_(pa.float32(), 2))
FILMS = pa.table({"id": range(10), "title": [f"film {number}" for number in range(10)], "vector": VECTORS})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start a server for the whole file; bob may read `bound`, within a policy on its table."""
    with secured_server(tmp_path_factory.mktemp("guesses")) as secured:
        with HttpCaller(secured.url, key_headers(secured.keys["administrator"])) as catalog:
            catalog.call("CreateNamespace", id=["bound"])
            catalog.write("CreateTable", FILMS.append_column("ssn", FILMS["title"]).to_reader(), id=["bound", "films"])
            masks = [{"column": "ssn", "mask": "hide"}, {"column": "title", "mask": "null"}]
            catalog.call("SetTablePolicy", id=["bound", "films"], name="own", filter="id > 5", masks=masks)
            read = {"object_kind": "namespace", "id": ["bound"], "grantee": "bob", "privileges": ["read", "write"]}
            catalog.call("GrantPrivileges", **read)
        yield secured


@pytest.fixture(params=["server", "folder"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tiltyard.Lake:
    if request.param == "folder":
        return tiltyard.connect(tmp_path / "root")
    secured = request.getfixturevalue("secured")
    return tiltyard.connect(secured.url, api_key=secured.keys["administrator"])


@pytest.fixture
def films(request: pytest.FixtureRequest, lake: tiltyard.Lake) -> tiltyard.Table:
    """Return a table of ten films, under a name that no other test has."""
    return lake.create_table(f"table_{abs(hash(request.node.nodeid))}", FILMS)


def test_lake_is_opened_as_others_are(lake: tiltyard.Lake, films: tiltyard.Table) -> None:
    assert films.name in lake and f"{films.name}_no" not in lake and films.name in list(lake)
    assert films.name in lake.list_tables() and lake.open_table(films.name).count() == len(lake[films.name]) == 10  # type: ignore[attr-defined]
    with pytest.raises(TableNotFoundError):
        lake.open_table("no_such_table")
    with pytest.raises(TableAlreadyExistsError):
        lake.create_table(films.name, FILMS)
    assert lake.create_table(films.name, FILMS[:2], exist_ok=True).count() == 10
    assert lake.create_table(films.name, FILMS[:2], mode="overwrite").count() == 2
    with lake as same:
        empty = same.create_table(f"{films.name}_e", schema=FILMS.schema)
        assert empty and len(empty) == 0 and empty.schema.names == FILMS.schema.names
        assert empty.sample().num_rows == 0
    typed = lake.create_table(f"{films.name}_t", [{"id": 1}], schema=pa.schema({"id": pa.int32()}))
    assert typed.schema.field("id").type == pa.int32()
    typed.delete(where="id = 1")
    assert [run.name for run in lake.jobs(name="delete", limit=1)] == ["delete"]
    lake.drop_table(typed.name)
    assert typed.name not in lake
    assert lake.sql(f"SELECT count(*) AS n, max(title) AS t FROM {films.name}").to_pylist() == [{"n": 2, "t": "film 1"}]
    for wrong in (lambda: lake.create_table("x"), lambda: lake.create_table("x", FILMS, mode="append")):
        with pytest.raises(InvalidInputError):
            wrong()


def test_rows_are_read_as_arrow_by_others(films: tiltyard.Table) -> None:
    assert pa.table(films).equals(films.to_batches().read_all())  # type: ignore[arg-type]  # pyarrow's stubs lack it
    assert duckdb.sql("SELECT count(*), max(title) FROM films").fetchall() == [(10, "film 9")]
    assert films.count_rows("id < 3") == 3 and films.limit(2).num_rows == 2  # type: ignore[attr-defined]
    sampled = films.sample(4, columns="id", seed=1)
    assert sampled.num_rows == len(set(sampled["id"].to_pylist())) == 4 and sampled.column_names == ["id"]
    assert sampled.equals(films.sample(4, columns="id", seed=1)) and films.sample(50).num_rows == 10
    other = tiltyard.connect(films._lake.location, properties=dict(films._lake.catalog.properties)).create_table(
        f"{films.name}_copy", films
    )
    assert other.count() == 10


def test_frame_of_polars_is_made_of_the_batches(films: tiltyard.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=pa.table))  # which is not installed here
    assert films.to_polars("id", "id < 2").to_pylist() == [{"id": 0}, {"id": 1}]


def test_search_finds_by_vector_and_refuses_what_is_none(films: tiltyard.Table) -> None:
    found = films.search(np.array([7.0, 0.0]), k=2, where="id <> 7", columns=["id"])
    assert sorted(found["id"].to_pylist()) == [6, 8] and found.column_names == ["id", "_distance"]
    assert films.search([7.0, 0.0], k=1, metric="dot")["id"].to_pylist() == [9]
    assert "vector" in films.search([7.0, 0.0], k=1, version=1).column_names
    for wrong in (
        lambda: films.search("film", nprobes=3),
        lambda: films.search([1.0], text_columns="title"),
        lambda: films.search(["a"]),  # type: ignore[list-item]  # that is what is tested
        lambda: films.search([1.0, 0.0], version=1, tag="x"),
    ):
        with pytest.raises(InvalidInputError):
            wrong()


def test_search_finds_by_text_and_by_both(secured: Secured) -> None:
    lake = tiltyard.connect(secured.url, api_key=secured.keys["administrator"])
    films = lake.create_table("searched", FILMS)
    lake.calls.call("CreateTableIndex", id=["searched"], column="title", index_type="FTS")
    wait_for(lambda: films.version > 1)  # until then it is listed as one that is built
    found = films.search("7", columns="id")
    assert found["id"].to_pylist() == [7] and found.column_names == ["id", "_score"]
    both = films.search([3.0, 0.0], k=2, text="7", text_columns=["title"], columns=["id"])
    assert both.num_rows == 2 and both["id"].to_pylist()[0] == 7 and "_relevance_score" in both.column_names
    films.drop_index(films.list_indices()[0]["index_name"])
    assert films.list_indices() == []


def test_versions_are_read_restored_and_tagged(films: tiltyard.Table) -> None:
    between = datetime.now(UTC) + timedelta(milliseconds=2)
    while datetime.now(UTC) < between:
        pass
    films.append([{"id": 10, "title": "film 10", "vector": [0.0, 1.0]}])  # type: ignore[attr-defined]
    films.tags.create("two", 2)
    assert films.tags.list()["two"]["version"] == films.tags.get_version("two") == 2
    films.tags.update("two", 1)
    assert [entry["version"] for entry in films.versions()] == [2, 1]
    assert [entry["version"] for entry in films.history(limit=1)] == [2]  # type: ignore[attr-defined]
    assert films.versions()[0]["timestamp"] > between
    assert [films.at(moment).count() for moment in (1, 2, "two", between, datetime.now(UTC))] == [10, 11, 10, 10, 11]
    assert films.at("two").search([0.0, 1.0], k=1)["id"].to_pylist() == [0] and films.at(1).list_indices() == []
    films.tags.delete("two")
    films.restore(1)
    assert (films.version, films.count(), films.tags.list()) == (3, 10, {})
    with pytest.raises(TableVersionNotFoundError, match="no version as old as"):
        films.at(datetime(2000, 1, 1, tzinfo=UTC))
    for wrong in (None, 1.5):
        with pytest.raises(InvalidInputError, match="moment is"):
            films.at(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="no zone"):
        films.at(datetime.now())  # noqa: DTZ005  # that is what is tested


def test_rows_are_changed_as_others_change_them(films: tiltyard.Table) -> None:
    run = films.update({"title": "it's \\ 5", "vector": np.array([5.5, 1.0])}, where="id = 5")
    assert (run.rows, run.version) == (1, 2)
    assert films.update(values_sql={"id": "id + 100"}, where="id > 7").rows == 2
    assert films.to_arrow("title,vector", "id = 5").to_pylist() == [{"title": "it's \\ 5", "vector": [5.5, 1.0]}]
    merged = FILMS.slice(0, 2).set_column(1, "title", pa.array(["zero", "one"]))
    more = [{"id": 50, "title": "fifty", "vector": [5.0, 0.0]}]
    run = films.merge_insert("id").when_matched_update_all().execute(merged)
    assert (run.figures["updated"], run.figures["inserted"]) == ("2", "0")
    assert films.merge_insert("id").when_not_matched_insert_all().execute(more).figures["inserted"] == "1"
    films.upsert([{"id": 50, "title": "50", "vector": [5.0, 0.0]}], key="id")
    assert films.to_arrow("title", "id IN (0, 1, 50)")["title"].to_pylist() == ["zero", "one", "50"]
    assert films.delete(where="id = 50").rows == 1 and films.count() == 10
    run = films.merge_insert("id").when_not_matched_by_source_delete("id > 100").execute(merged)
    assert run.figures["deleted"] == "2"
    for wrong, error in (
        (lambda: films.update({"title": {"a": 1}}), InvalidInputError),
        (lambda: films.update("id = 5"), InvalidInputError),  # type: ignore[arg-type]
        (films.update, InvalidInputError),
        (lambda: films.delete("id = 1", where="id = 1"), InvalidInputError),  # type: ignore[call-overload]
        (films.delete, TypeError),
        (lambda: films.upsert(more), TypeError),  # type: ignore[call-overload]
        (lambda: films.merge_insert("id").execute("rows.parquet"), InvalidInputError),
    ):
        with pytest.raises(error):
            wrong()


def test_columns_are_altered_dropped_and_the_table_renamed(lake: tiltyard.Lake, films: tiltyard.Table) -> None:
    films.alter("title", rename="name", nullable=True)
    films.alter("id", type="int32")
    assert films.schema.field("id").type == pa.int32() and films.schema.names == ["id", "name", "vector"]
    assert films.drop_columns("name").version == 4 and films.schema.names == ["id", "vector"]
    with pytest.raises(InvalidInputError, match="rename, type or nullable"):
        films.alter("id")
    renamed = films.rename(f"{films.name}_new")
    assert renamed.count() == 10 and films.name not in lake
    shop = lake.namespace(f"{films.name}_shop").create()
    assert renamed.rename(f"{shop.name}.moved").name in shop.tables()


def changes(table: tiltyard.Table) -> dict[str, Callable[[], object]]:
    """Return calls of all new methods that change a table."""
    return {
        "update": lambda: table.update({"title": "x"}),
        "merge_insert": lambda: table.merge_insert("id"),
        "restore": lambda: table.restore(1),
        "rename": lambda: table.rename("x"),
        "drop_columns": lambda: table.drop_columns("title"),
        "alter": lambda: table.alter("title", rename="x"),
        "drop_index": lambda: table.drop_index("x"),
        "tags": lambda: table.tags.create("x", 1),
        "add_column": lambda: table.add_column("x", "id"),
    }


def test_table_of_a_snapshot_or_a_publication_refuses_what_changes_it(films: tiltyard.Table) -> None:
    for name, change in {**changes(films.at(1)), "append": lambda: films.at(1).append(FILMS)}.items():  # type: ignore[attr-defined]
        with pytest.raises(InvalidInputError, match="A snapshot is immutable"):
            change()
        assert name
    with films._lake.publish() as block:  # type: ignore[attr-defined]
        inner = block[films.name]
        inner.append(FILMS[:1])
        assert len(inner) == pa.table(inner).num_rows == 11
        refused = {
            **changes(inner),
            "sql": lambda: block.sql("SELECT 1"),
            "search": lambda: inner.search([1.0, 0.0]),
            "versions": inner.versions,
        }
        for name, change in refused.items():
            with pytest.raises(InvalidInputError, match="no part of a publication"):
                change()
            assert name
    assert films.version == 2 and films.schema.names == FILMS.schema.names


def test_masked_reader_sees_what_the_policy_shows(secured: Secured) -> None:
    lake = tiltyard.connect(secured.url, api_key=secured.keys["bob"])
    films = lake["bound.films"]
    assert lake.sql("SELECT max(title) AS t, count(*) AS n FROM bound.films").to_pylist() == [{"t": None, "n": 4}]
    visible = [{"id": number, "title": None} for number in range(6, 10)]
    assert films.schema.names == ["id", "title", "vector"] and len(films) == films.count() == 4
    assert films.to_arrow("id, title").to_pylist() == visible
    assert pa.table(films).column_names == ["id", "title", "vector"]  # type: ignore[arg-type]
    assert films.to_pandas(filter="id < 8")["id"].tolist() == [6, 7] and films.count("id < 8") == 2
    sampled = films.sample(2)
    assert sampled.num_rows == 2 and sampled["title"].null_count == 2 and min(sampled["id"].to_pylist()) > 5
    found = films.search([0.0, 0.0], k=3)
    assert found["id"].to_pylist() == [6, 7, 8] and found["title"].null_count == 3 and "ssn" not in found.column_names
    assert films.update({"vector": [0.0, 0.0]}, where="id < 3").rows == 0
    for refused in (
        lambda: films.at(1).to_arrow(),
        films.versions,
        lambda: films.merge_insert("id").when_matched_update_all().execute(FILMS),
        lambda: films.update({"ssn": "x"}),
        lambda: films.drop_columns("ssn"),
        lambda: films.search([0.0, 0.0], columns="ssn"),
    ):
        with pytest.raises((PermissionDeniedError, InvalidInputError)):
            refused()


def test_every_guess_is_a_method_or_says_its_word(films: tiltyard.Table) -> None:
    for owner, guesses in ((films._lake, LAKE_GUESSES), (films, TABLE_GUESSES)):
        for name, guess in guesses.items():
            assert hasattr(type(owner), name) is (name == guess.word), name
            if name == guess.word:
                continue
            if guess.says:
                with pytest.raises(AttributeError, match=re.escape(guess.word)):
                    getattr(owner, name)
            else:
                assert getattr(owner, name) == getattr(owner, guess.word) and callable(getattr(owner, name)), name
    with pytest.raises(AttributeError, match="'Table' object has no attribute 'nothing'"):
        films.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_page_has_the_guesses_of_the_code_and_its_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_guesses.main(["--check"]) == 0
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", make_guesses.TARGET.read_text(), re.DOTALL):
        exec(compile(code, "docs/python.md", "exec"), names := {})  # our own page
        assert names["films"].count() > 0


def test_literals_are_what_they_were(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "text": "a'b''c\\'; --\n\"`%",
        "empty": "",
        "number": -(2**63),
        "real": -1.5e-300,
        "infinite": float("inf"),
        "truth": True,
        "bytes": b"\x00'\xff",
        "day": datetime(2026, 2, 3, tzinfo=UTC).date(),
        "time": datetime(2026, 2, 3, 4, 5, 6, 789),  # noqa: DTZ001  # without a zone
        "zoned": datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC),
        "list": [1, 2],
        "nothing": None,
    }
    zoned = pa.timestamp("us", "UTC")
    schema = pa.Table.from_pylist([values]).schema.set(9, pa.field("zoned", zoned)).set(11, pa.field("nothing", "int8"))
    row = dict.fromkeys(values) | {"nothing": 5}
    table = tiltyard.connect(tmp_path).create_table("values", pa.Table.from_pylist([row], schema=schema))
    table.update(values)
    assert table.to_arrow().to_pylist() == [values]
    assert sql_literal(np.float64(0.5), "x") == "0.5"
