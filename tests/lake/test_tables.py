"""Tables of a lake in Python: rows of this process in and out, all at once or not at all, without Spark."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

import tiltyard
from tests.services.server import ServerProcess
from tiltyard.lake.tables.sources import BATCH_ROWS, open_stream

ROWS = {"id": list(range(100)), "title": [f"film {number}" for number in range(100)]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server for the whole file."""
    server = ServerProcess(tmp_path_factory.mktemp("lake"))
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["server", "folder"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tiltyard.Lake:
    """Return a lake over a server, and one over a folder."""
    if request.param == "folder":
        return tiltyard.connect(tmp_path / "root")
    return tiltyard.connect(request.getfixturevalue("server").url)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses."""
    return f"table_{abs(hash(request.node.nodeid))}"


def test_a_plain_view_is_read_as_tables_are_and_says_that_it_is_one(lake: tiltyard.Lake, name: str) -> None:
    lake.create_table(name, ROWS)
    view = lake.table(f"{name}_late")
    query = f"SELECT id, title FROM {name} WHERE id >= 90"
    lake.calls.call("CreateView", id=[view.name], query=query)
    assert (view.count(), view.count("id > 95"), view.schema.names) == (10, 4, ["id", "title"])
    assert view.to_arrow("id", "id < 92")["id"].to_pylist() == [90, 91]
    assert pa.table(view).num_rows == 10 and view.sample(3).num_rows == 3 and view.head(2).num_rows == 2
    for refused in (view.dataset, view.list_indices, view.tags.list, lambda: view.erase("id = 1")):
        with pytest.raises((InvalidTableStateError, UnsupportedOperationError), match="is a view"):
            refused()


def test_foreign_keys_are_looked_up_in_the_other_table(lake: tiltyard.Lake, name: str) -> None:
    genres, films = lake.table(f"{name}_genres"), lake.table(name)
    genres.ingest([{"name": "drama", "number": 1}, {"name": "war", "number": 2}])
    rows = pa.table({"id": [1, 2, 3], "genre": ["war", None, "war"]})
    check = f"foreign_key(genre, {name}_genres.name)"
    assert json.loads(films.ingest(rows, checks=check).figures["checks"])[0]["passed"]
    with pytest.raises(InvalidInputError, match=r"genres.name\): 2 keys are not there"):
        films.write(pa.table({"id": [4, 5, 6], "genre": ["love", "war", "play"]}), checks=check)
    for wrong, reason in {
        "nothing.name": "nothing",
        f"{name}_genres.named": "has no column 'named'",
        f"{name}_genres.number": "'genre' is string, and 'number' int64",
        "name": "name a column of a table",
    }.items():
        with pytest.raises((InvalidInputError, TableNotFoundError), match=reason):
            films.write(rows, checks=f"foreign_key(genre, {wrong})")
    assert films.count() == 3


def test_rows_are_ingested_written_upserted_and_read(lake: tiltyard.Lake, name: str) -> None:
    films = lake.table(name)
    assert not films.exists()
    made = films.ingest(pa.table(ROWS), checks=["unique(id)", "rows == 100", "warn: in_set(title, film)"])
    assert (made.status, made.rows, made.version, made.progress) == ("Succeeded", 100, 1, 1.0)
    assert {check["check"]: check["passed"] for check in json.loads(made.figures["checks"])} == {
        "rows == 100": True, "warn: in_set(title, film)": False, "unique(id)": True
    }  # fmt: skip
    assert films.write([{"id": 100, "title": "appended"}]).version == 2
    changed = pd.DataFrame({"id": [5, 200], "title": ["five", "new"]})
    assert films.upsert(changed, on="id").figures | {"version": "", "bytes": ""} == {
        "version": "", "rows": "2", "updated": "1", "inserted": "1", "replaced": "1", "rejected": "0", "fragments": "1",
        "bytes": "",
    }  # fmt: skip
    assert (films.count(), films.count("id >= 100"), films.version) == (102, 2, 3)
    assert films.to_arrow("title, id", "id = 5").to_pylist() == [{"title": "five", "id": 5}]
    assert films.to_arrow(filter="id = 5", version=1).to_pylist() == [{"id": 5, "title": "film 5"}]
    assert films.to_pandas(columns=["id"], filter="id >= 100")["id"].tolist() == [100, 200]
    assert films.head(3).num_rows == 3 and films.schema.names == ["id", "title"]
    assert "102 rows" in films._repr_html_() and "<td>title</td>" in films._repr_html_()
    films.drop()
    assert not films.exists() and name not in lake.tables()


def test_namespaces_hold_tables_by_typed_ids(lake: tiltyard.Lake, name: str) -> None:
    shop = lake.namespace(name).create()
    with pytest.raises(NamespaceAlreadyExistsError):
        shop.create()
    shop.create(exist_ok=True).table('"a.b"').ingest([{"a": 1}])
    assert shop.tables() == [f'{name}."a.b"'] and name in lake.namespaces() and shop.namespaces() == []
    assert lake.table(shop.tables()[0]).count() == 1
    assert "a.b" in shop._repr_html_()
    lake.table(f'{name}."a.b"').drop()
    shop.drop()
    assert name not in lake.namespaces()


def test_publish_shows_all_tables_at_once_or_none(lake: tiltyard.Lake, name: str) -> None:
    films, words = lake.table(f"{name}_films"), lake.table(f"{name}_words")
    films.ingest(pa.table(ROWS))
    with lake.publish() as change:
        inner = change.table(films.name)
        change.table(words.name).ingest([{"word": "a"}])
        inner.write([{"id": 100, "title": "appended"}])
        inner.upsert([{"id": 5, "title": "five"}], on="id")
        assert (inner.count(), films.count(), words.exists()) == (101, 100, False)
        assert inner.to_arrow(filter="id = 5")["title"].to_pylist() == ["five"]
        for refused in (inner.optimize, inner.drop, inner.to_spark, lambda: change.create_view("v", "SELECT 1")):
            with pytest.raises(InvalidInputError, match="no part of a publication"):
                refused()
    assert (films.count(), words.count()) == (101, 1)
    with suppress(KeyError), lake.publish() as change:
        change.table(f"{name}_other").ingest([{"a": 1}])
        change.table(films.name).write([{"id": 101, "title": "never"}])
        raise KeyError("stop")
    assert films.count() == 101 and f"{name}_other" not in lake.tables()
    with pytest.raises(InvalidInputError, match="has ended"):
        inner.count()


def refusals() -> dict[str, tuple[Any, str]]:
    """Return calls that are refused, by what they are, each with a part of its message."""
    row, two = [{"id": 1, "title": "a"}], [{"id": 1, "title": "a"}, {"id": 1, "title": "b"}]
    return {
        "no source": (lambda films: films.write(5), "source is a int: it has to be a path or URI of files, a Data"),
        "an empty list": (lambda films: films.write([]), "source is an empty list"),
        "a mode that is none": (lambda films: films.ingest(row, mode="crate"), "mode is one of create, append, overwr"),
        "an option of files": (lambda films: films.write(row, format="csv"), "format is an option of files"),
        "jdbc as a path": (lambda films: films.write("jdbc:x"), r"tiltyard.Jdbc\('jdbc:x', table=…\)"),
        "a column too many": (lambda films: films.write([{"id": 1, "x": 1}]), "The table has no column 'x'"),
        "a value that does not fit": (lambda films: films.write([{"id": "a", "title": ""}]), r"\(rejects\)"),
        "a type that is none": (lambda films: films.write(row, cast={"id": "int33"}), "'int33' is not a type"),
        "a key twice": (lambda films: films.upsert(two, on="id"), "a key that an earlier row has"),
        "a key that is no column": (lambda films: films.upsert(row, on="idd"), "has no column 'idd'; it has id, title"),
        "a filter that is none": (lambda films: films.count("nothing = 1"), "filter: No field named nothing"),
        "two versions": (lambda films: films.to_arrow(version=1, tag="a"), "version and tag both name what to read"),
        "rows for a worker": (lambda films: films.write(row, submit=True), "submit: rows of this process cannot be"),
        "no rows of a file": (lambda films: films.write(row, rows_per_file=0), "rows_per_file is 0: it is at least 1"),
        "a function by its name": (
            lambda films: films.add_column("n", "words.py:length", inputs=["title"], type="int32"),
            "function is an SQL expression, which names its columns",
        ),
        "a function without inputs": (lambda films: films.add_column("n", len), "A function needs inputs"),
    }  # fmt: skip


def test_bad_arguments_are_named_and_change_nothing(tmp_path: Path) -> None:
    lake = tiltyard.connect(tmp_path / "root")
    films = lake.table("films")
    films.ingest(pa.table(ROWS))
    for what, (call, sentence) in refusals().items():
        with pytest.raises(InvalidInputError, match=sentence) as refused:
            call(films)
        assert "--" not in str(refused.value), what
        assert (films.version, films.count(), lake.tables()) == (1, 100, ["films"]), what
    with pytest.raises(InvalidInputError, match="1 keys are there more than once"):
        films.write([{"id": 5, "title": "again"}], checks="unique(id)")
    both = "rows == 2: 1 rows; unique\\(id\\): 1 keys are there more than once"
    with pytest.raises(InvalidInputError, match=both):
        films.write([{"id": 5, "title": "again"}], checks=["rows == 2", "unique(id)"])
    with pytest.raises(InvalidInputError, match="1 keys are there more than once"):
        lake.table("twice").ingest([{"id": 1}, {"id": 1}], checks="unique(id)")
    with pytest.raises(TableAlreadyExistsError, match="append to it"):
        films.ingest([{"id": 1, "title": "a"}])
    for call in (lambda: lake.table("none").write([{"a": 1}]), lambda: lake.table("none").upsert([{"a": 1}], on="a")):
        with pytest.raises(TableNotFoundError, match="none"):
            call()
    for location, options, sentence in (
        ("", {}, "location is empty"),
        (tmp_path, {"api_key": "k"}, "api_key is for a server"),
        (tmp_path, {"master": "local", "remote": "sc://x"}, "master and remote"),
    ):
        with pytest.raises(InvalidInputError, match=sentence):
            tiltyard.connect(location, **options)
    for name in ("", "a..b", 'a"b'):
        with pytest.raises(InvalidInputError, match="name"):
            lake.table(name)
    assert lake.tables() == ["films"]


def test_rows_that_fail_as_they_are_read_leave_nothing(tmp_path: Path) -> None:
    lake = tiltyard.connect(tmp_path / "root")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": [1]})
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        lake.table("broken").ingest(pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches()))
    assert lake.tables() == []
    with pytest.raises(InvalidInputError, match="source yields a int among its batches"):
        lake.table("broken").ingest(iter([pa.record_batch({"a": [1]}), 5]))
    assert lake.tables() == [] and list((tmp_path / "root").rglob("*.lance/data/*")) == []


def test_rejects_take_rows_that_do_not_fit(tmp_path: Path) -> None:
    films = tiltyard.connect(tmp_path / "root").table("films")
    films.ingest(pa.table(ROWS))
    rows = [{"id": "7", "title": "seven"}, {"id": "x", "title": "no number"}]
    run = films.upsert(rows, on="id", rejects=tmp_path / "bad")
    assert (run.figures["updated"], run.figures["rejected"], films.count()) == ("1", "1", 100)
    [file] = (tmp_path / "bad").iterdir()
    assert '"no number"' in file.read_text()


class Exports:
    """Rows that have Arrow's interface and nothing else, as frames of polars and relations of DuckDB do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def sources(folder: Path) -> dict[str, Any]:
    """Return the same two rows, in each form."""
    rows = pa.table({"a": [1, 2], "b": ["x", None]})
    pq.write_table(rows, folder / "rows.parquet")
    return {
        "table": rows,
        "batch": rows.to_batches()[0],
        "reader": rows.to_reader(),
        "batches": iter(rows.to_batches()),
        "data set": pyarrow.dataset.dataset(folder / "rows.parquet"),
        "pandas": rows.to_pandas(),
        "pandas with an index": rows.to_pandas().set_index("a"),
        "pandas, filtered": pd.concat([rows.to_pandas()] * 2)[2:],
        "mappings": rows.to_pylist(),
        "mappings of different columns": [{"a": 1, "b": "x"}, {"a": 2}],
        "a generator of mappings": (row for row in rows.to_pylist()),
        "columns": {"a": np.array([1, 2]), "b": ["x", None]},
        "arrow's interface": Exports(rows),
    }


def test_sources_of_each_form_are_the_same_rows(tmp_path: Path) -> None:
    for form, source in sources(tmp_path).items():
        assert open_stream(source).read_all().to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}], form


