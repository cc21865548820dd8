"""Pipelines of several steps: all tables become visible at once, or none; mistakes name the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import lance_namespace as upstream
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError

from tests.services.server import ServerProcess
from tiltyard.cli import main
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.plans import job
from tiltyard.pipeline.plans.plan_file import read_plan
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YAML = """
tables:
  ${documents}:
    files: documents.parquet
    rename: {text: body}
    check: ["unique(id)", "rows >= 1"]
    mode: ${mode}
    indexes:
      - {column: id, type: BTREE}
  ${chunks}:
    sql: |
      SELECT id AS document, position, word
      FROM ${documents} LATERAL VIEW posexplode(split(body, ' ')) AS position, word
    udf: embed.py:embed
    mode: ${mode}
    indexes:
      - {column: word, type: FTS}
      - {column: vector, type: IVF_FLAT, name: by_length, parameters: {num_partitions: 2}}
tag: nightly
"""

CODE = """
import pyarrow as pa

def embed(rows):
    vectors = pa.array([[float(len(word)), 1.0] for word in rows["word"].to_pylist()], pa.list_(pa.float32(), 2))
    return pa.RecordBatch.from_arrays([*rows.columns, vectors], names=[*rows.schema.names, "vector"])
"""


def write_pipeline_file(folder: Path, names: tuple[str, str], *, first: int = 0, mode: str = "create") -> Path:
    """Write a pipeline's file to a folder, with 40 documents of three words."""
    ids = range(first, first + 40)
    pq.write_table(pa.table({"id": ids, "text": [f"document number {n}" for n in ids]}), folder / "documents.parquet")
    (folder / "embed.py").write_text(CODE)
    file = folder / "docs.yaml"
    text = YAML
    for name, value in {"documents": names[0], "chunks": names[1], "mode": mode}.items():
        text = text.replace(f"${{{name}}}", value)
    file.write_text(text)
    return file


def run_here(run: LocalRun, catalog: CatalogConnection, spark: SparkSession, file: Path) -> dict[str, Any]:
    """Drive a pipeline with a local run."""
    plan = read_plan(file, {})
    plan_json = msgspec.json.encode(plan).decode()
    return dict(job.pipeline(run, catalog, spark, plan_json, udf=plan.functions))


def open_table(catalog: CatalogConnection, name: str, version: int | str | None = None) -> lance.LanceDataset:
    """Open a table with plain pylance."""
    return lance.dataset(namespace_client=catalog.client(), table_id=[name], version=version)


def check_tables(catalog: CatalogConnection, names: tuple[str, str], documents: int) -> None:
    """Assert that documents and chunks agree, value by value, and all their rows are in the indexes."""
    rows = open_table(catalog, names[0]).to_table().sort_by("id")
    assert rows.to_pydict() == {
        "id": list(range(documents)),
        "body": [f"document number {n}" for n in range(documents)],
    }
    chunks = open_table(catalog, names[1]).to_table().sort_by([("document", "ascending"), ("position", "ascending")])
    words = [word for body in rows["body"].to_pylist() for word in body.split()]
    assert chunks["word"].to_pylist() == words
    assert chunks["vector"].to_pylist() == [[float(len(word)), 1.0] for word in words]
    for name, indexes in zip(names, ({"id_idx"}, {"word_idx", "by_length"}), strict=True):
        indices = open_table(catalog, name).describe_indices()
        assert {index.name for index in indices} == indexes
        assert {index.num_rows_indexed for index in indices} == {open_table(catalog, name).count_rows()}


@pytest.fixture
def names(fresh: Callable[[str], str]) -> tuple[str, str]:
    return fresh("documents"), fresh("chunks")


