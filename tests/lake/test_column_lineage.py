"""Lineage of columns, on a folder, without Spark: recorded by each kind of job, followed up and down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

import tiltyard
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.cli import main
from tiltyard.lake import Lineage
from tiltyard.model.columns import lineage as column_lineage
from tiltyard.model.lineage import LINEAGE_PROPERTY, TOO_MANY_COLUMNS, CommitLineage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the lake `root` and the file `films.parquet`."""
    folder = tmp_path_factory.mktemp("columns")
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"], "year": ["1999", "2001"]}), folder / "films.parquet")
    return folder


@pytest.fixture(scope="module")
def lake(folder: Path) -> tiltyard.Lake:
    """Return a lake: file → films (renamed, cast, with a column of code and one of SQL) → late → copy."""
    lake = tiltyard.connect(folder / "root")
    films, late = lake.table("films"), lake.table("late")
    films.ingest(folder / "films.parquet", rename={"name": "title"}, cast={"year": "int32"})
    films.add_column("length", letters)
    films.backfill("length")
    films.add_column("next", "year + 1")
    films.backfill("next")
    late.ingest(films.dataset().uri, format="lance", select="id,length", rename={"length": "size"})
    lake.calls.call("CloneTable", id=["copy"], source_location=late.dataset().uri)
    return lake


def letters(title: str) -> int:
    return len(title)


def whole_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def steps(found: Lineage) -> list[tuple[str, str, str]]:
    """Return the steps of a column as `late.size`, `films.length`, `direct`; a file is `file`."""
    return [
        (f"{edge.target.name}.{each.column}", f"{_short(edge.source.name)}.{each.source}", each.how)
        for edge in found.edges
        for each in edge.columns
    ]


def _short(name: str) -> str:
    return "file" if name.endswith("films.parquet") else name


def test_columns_are_followed_to_their_sources_through_copies_jobs_functions_and_sql(lake: tiltyard.Lake) -> None:
    copied = lake.table("copy").lineage(column="size", depth=5)
    assert steps(copied) == [
        ("copy.size", "late.size", "direct"),
        ("late.size", "films.length", "direct"),
        ("films.length", "films.title", "function"),
        ("films.title", "file.name", "direct"),
    ]
    code = next(each.code for edge in copied.edges for each in edge.columns if each.how == "function")
    assert code and len(code) == 64 and not copied.is_truncated
    assert [(node.name, node.columns) for node in copied.nodes][:3] == [
        ("copy", ("size",)), ("late", ("size",)), ("films", ("length", "title"))
    ]  # fmt: skip
    assert steps(lake.table("films").lineage(column="next")) == [
        ("films.next", "films.year", "transformed"), ("films.year", "file.year", "transformed")
    ]  # fmt: skip
    assert "size ← length (direct)" in copied._repr_html_()
    near = lake.table("copy").lineage(column="size", depth=1)
    assert steps(near) == steps(copied)[:1] and near.is_truncated


def test_columns_are_followed_to_what_was_made_from_them(lake: tiltyard.Lake, folder: Path) -> None:
    films = lake.table("films")
    assert steps(films.lineage("downstream", column="title", depth=5)) == [
        ("films.length", "films.title", "function"),
        ("late.size", "films.length", "direct"),
        ("copy.size", "late.size", "direct"),
    ]
    assert films.lineage("downstream", column="title", depth=5).tables == ("late", "copy")
    assert films.lineage("downstream", column="year").tables == ()  # late has not selected it
    assert lake.lineage(folder / "films.parquet", column="name", depth=5).tables == ("films", "late", "copy")
    assert lake.lineage(folder / "films.parquet", column="year").tables == ("films",)
    assert lake.lineage(folder / "films.parquet", column="none").tables == ()


