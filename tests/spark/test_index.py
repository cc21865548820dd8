"""Index and optimize: results equal those of an index that pylance builds, beside concurrent writers and jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.server import ServerProcess
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, connection, table
from tiltyard.pipeline.indexes import job as indexing
from tiltyard.pipeline.indexes import segments
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.optimize import job as optimizing
from tiltyard.pipeline.optimize.job import optimize
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]

DIMENSION = 16
ROWS = 1200


def rows(ids: range) -> pa.Table:
    """Rows with something for each kind of index."""
    vectors = np.random.default_rng(ids.start).random(len(ids) * DIMENSION, dtype=np.float32)
    return pa.table(
        {
            "id": list(ids),
            "kind": [f"kind {number % 5}" for number in ids],
            "tags": [[f"tag{number % 3}", "all"] for number in ids],
            "text": [f"word{number % 40} and more" for number in ids],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSION),
        }
    )


@pytest.fixture
def name(fresh: Fresh) -> str:
    return fresh("indexed")


@pytest.fixture
def target(catalog: CatalogConnection, name: str) -> Table:
    """A table of four fragments."""
    target = table(catalog, name)
    client = target.client
    lance.write_dataset(rows(range(ROWS)), namespace_client=client, table_id=target.id, max_rows_per_file=300)
    return target


def described(target: Table, name: str) -> Any:
    return next(entry for entry in target.dataset().describe_indices() if entry.name == name)


def test_index_within_a_struct_is_built_by_its_path_and_answers_queries(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str
) -> None:
    plain = target.dataset().to_table()
    plain = plain.append_column("a.b", plain["kind"])
    inside = pa.StructArray.from_arrays(
        [plain[column].combine_chunks() for column in plain.column_names], plain.column_names
    )
    nested = table(catalog, f"{name}_nested")
    options = {"namespace_client": nested.client, "table_id": nested.id, "max_rows_per_file": 300}
    lance.write_dataset(pa.table({"st": inside}), **options)
    vectors = {"num_partitions": "2"}
    for column, kind, parameters in (
        ("st.id", "BTREE", {}),
        ("st.text", "FTS", {}),
        ("`st`.kind", "BITMAP", {}),
        ("st.`a.b`", "ZONEMAP", {}),
        ("st.vector", "IVF_FLAT", vectors),
        ("st.vector", "IVF_PQ", {**vectors, "num_sub_vectors": "4"}),
    ):
        figures = index(LocalRun(), catalog, spark, str(nested), column, kind, name=kind, parameters=parameters)
        assert figures["rows"] == ROWS, column
    dataset = nested.dataset()
    assert {entry.name: entry.field_names for entry in dataset.describe_indices()} == {
        "BTREE": ["st.id"],
        "FTS": ["st.text"],
        "BITMAP": ["st.kind"],
        "ZONEMAP": ["st.`a.b`"],
        "IVF_FLAT": ["st.vector"],
        "IVF_PQ": ["st.vector"],
    }
    scanner = dataset.scanner(filter="st.id = 77")
    assert ("BTREE" in scanner.explain_plan(), scanner.to_table()["st"][0].as_py()["id"]) == (True, 77)
    with pytest.raises(InvalidInputError, match=r"no column 'st\.nothing'; it has st"):
        index(LocalRun(), catalog, spark, str(nested), "st.nothing", "BTREE")


@pytest.mark.parametrize(
    ("column", "kind", "condition"),
    [
        ("id", "BTREE", "id >= 10 and id < 500"),
        ("kind", "BITMAP", "kind = 'kind 3'"),
        ("tags", "LABEL_LIST", "array_has_any(tags, ['tag1'])"),
        ("id", "ZONEMAP", "id = 77"),
        ("id", "BLOOMFILTER", "id = 77"),
        ("text", "NGRAM", "contains(text, 'word17')"),
    ],
)
def test_index_of_scalars_answers_like_none(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    kind: str,
    condition: str,
) -> None:
    monkeypatch.setattr(segments, "MAX_DRIVER_ROWS", 0)
    expected = target.dataset().to_table(filter=condition).sort_by("id")
    figures = index(LocalRun(), catalog, spark, name, column, kind)
    assert (figures["rows"], figures["segments"]) == (ROWS, 1)
    dataset = target.dataset()
    assert "Index" in dataset.scanner(filter=condition).explain_plan(verbose=True)
    assert dataset.to_table(filter=condition).sort_by("id").equals(expected)


def test_index_of_text_finds_words(spark: SparkSession, catalog: CatalogConnection, target: Table, name: str) -> None:
    index(LocalRun(), catalog, spark, name, "text", "FTS", parameters={"with_position": "true", "language": "English"})
    hits = target.dataset().to_table(full_text_query="word17", columns=["id"])
    assert sorted(hits["id"].to_pylist()) == [number for number in range(ROWS) if number % 40 == 17]


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("IVF_FLAT", {"num_partitions": "4"}),
        ("IVF_SQ", {"num_partitions": "4"}),
        ("IVF_PQ", {"num_partitions": "4", "num_sub_vectors": "8", "distance_type": "cosine"}),
        ("IVF_RQ", {"num_partitions": "4"}),
        ("IVF_HNSW_SQ", {"num_partitions": "2", "m": "8", "ef_construction": "50"}),
        ("IVF_HNSW_PQ", {"num_partitions": "2", "num_sub_vectors": "8"}),
    ],
)
def test_index_of_vectors_finds_the_nearest(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, kind: str, parameters: dict[str, str]
) -> None:
    run = LocalRun()
    figures = index(run, catalog, spark, name, "vector", kind, parameters=parameters)
    assert figures["rows"] == ROWS
    assert run.figures["fragments"] == run.figures["fragments_total"]
    merges = 0 if "HNSW" in kind or kind == "IVF_RQ" else 1  # a merge builds a graph again: one task has built it all
    assert int(run.figures.get("merged", 0)) == int(run.figures.get("merged_total", 0)) == merges
    assert described(target, "vector_idx").index_type == kind
    dataset = target.dataset()
    vectors = dataset.to_table(columns=["id", "vector"], limit=20)
    hits = 0
    for number, vector in zip(vectors["id"].to_pylist(), vectors["vector"].to_pylist(), strict=True):
        nearest = {"column": "vector", "q": vector, "k": 10, "nprobes": 4, "refine_factor": 10}
        hits += number in dataset.to_table(nearest=nearest, columns=["id"])["id"].to_pylist()
    assert hits >= 19


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "BTREE"])
def test_index_has_segments_of_as_many_rows_as_the_caller_says_and_optimize_leaves_them(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "MIN_ROWS_PER_SEGMENT", 1)
    monkeypatch.setattr(segments, "MAX_DRIVER_ROWS", 0)
    monkeypatch.setattr(optimizing, "SMALL_SEGMENT_ROWS", 100)
    column = "id" if kind == "BTREE" else "vector"
    parameters = {} if kind == "BTREE" else {"num_partitions": "2", "num_sub_vectors": "4"}
    if kind == "IVF_FLAT":
        del parameters["num_sub_vectors"]
    options: dict[str, Any] = {"parameters": parameters, "rows_per_segment": 600}
    figures = index(LocalRun(), catalog, spark, name, column, kind, **options)
    assert (figures["rows"], figures["segments"]) == (ROWS, 2)
    lance.write_dataset(rows(range(ROWS, ROWS + 30)), namespace_client=target.client, table_id=target.id, mode="append")
    optimize(LocalRun(), catalog, spark, name, compact=False)
    assert len(described(target, f"{column}_idx").segments) == 3
    dataset = target.dataset()
    if kind == "BTREE":
        assert dataset.count_rows("id >= 595 AND id < 1205") == 610
    else:
        vector = dataset.to_table(columns=["vector"], filter="id = 1210")["vector"].to_pylist()[0]
        nearest = {"column": "vector", "q": vector, "k": 1, "nprobes": 2, "refine_factor": 10}
        assert dataset.to_table(nearest=nearest, columns=["id"])["id"].to_pylist() == [1210]


@pytest.mark.parametrize(
    ("column", "kind", "rows_per_segment", "reason"),
    [
        ("id", "BTREE", 99_999, "to 2,097,152 to 268,435,456"),
        ("id", "BTREE", (256 << 20) + 1, "to 2,097,152 to 268,435,456"),
        ("text", "FM", 2 << 20, "one segment"),
    ],
)
def test_index_refuses_segments_that_it_cannot_have(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    column: str,
    kind: str,
    rows_per_segment: int,
    reason: str,
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        index(LocalRun(), catalog, spark, str(target), column, kind, rows_per_segment=rows_per_segment)


def test_index_that_is_there_is_replaced_only_if_told(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str
) -> None:
    index(LocalRun(), catalog, spark, name, "id", "BTREE")
    before = described(target, "id_idx").segments[0].uuid
    with pytest.raises(InvalidInputError, match="--replace"):
        index(LocalRun(), catalog, spark, name, "id", "BTREE")
    run = LocalRun()
    first = index(run, catalog, spark, name, "id", "BTREE", replace=True)
    after = described(target, "id_idx").segments
    assert len(after) == 1
    assert after[0].uuid != before
    assert index(run, catalog, spark, name, "id", "BTREE", replace=True) == first  # taken up by another driver
    with pytest.raises(InvalidInputError, match="Unknown index type"):
        index(LocalRun(), catalog, spark, name, "id", "TREE")


@pytest.mark.parametrize("writer", ["append", "delete", "compact"])
def test_index_beside_another_writer_is_whole(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
) -> None:
    writers: dict[str, Callable[[lance.LanceDataset], Any]] = {
        "append": lambda dataset: dataset.insert(rows(range(5000, 5010))),
        "delete": lambda dataset: dataset.delete("id < 10"),
        "compact": lambda dataset: dataset.optimize.compact_files(),
    }
    writes = iter([writers[writer]])
    commit = indexing.commit_segments

    def late(*arguments: Any) -> bool:
        for write in writes:
            write(target.dataset())
        return commit(*arguments)

    monkeypatch.setattr(indexing, "commit_segments", late)
    index(LocalRun(), catalog, spark, name, "id", "BTREE")
    for number, expected in ((5, writer != "delete"), (700, True), (5005, writer == "append")):
        assert target.dataset().count_rows(f"id = {number}") == int(expected)


@pytest.mark.parametrize("here", [True, False], ids=["threads", "tasks"])
def test_optimize_puts_fragments_together_and_brings_rows_into_indexes(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    here: bool,
) -> None:
    if not here:
        monkeypatch.setattr(optimizing, "MAX_DRIVER_BYTES", 0)
    index(LocalRun(), catalog, spark, name, "id", "BTREE")
    target.dataset().insert(rows(range(ROWS, ROWS + 100)))
    target.dataset().delete("id < 50")
    expected = target.dataset().to_table().sort_by("id")
    figures = optimize(LocalRun(), catalog, spark, name)
    assert (figures["fragments_removed"], figures["fragments_added"]) == (5, 1)
    dataset = target.dataset()
    assert dataset.to_table().sort_by("id").equals(expected)
    assert [fragment.metadata.num_deletions for fragment in dataset.get_fragments()] == [0]
    assert described(target, "id_idx").num_rows_indexed == dataset.count_rows() == ROWS + 50
    repeated = optimize(LocalRun(), catalog, spark, name)
    assert (repeated["fragments_removed"], repeated["indexes"], repeated["version"]) == (0, 0, figures["version"])


@pytest.mark.parametrize("writer", ["append", "delete", "index"])
def test_optimize_beside_another_writer_loses_nothing(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
) -> None:
    writers: dict[str, Callable[[lance.LanceDataset], Any]] = {
        "append": lambda dataset: dataset.insert(rows(range(5000, 5010))),
        "delete": lambda dataset: dataset.delete("id < 10"),
        "index": lambda dataset: dataset.create_scalar_index("id", "BTREE"),
    }
    writes = iter([writers[writer]])
    tasks = optimizing.run_tasks

    def late(*arguments: Any, **options: Any) -> Any:
        done = tasks(*arguments, **options)
        for write in writes:
            write(target.dataset())
        return done

    monkeypatch.setattr(optimizing, "run_tasks", late)
    figures = optimize(LocalRun(), catalog, spark, name)
    assert figures["fragments_removed"] == 4
    ids = sorted(target.dataset().to_table(columns=["id"])["id"].to_pylist())
    expected = {"append": [*range(ROWS), *range(5000, 5010)], "delete": [*range(10, ROWS)], "index": [*range(ROWS)]}
    assert ids == expected[writer]
    assert target.dataset().count_rows("id = 77") == 1


def test_optimize_while_another_job_changes_the_table_leaves_the_fragments_alone(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str
) -> None:
    calls = catalog.caller()
    arguments = {"table": name, "column": "id"}
    running = calls.call(
        "SubmitJob", name="backfill", table=target.id, arguments=arguments, owner="test", lease_millis=60_000
    )
    figures = optimize(LocalRun(), catalog, spark, name)
    assert figures["compaction"] == f"left out: backfill {running['job']['id']} runs"
    assert len(target.dataset().get_fragments()) == 4


def test_optimize_sees_the_job_that_changes_its_table_on_a_later_page(spark: SparkSession, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_MAX_PAGE_SIZE": "1"})
    catalog = connection(server.url)
    for name in ("one", "two"):
        lance.write_dataset(rows(range(10)), namespace_client=catalog.client(), table_id=[name])
        arguments = {"table": name, "column": "id"}
        catalog.caller().call(
            "SubmitJob", name="backfill", table=[name], arguments=arguments, owner=name, lease_millis=60_000
        )
    compactions = [optimize(LocalRun(), catalog, spark, name, indexes=False)["compaction"] for name in ("one", "two")]
    assert all(str(compaction).startswith("left out: backfill") for compaction in compactions)
    server.stop()


def test_optimize_with_days_to_keep_asks_gc(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str
) -> None:
    figures = optimize(LocalRun(), catalog, spark, name, keep_versions_days=7)
    assert figures["gc"]
    assert target.dataset().count_rows() == ROWS