def test_pipeline_run_of_a_yaml_file_publishes_all_tables_indexed_and_tagged_in_one_transaction(
    spark: SparkSession,
    shared_server: ServerProcess,
    catalog: CatalogConnection,
    tmp_path: Path,
    names: tuple[str, str],
) -> None:
    file = write_pipeline_file(tmp_path, names)
    done = CliRunner().invoke(main, ["pipeline", "run", str(file), "--uri", shared_server.url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    check_tables(catalog, names, 40)
    versions = json.loads(done.output.split("versions: ")[1].splitlines()[0])
    assert versions == {names[0]: 2, names[1]: 3}
    assert [open_table(catalog, name, "nightly").version for name in names] == [2, 3]
    nearest = open_table(catalog, names[1]).to_table(nearest={"column": "vector", "q": [8.0, 1.0], "k": 1})
    assert nearest["word"].to_pylist() == ["document"]
    lineage = catalog.caller().call("DescribeLineage", id=[names[1]])
    assert [(edge["source"], edge["target"], edge["version"]) for edge in lineage["edges"]] == [
        (f"table:{names[0]}", f"table:{names[1]}", 1),
        (f"uri:{tmp_path}/documents.parquet", f"table:{names[0]}", 1),
    ]
    assert lineage["edges"][0]["job_id"] == lineage["edges"][1]["job_id"]

    write_pipeline_file(tmp_path, names, first=40, mode="append")
    done = CliRunner().invoke(main, ["pipeline", "run", str(file), "--uri", shared_server.url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    documents = open_table(catalog, names[0])
    assert documents.count_rows() == 80 and documents.describe_indices()[0].num_rows_indexed == 80
    assert open_table(catalog, names[0], "nightly").version == documents.version


def test_pipeline_whose_last_table_fails_a_check_publishes_nothing_and_leaves_no_name(
    spark: SparkSession, catalog: CatalogConnection, tmp_path: Path, names: tuple[str, str]
) -> None:
    file = write_pipeline_file(tmp_path, names)
    file.write_text(file.read_text().replace("udf: embed.py:embed", 'udf: embed.py:embed\n    check: ["rows >= 1000"]'))
    with pytest.raises(InvalidInputError, match=rf"{names[1]}: Nothing was published: rows >= 1000: 120 rows"):
        run_here(LocalRun(), catalog, spark, file)
    tables = catalog.client().list_tables(upstream.ListTablesRequest(id=[])).tables
    assert not set(names) & set(tables)


def test_pipeline_that_failed_and_is_resumed_commits_no_file_that_was_deleted(
    spark: SparkSession, catalog: CatalogConnection, tmp_path: Path, names: tuple[str, str]
) -> None:
    run, file = LocalRun(), write_pipeline_file(tmp_path, names)
    plan = file.read_text()
    file.write_text(plan.replace("udf: embed.py:embed", 'udf: embed.py:embed\n    check: ["rows >= 1000"]'))
    with pytest.raises(InvalidInputError, match="Nothing was published"):
        run_here(run, catalog, spark, file)
    file.write_text(plan)
    assert run_here(run, catalog, spark, file)["rows"] == 160
    check_tables(catalog, names, 40)


@pytest.mark.extended
def test_pipeline_that_loses_a_commit_publishes_on_top_of_the_others(
    spark: SparkSession,
    catalog: CatalogConnection,
    tmp_path: Path,
    names: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = write_pipeline_file(tmp_path, names)
    run_here(LocalRun(), catalog, spark, file)
    file = write_pipeline_file(tmp_path, names, first=40, mode="append")
    build, commits = job.build_staged_index, iter([1])

    def overtaken(*arguments: Any) -> None:
        if next(commits, None):
            more = pa.table({"id": [1000], "body": ["somebody else's"]})
            lance.write_dataset(more, namespace_client=catalog.client(), table_id=[names[0]], mode="append")
        build(*arguments)

    monkeypatch.setattr(job, "build_staged_index", overtaken)
    run_here(LocalRun(), catalog, spark, file)
    ids = open_table(catalog, names[0]).to_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids) == [*range(80), 1000]
    assert open_table(catalog, names[1]).count_rows() == 240


@pytest.mark.extended
@pytest.mark.parametrize("late", [False, True], ids=["before_publishing", "after_publishing"])
def test_pipeline_whose_driver_dies_is_resumed_and_each_row_is_there_once(
    spark: SparkSession,
    catalog: CatalogConnection,
    tmp_path: Path,
    names: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    late: bool,
) -> None:
    class DiedError(BaseException):
        pass

    publish_tables = job.publish_tables

    def dying(*arguments: Any) -> Any:
        if late:
            publish_tables(*arguments)
        raise DiedError

    run, file = LocalRun(), write_pipeline_file(tmp_path, names)
    with monkeypatch.context() as patch:
        patch.setattr(job, "publish_tables", dying)
        with pytest.raises(DiedError):
            run_here(run, catalog, spark, file)
    assert [table(catalog, name).latest_version() for name in names] == ([2, 3] if late else [0, 0])
    figures = run_here(run, catalog, spark, file)
    check_tables(catalog, names, 40)
    assert figures["rows"] == 160 and json.loads(figures["versions"]) == {names[0]: 2, names[1]: 3}
    assert open_table(catalog, names[0], "nightly").version == 2


def test_pipeline_that_calls_undeclared_code_is_refused(spark: SparkSession, catalog: CatalogConnection) -> None:
    plan = json.dumps({"tables": {"any": {"files": "any.parquet", "udf": "os:getcwd"}}})
    with pytest.raises(InvalidInputError, match="calls os:getcwd, which --udf does not name"):
        job.pipeline(LocalRun(), catalog, spark, plan)


@pytest.mark.parametrize(
    "text, message",
    [
        ("tables: {}\n", "line 1: tables: name the tables"),
        ("tables:\n  a:\n    files: x\n    sql: SELECT 1\n", "line 2: tables.a: say where its rows come from"),
        ("tables:\n  a:\n    files: x\n    indices: []\n", "line 4: tables.a: Object contains unknown field `indices`"),
        (
            "tables:\n  a:\n    files: x\n    indexes:\n      - column: b\n        type: TREE\n",
            "line 5: tables.a.indexes[0]: Unknown index type 'TREE'",
        ),
        ("tables:\n  a:\n    files: x\n    mode: merge\n", "line 4: tables.a.mode: Invalid enum value 'merge'"),
        ("tables:\n  a:\n    files: x\n    check: [many]\n", "line 2: tables.a: 'many' is not a check"),
        ("tables:\n  a:\n    files: x\n  a:\n    files: y\n", "line 4: tables.a: this key occurs twice"),
        ("tables:\n  a:\n    files: ${day}.csv\n", "line 3: tables.a.files: give ${…} a value with --set NAME=VALUE"),
        ("tables: [\n", "this is not YAML"),
        ("tables: !!python/object/apply:os.getcwd []\n", "this is not YAML"),
    ],
    ids=["empty", "two_origins", "unknown_key", "index", "mode", "check", "twice", "variable", "syntax", "unsafe"],
)
def test_pipeline_check_of_a_mistake_names_its_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "docs.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["pipeline", "check", str(file)])
    assert result.exit_code == 1
    assert message in result.output, result.output


def test_pipeline_check_of_a_python_file_tells_what_it_would_do(tmp_path: Path) -> None:
    (tmp_path / "films.py").write_text(
        "def pipeline(day):\n    return {'tables': {f'films_{day}': {'files': 'films.csv'}}, 'tag': day}\n"
    )
    done = CliRunner().invoke(main, ["pipeline", "check", str(tmp_path / "films.py"), "--set", "day=may"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        f"create films_may from files {tmp_path / 'films.csv'}",
        "publish films_may at once, tagged may",
    ]