def test_generator_of_rows_is_read_in_batches_of_the_first_ones_columns() -> None:
    def rows(late: object) -> Iterator[dict[str, object]]:
        yield from ({"a": number, "b": float(number)} for number in range(BATCH_ROWS))
        yield {"a": late}

    read = open_stream(rows(7)).read_all()
    assert read.num_rows == BATCH_ROWS + 1 and read.slice(BATCH_ROWS).to_pylist() == [{"a": 7, "b": None}]
    for wrong, message in (
        (rows("seven"), "'a' is int64 in the first 8192 rows, and not later"),
        (itertools.chain(rows(1), [{"c": 1}]), "the column 'c' after 8192 rows without it"),
        (itertools.chain(rows(1), [5]), "a int among its rows"),
        (iter([{"a": 1}, {"a": "x"}]), "no common type of 'a'"),
        ({"a": 1}, "a mapping, and not one of columns"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            open_stream(wrong).read_all()


def test_udf_of_rows_is_called_with_batches(tmp_path: Path) -> None:
    table = tiltyard.connect(tmp_path / "root").table("doubled")
    table.ingest(
        pa.table({"a": range(5)}), udf=lambda rows: pa.record_batch([pa.compute.multiply(rows["a"], 2)], ["twice"])
    )
    assert table.to_arrow()["twice"].to_pylist() == [0, 2, 4, 6, 8]


def test_run_without_wait_is_watched_and_canceled(tmp_path: Path) -> None:
    lake, more = tiltyard.connect(tmp_path / "root"), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": [1, 2]})
        more.wait(60)
        yield pa.record_batch({"a": [3]})

    schema = pa.schema([("a", pa.int64())])
    run = lake.table("first").ingest(pa.RecordBatchReader.from_batches(schema, batches()), wait=False)
    with pytest.raises(TimeoutError, match="ingest has not ended"):
        run.wait(timeout=0.05)
    assert run.status == "Running" and run.version is None and "<progress" in run._repr_html_()
    more.set()
    assert run.wait().rows == 3 and run.version == 1 and "<progress" not in run._repr_html_()
    run.cancel()
    assert run.status == "Succeeded"

    more.clear()
    run = lake.table("second").ingest(pa.RecordBatchReader.from_batches(schema, batches()), wait=False)
    run.cancel()
    more.set()
    with pytest.raises(tiltyard.RunCanceledError, match=r"ingest was canceled: nothing was committed"):
        run.wait()
    assert run.status == "Canceled" and lake.tables() == ["first"]


def test_import_of_the_package_imports_neither_spark_nor_lance() -> None:
    code = (
        "import sys, tiltyard; assert not {'pyspark', 'lance', 'lance_namespace', 'pyarrow'} & sys.modules.keys()\n"
        "import tiltyard.lake; assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_jobs_of_a_missing_table_say_so_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiltyard.Namespace(str(tmp_path)).close()
    lake = tiltyard.connect(tmp_path)
    monkeypatch.setattr(tiltyard.Lake, "spark", property(lambda _: pytest.fail("Spark was started")))
    table = lake.table("none")
    calls: dict[str, Callable[[], object]] = {
        "delete": lambda: table.delete("a = 1"),
        "export": lambda: table.export(tmp_path / "out"),
        "backfill": lambda: table.backfill("c", "a + 1"),
        "create_index": lambda: table.create_index("a"),
        "deduplicate": lambda: table.deduplicate("a"),
        "optimize": table.optimize,
        "refresh": lake.view("none").refresh,
        "upsert": lambda: table.upsert([{"a": 1}], on="a"),
    }
    for call in calls.values():
        with pytest.raises(TableNotFoundError, match="none"):
            call()