def test_column_that_is_not_known_is_any_column_with_the_reason(
    lake: tiltyard.Lake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table("coded")
    table.ingest(folder / "films.parquet", udf=whole_rows)
    (edge,) = table.lineage(column="year").edges
    (step,) = edge.columns
    assert (step.source, step.how, step.code) == ("*", "function", edge.code) and edge.why_unknown is None
    lake.table("after").ingest(table.dataset().uri, format="lance")
    made = steps(lake.lineage(folder / "films.parquet", column="name", depth=5))
    assert {("after.name", "coded.name", "direct"), ("after.year", "coded.year", "direct")} <= set(made)
    monkeypatch.setattr(column_lineage, "MAX_COLUMN_BYTES", 20)
    lake.table("wide").ingest(folder / "films.parquet")
    (edge,) = lake.table("wide").lineage(column="year").edges
    assert [(each.source, each.how) for each in edge.columns] == [("*", "unknown")]
    assert edge.why_unknown == TOO_MANY_COLUMNS
    assert ("wide.*", "file.id", "unknown") in steps(lake.lineage(folder / "films.parquet", column="id", depth=1))


def test_commits_of_earlier_releases_and_forged_ones(lake: tiltyard.Lake) -> None:
    old = {"kind": "ingest", "job": "a", "sources": [{"name": "/raw/a.csv"}]}
    read = CommitLineage.from_properties({LINEAGE_PROPERTY: msgspec.json.encode(old).decode()})
    assert read is not None and read.columns is None
    for columns in ([["a", [[1, "b"]]]], [["a", [[-1, "b"]]]], [["a", [[0, "b", "guessed"]]]], [["a" * 70_000, []]], 7):
        forged = msgspec.json.encode({**old, "columns": columns}).decode()
        assert CommitLineage.from_properties({LINEAGE_PROPERTY: forged}) is None, columns
    transaction = read_transaction(lake.table("films").dataset(), 1)
    assert transaction is not None
    made = CommitLineage.from_properties(transaction.transaction_properties)
    assert made is not None and [origin.column for origin in made.columns or ()] == ["id", "title", "year"]


def test_deleted_rows_make_no_column_and_overwritten_ones_leave_none(lake: tiltyard.Lake, folder: Path) -> None:
    table = lake.table("replaced")
    table.ingest(folder / "films.parquet")
    table.delete("id = 1")
    assert steps(table.lineage(column="name")) == [("replaced.name", "file.name", "direct")]
    table.ingest([{"name": "x"}], mode="overwrite")
    assert steps(table.lineage(column="name")) == [("replaced.name", "memory:builtins.list.name", "direct")]
    table.write(folder / "films.parquet", select="id", rename={"id": "name"}, cast={"name": "string"})
    assert steps(table.lineage(column="name")) == [
        ("replaced.name", "file.id", "transformed"), ("replaced.name", "memory:builtins.list.name", "direct")
    ]  # fmt: skip


def test_import_says_which_columns_of_the_file(lake: tiltyard.Lake, folder: Path) -> None:
    (folder / "rows.csv").write_text("id,word\n1,a\n")
    arguments = ["import", str(folder / "rows.csv"), "imported", "--cast", "id=int32", "--root", str(folder / "root")]
    assert (result := CliRunner().invoke(main, arguments)).exit_code == 0, result.output
    shown = lake.table("imported")
    assert [(each.source, each.how) for edge in shown.lineage(column="id").edges for each in edge.columns] == [
        ("id", "transformed")
    ]
    assert [each.how for edge in shown.lineage(column="word").edges for each in edge.columns] == ["direct"]


def test_command_lists_the_steps_of_a_column(lake: tiltyard.Lake, folder: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["lineage", *arguments, "--root", str(folder / "root")])

    result = run("late", "--column", "size", "--format", "json")
    assert result.exit_code == 0, result.output
    shown = msgspec.json.decode(result.stdout)
    assert [(each["column"], each["source_column"], each["how"]) for each in shown][:2] == [
        ("size", "length", "direct"), ("length", "title", "function")
    ]  # fmt: skip
    wide = run("wide", "--column", "id")
    assert "*, any column: " in wide.stderr and TOO_MANY_COLUMNS in wide.stderr
    assert run("late", "--column", "none").exit_code != 0


def test_bad_columns_are_refused(lake: tiltyard.Lake) -> None:
    films = lake.table("films")
    with pytest.raises(TableColumnNotFoundError, match="no column 'none'"):
        films.lineage(column="none")
    with pytest.raises(InvalidInputError, match="column has 0 characters"):
        films.lineage(column="")
    with pytest.raises(InvalidInputError, match="column has 2001 characters"):
        lake.lineage("/raw/a.csv", column="a" * 2001)
    with pytest.raises(InvalidInputError, match=r"column is \['id'\]"):
        films.lineage(column=["id"])  # type: ignore[arg-type]  # what people pass
    upload = lake.calls.call("CreateMultipartWrite", id=["films"])["upload_id"]
    column = {"column": "id", "source_column": "id", "how": "direct"}
    for request, message in (
        ({"source_columns": [column]}, "name it, or leave them out"),
        ({"source": "/raw", "source_columns": [{**column, "how": "guessed"}]}, "how"),
        ({"source": "/raw", "source_columns": [column] * 10_001}, "at most 10000"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            lake.calls.call("CompleteMultipartWrite", id=["films"], upload_id=upload, **request)
