"""Views of code: chunkers, which are called with single rows, and UDTFs, which are called with a group of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from lance_namespace import AlterTableAddColumnsRequest, DescribeTableRequest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tests.services.server import ServerProcess
from tests.spark.task_payloads import clients_imported, recorded
from tests.spark.views import (
    contents,
    create_view,
    failing,
    numbers,
    spec,
    totals,
    whole,
    words,
    words_but_of_one,
    write,
)
from tiltyard.model.jobs import UDFS_VARIABLE
from tiltyard.pipeline.catalog_client import CatalogConnection, connection, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.views.job import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Refreshed = Callable[..., Mapping[str, Any]]

WORDS = pa.schema([("id", pa.int64()), ("word", pa.string()), ("number", pa.int16())])
TOTALS = pa.schema([("id", pa.int64()), ("count", pa.int32()), ("sum", pa.int64())])


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogConnection]:
    """A server that lets clients declare code."""
    server = ServerProcess(tmp_path_factory.mktemp("coded"), environ={"TILTYARD_UDFS": "true"})
    yield connection(server.url)
    server.stop()


@pytest.fixture
def refreshed(spark: SparkSession, coded: CatalogConnection) -> Refreshed:
    """Refreshes a view here; its figures."""
    return lambda name, **options: refresh(LocalRun(), coded, spark, name, **options)


def test_refresh_with_code_sends_workers_nothing_that_imports_the_client(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, view = chunked(coded, fresh)
    sent = recorded(monkeypatch)
    refreshed(view)
    source, sums = fresh("source"), fresh("view")
    write(coded, source, pa.table({"id": [1, 2], "group": [1, 1]}))
    code = spec("udtf", totals, None, partition_by="group")
    create_view(coded, sums, f"SELECT * FROM {source}", TOTALS, kind="udtf", udtf_spec=code)
    refreshed(sums)
    assert len(sent) == 2
    assert clients_imported(sent, tmp_path) == ["[]"] * 2


def two_words(first: int, end: int) -> list[dict[str, Any]]:
    rows = [(number, word) for number in range(max(1, first), end) for word in enumerate(("row", str(number)))]
    return [{"id": number, "word": word, "number": location} for number, (location, word) in rows]


def rows_of(coded: CatalogConnection, view: str) -> list[dict[str, Any]]:
    return sorted(contents(coded, view).to_pylist(), key=lambda row: (row["id"], row["number"]))


def chunked(coded: CatalogConnection, fresh: Fresh, rows: int = 20) -> tuple[str, str]:
    source, view = fresh("source"), fresh("view")
    write(coded, source, numbers(0, rows))
    code = spec("chunker", words, ["id", "text"])
    create_view(coded, view, f"SELECT id, text FROM {source}", WORDS, kind="chunker", udtf_spec=code)
    return source, view


def test_refresh_of_a_chunker_makes_rows_of_new_rows_alone_and_takes_other_columns_along(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = chunked(coded, fresh)
    assert (refreshed(view)["rows"], rows_of(coded, view)) == (38, two_words(0, 20))
    write(coded, source, numbers(20, 25), "append")
    figures = refreshed(view)
    assert (figures["mode"], figures["rows"]) == ("incremental", 10)
    assert rows_of(coded, view) == two_words(0, 25)
    assert refreshed(view)["mode"] == "unchanged"
    table(coded, source).dataset().delete("id < 5")  # what the code made of those rows is not known
    assert (refreshed(view)["mode"], rows_of(coded, view)) == ("full", two_words(5, 25))


def test_refresh_of_a_chunker_of_whole_batches(coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed) -> None:
    source, view = fresh("source"), fresh("view")
    write(coded, source, numbers(0, 5))
    code = spec("chunker", whole, ["text"], batch=True)
    create_view(coded, view, f"SELECT * FROM {source} WHERE id > 1", WORDS, kind="chunker", udtf_spec=code)
    refreshed(view)
    expected = [{"id": n, "word": f"row {n}", "number": location} for n in range(2, 5) for location in (0, 1)]
    assert rows_of(coded, view) == expected


def test_refresh_of_a_chunker_parks_rows_that_it_fails_on_or_leaves_them_without_values(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed, tmp_path: Path
) -> None:
    source, view = fresh("source"), fresh("view")
    write(coded, source, numbers(1, 5))
    code = spec("chunker", words_but_of_one, ["id", "text"])
    create_view(coded, view, f"SELECT id, text FROM {source}", WORDS, kind="chunker", udtf_spec=code)
    with pytest.raises(InvalidInputError, match="failed: ValueError: no words"):
        refreshed(view)
    with pytest.raises(InvalidInputError, match="on_error is park: name a folder"):
        refreshed(view, on_error="park")
    refreshed(view, rejects=str(tmp_path / "bad"))
    others = [row for row in two_words(1, 5) if row["id"] != 3]
    assert rows_of(coded, view) == others
    [file] = (tmp_path / "bad").iterdir()
    assert '"reason": "The code of' in file.read_text() and '"row": {"id": 3, "text": "row 3"}' in file.read_text()
    refreshed(view, full=True, on_error="null")
    without = {"id": 3, "word": None, "number": None}
    assert sorted(contents(coded, view).to_pylist(), key=lambda row: (row["id"], row["number"] or 0)) == [
        *others[:4], without, *others[4:]
    ]  # fmt: skip


def test_refresh_with_an_output_limit_caps_the_view_and_later_makes_up_for_it(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = chunked(coded, fresh)
    assert refreshed(view, output_limit=7)["rows"] == 7
    result = rows_of(coded, view)
    assert len(result) == 7
    assert all(row in two_words(0, 20) for row in result)
    assert refreshed(view, output_limit=7)["mode"] == "unchanged"
    assert "cut at its output limit" in refreshed(view)["reason"]
    assert rows_of(coded, view) == two_words(0, 20)
    write(coded, source, numbers(20, 25), "append")
    assert (refreshed(view, output_limit=40)["mode"], contents(coded, view).num_rows) == ("incremental", 40)
    assert "more rows than the output limit" in refreshed(view, output_limit=3)["reason"]
    assert contents(coded, view).num_rows == 3


@pytest.mark.parametrize("by", ["group", None])
def test_refresh_of_a_udtf_gives_it_all_rows_of_a_group_at_once(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed, by: str | None
) -> None:
    source, view = fresh("source"), fresh("view")
    write(coded, source, numbers(0, 500))
    code = spec("udtf", totals, ["id", "group"], partition_by=by)
    query = f"SELECT id, id % 7 AS `group`, text FROM {source}"
    create_view(coded, view, query, TOTALS, kind="udtf", udtf_spec=code)

    def wanted(rows: int) -> list[dict[str, int]]:
        groups = [[n for n in range(rows) if n % 7 == key] for key in range(7)] if by else [list(range(rows))]
        return [{"id": group[0], "count": len(group), "sum": sum(group)} for group in groups]

    refreshed(view)
    assert contents(coded, view).to_pylist() == wanted(500)
    write(coded, source, numbers(500, 600), "append")
    figures = refreshed(view)
    assert (figures["mode"], "UDTF" in figures["reason"]) == ("full", True)
    assert contents(coded, view).to_pylist() == wanted(600)
    assert refreshed(view)["mode"] == "unchanged"


def test_refresh_whose_code_fails_names_it_and_changes_nothing(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = fresh("source"), fresh("view")
    write(coded, source, numbers(0, 5))
    code = spec("chunker", failing, ["text"])
    create_view(coded, view, f"SELECT id, text FROM {source}", WORDS, kind="chunker", udtf_spec=code)
    with pytest.raises(InvalidInputError, match="The code of 'f' failed: ValueError: no words"):
        refreshed(view)
    assert contents(coded, view).num_rows == 0


def test_refresh_where_code_of_clients_is_off_is_refused_before_any_is_loaded(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, view = chunked(coded, fresh)
    monkeypatch.setenv(UDFS_VARIABLE, "off")
    with pytest.raises(PermissionDeniedError, match="setting 'udfs'"):
        refreshed(view)


def test_refresh_of_a_view_remembers_what_it_was_made_of(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = chunked(coded, fresh)
    write(coded, source, numbers(20, 25), "append")
    refreshed(view)
    fields = {"id": [view], "load_detailed_metadata": True}
    properties = coded.client().describe_table(DescribeTableRequest(**fields)).properties
    assert json.loads(properties["tiltyard.view.sources"]) == {source: 2}


def test_refresh_of_a_chunkers_view_gives_its_rows_the_added_columns(
    coded: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    _, view = chunked(coded, fresh)
    columns = [{"name": "upper", "computed": "upper(word)"}]
    coded.client().alter_table_add_columns(
        AlterTableAddColumnsRequest.from_dict({"id": [view], "new_columns": columns})
    )
    refreshed(view)
    rows = table(coded, view).dataset().to_table()
    assert rows.num_rows
    assert rows["upper"].to_pylist() == [word.upper() for word in rows["word"].to_pylist()]
