"""Views of queries: refreshed incrementally where possible, else in full, each time in one commit."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import lance
import lance_namespace
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance_namespace import CreateMaterializedViewRequest, CreateNamespaceRequest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tests.spark.views import SCHEMA, contents, create_view, numbers, write
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.views import job
from tiltyard.pipeline.views.job import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Refreshed = Callable[..., Mapping[str, Any]]

COUNTS = pa.schema([("id", pa.int64()), ("rows", pa.int64())])


@pytest.fixture
def refreshed(spark: SparkSession, catalog: CatalogConnection) -> Refreshed:
    """Refreshes a view here; its figures."""
    return lambda name, **options: refresh(LocalRun(), catalog, spark, name, **options)


def dataset(catalog: CatalogConnection, name: str) -> lance.LanceDataset:
    return table(catalog, name).dataset()


def even(first: int, end: int) -> pa.Table:
    """Return the result of the query below for these rows."""
    rows = numbers(first, end)
    even_rows = rows.filter(pa.array(number % 2 == 0 for number in range(first, end)))
    return even_rows.set_column(1, "text", pc.utf8_upper(even_rows["text"]))


def films(catalog: CatalogConnection, fresh: Fresh, rows: int = 100) -> tuple[str, str]:
    """A table, and a view of its even rows."""
    source, view = fresh("source"), fresh("view")
    write(catalog, source, numbers(0, rows))
    create_view(catalog, view, f"SELECT id, upper(text) AS text FROM {source} WHERE id % 2 = 0")
    return source, view


def test_refresh_after_appends_adds_their_rows_alone_in_one_commit(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = films(catalog, fresh)
    first = refreshed(view)
    assert (first["mode"], first["rows"], first["version"], first["reason"]) == (
        "full", 50, 2, "it is the first refresh",
    )  # fmt: skip
    assert contents(catalog, view).equals(even(0, 100))
    for start in (100, 110):
        write(catalog, source, numbers(start, start + 10), "append")
    second = refreshed(view)
    assert (second["mode"], second["rows"], second["version"]) == ("incremental", 10, 3)
    assert json.loads(second["sources"]) == {source: 3}
    assert contents(catalog, view).equals(even(0, 120))
    repeated = refreshed(view)
    assert (repeated["mode"], repeated["version"], dataset(catalog, view).version) == ("unchanged", 3, 3)


@pytest.mark.extended
def test_refresh_of_a_view_that_was_made_within_a_database_reads_its_tables(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    base, source = fresh("base"), fresh("source")
    catalog.client().create_namespace(CreateNamespaceRequest(id=[base]))
    lance.write_dataset(numbers(0, 10), namespace_client=catalog.client(), table_id=[base, source])
    write(catalog, source, numbers(0, 3))  # of the same name, in the root
    properties = {**dict(catalog.properties), "headers.x-lancedb-database": base}
    inside = lance_namespace.connect(catalog.implementation, properties)
    definition = {"kind": "query", "source_query": f"SELECT * FROM {source} WHERE id > 0"}
    output = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    inside.create_materialized_view(CreateMaterializedViewRequest(id=["few"], output_schema=output, **definition))
    view = f"{base}$few"
    assert refreshed(view)["rows"] == 9
    lance.write_dataset(numbers(10, 12), namespace_client=catalog.client(), table_id=[base, source], mode="append")
    second = refreshed(view)
    assert (second["mode"], second["rows"]) == ("incremental", 2)
    assert json.loads(second["sources"]) == {f"{base}${source}": 2}


@pytest.mark.parametrize("change", ["delete", "update", "overwrite", "add column"])
def test_refresh_after_rows_changed_follows_them_unless_columns_changed(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed, change: str
) -> None:
    source, view = films(catalog, fresh)
    refreshed(view)
    expected = even(0, 100)
    changed = dataset(catalog, source)
    if change == "delete":
        changed.delete("id < 50")
        expected = even(50, 100)
    elif change == "update":
        changed.update({"text": "'x'"}, where="id = 0")
        expected = expected.set_column(1, "text", pa.array(["X", *expected["text"].to_pylist()[1:]]))
    elif change == "overwrite":
        write(catalog, source, numbers(7, 9), "overwrite")
        expected = even(7, 9)
    else:
        changed.add_columns({"more": "id + 1"})
    figures = refreshed(view)
    assert figures["mode"] == ("full" if change == "add column" else "incremental")
    assert source in figures["reason"]
    assert contents(catalog, view).equals(expected)
    assert refreshed(view)["mode"] == "unchanged"


def test_refresh_after_compaction_follows_the_rows(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = films(catalog, fresh)
    write(catalog, source, numbers(100, 110), "append")
    refreshed(view)
    dataset(catalog, source).optimize.compact_files()
    assert refreshed(view)["mode"] == "unchanged"
    write(catalog, source, numbers(110, 120), "append")
    dataset(catalog, source).optimize.compact_files()
    mixed = refreshed(view)  # the compaction merged old and new rows
    assert (mixed["mode"], mixed["rows"]) == ("incremental", 5)
    assert contents(catalog, view).equals(even(0, 120))
    write(catalog, source, numbers(120, 130), "append")
    dataset(catalog, source).create_scalar_index("id", "BTREE")
    assert refreshed(view)["mode"] == "incremental"
    write(catalog, source, numbers(130, 140), "append")
    dataset(catalog, source).optimize.compact_files()  # of indexed fragments, which the new one is not
    assert refreshed(view)["mode"] == "incremental"
    assert contents(catalog, view).equals(even(0, 140))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id % 3 AS id, count(*) AS rows FROM {0} GROUP BY 1",
        "SELECT a.id, 2L AS rows FROM {0} a JOIN {0} b ON a.id = b.id WHERE a.id > (SELECT avg(id) FROM {0})",
    ],
)
def test_refresh_of_a_query_that_needs_all_rows_is_full_and_is_what_spark_says(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed, query: str
) -> None:
    source, view = fresh("source"), fresh("view")
    write(catalog, source, numbers(0, 10))
    create_view(catalog, view, query.format(source), COUNTS)
    refreshed(view)
    write(catalog, source, numbers(10, 20), "append")
    assert refreshed(view)["mode"] == "full"
    spark.createDataFrame(numbers(0, 20).to_pandas()).createOrReplaceTempView(source)
    expected = [(row["id"], row["rows"]) for row in spark.sql(query.format(source)).collect()]
    result = contents(catalog, view)
    assert sorted(zip(result["id"].to_pylist(), result["rows"].to_pylist(), strict=True)) == sorted(expected)
    assert refreshed(view)["mode"] == "unchanged"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, text FROM {0} UNION ALL SELECT id, text FROM {1}",
        (
            "WITH a AS (SELECT * FROM {0}), b AS (SELECT * FROM {1} WHERE id >= 0) "
            "SELECT id, text FROM a UNION ALL SELECT id, text FROM (SELECT text, id FROM b)"
        ),
        (
            "SELECT word.id, word.text FROM (SELECT explode(array(struct(id, text))) AS word FROM {0} "
            "UNION ALL SELECT struct(id, text) FROM {1})"
        ),
        "SELECT id, w AS text FROM {0} LATERAL VIEW explode(array(text)) t AS w UNION ALL SELECT * FROM {1}",
    ],
)
def test_refresh_of_several_tables_row_by_row_adds_the_new_rows_of_each(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed, query: str
) -> None:
    first, second, view = fresh("one"), fresh("other"), fresh("view")
    write(catalog, first, numbers(0, 10))
    write(catalog, second, numbers(100, 110))
    create_view(catalog, view, query.format(first, second))
    refreshed(view)
    write(catalog, first, numbers(10, 20), "append")
    assert refreshed(view)["mode"] == "incremental"
    write(catalog, second, numbers(110, 115), "append")
    write(catalog, first, numbers(20, 30), "append")
    figures = refreshed(view)
    assert (figures["mode"], figures["rows"]) == ("incremental", 15)
    assert contents(catalog, view).equals(pa.concat_tables([numbers(0, 30), numbers(100, 115)]).combine_chunks())


def test_refresh_keeps_types_and_vectors_and_reads_only_columns_that_are_needed(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = fresh("source"), fresh("view")
    schema = pa.schema(
        [
            pa.field("id", pa.uint64()),
            pa.field("vector", pa.list_(pa.float16(), 2), metadata={"unit": "1"}),
            pa.field("seen", pa.timestamp("us", "UTC")),
            pa.field("unread", pa.list_(pa.float32(), 3)),
        ]
    )
    rows = {"id": [1, 2, 2**63], "vector": [[0.5, 1], None, [2, 3]], "seen": [None, 1, 2], "unread": [[1, 2, 3]] * 3}
    write(catalog, source, pa.table(rows, schema))
    create_view(catalog, view, f"SELECT seen, vector, id FROM {source}", schema.remove(3))
    refreshed(view)
    result = dataset(catalog, view).to_table()
    assert result.schema.equals(schema.remove(3), check_metadata=False)
    assert result.equals(pa.table(rows, schema).drop_columns(["unread"]).cast(result.schema))
    assert result.schema.field("vector").metadata == {b"unit": b"1"}


@pytest.mark.parametrize("full", [False, True])
def test_refresh_keeps_indexes_of_the_view(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed, full: bool
) -> None:
    source, view = films(catalog, fresh)
    refreshed(view)
    dataset(catalog, view).create_scalar_index("id", "BTREE")
    dataset(catalog, source).delete("id >= 50")
    assert refreshed(view, full=full)["mode"] == ("full" if full else "incremental")
    assert [index.name for index in dataset(catalog, view).describe_indices()] == ["id_idx"]
    assert dataset(catalog, view).to_table(filter="id = 8")["text"].to_pylist() == ["ROW 8"]
    assert contents(catalog, view).equals(even(0, 50))


def test_refresh_of_a_view_that_others_wrote_to_makes_it_what_its_query_says(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    _, view = films(catalog, fresh)
    refreshed(view)
    write(catalog, view, numbers(1000, 1005), "append")
    figures = refreshed(view)
    assert (figures["mode"], "another writer changed the view" in figures["reason"]) == ("full", True)
    assert contents(catalog, view).equals(even(0, 100))


def test_refresh_with_a_source_version_is_of_that_one(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = films(catalog, fresh)
    write(catalog, source, numbers(100, 110), "append")
    assert json.loads(refreshed(view, source_version=1)["sources"]) == {source: 1}
    assert contents(catalog, view).equals(even(0, 100))
    assert refreshed(view)["mode"] == "incremental"
    assert "is older" in refreshed(view, source_version=1)["reason"]
    assert contents(catalog, view).equals(even(0, 100))


def test_refresh_with_rows_per_fragment_makes_files_of_so_many(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    _, view = films(catalog, fresh)
    refreshed(view, rows_per_fragment=20)
    assert [part.count_rows() for part in dataset(catalog, view).get_fragments()] == [20, 20, 10]


def test_refresh_full_on_demand_makes_all_rows_anew(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    _, view = films(catalog, fresh)
    refreshed(view)
    assert (refreshed(view, full=True)["mode"], dataset(catalog, view).version) == ("full", 3)
    assert contents(catalog, view).equals(even(0, 100))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id FROM {0}", "'text' of the table"),
        ("SELECT id, text, 1 AS more FROM {0}", "no column 'more'"),
        ("SELECT text AS id, text FROM {0}", "does not fit the table: a value is none of its column's type"),
        ("DROP TABLE {0}", "one SELECT"),
    ],
)
def test_refresh_of_what_does_more_than_read_or_fits_not_changes_nothing(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed, query: str, message: str
) -> None:
    source, view = fresh("source"), fresh("view")
    write(catalog, source, numbers(0, 3))
    create_view(catalog, view, query.format(source))
    with pytest.raises(InvalidInputError, match=message) as caught:
        refreshed(view)
    assert "row 0" not in str(caught.value)  # more people see a job's error than its table
    assert dataset(catalog, view).version == 1
    assert contents(catalog, source).equals(numbers(0, 3))


def test_refresh_of_a_table_that_was_exchanged_is_refused(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = films(catalog, fresh)
    with pytest.raises(PermissionDeniedError, match="Another table is called"):
        refreshed(view, sources={source: "file:///elsewhere"})
    assert dataset(catalog, view).version == 1


def test_refresh_of_no_view_says_so(catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed) -> None:
    name = fresh("table")
    write(catalog, name, pa.table({"id": [1]}))
    with pytest.raises(InvalidInputError, match="not a materialized view"):
        refreshed(name)


def test_refresh_that_an_earlier_driver_has_committed_is_found_though_its_sources_versions_are_gone(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, name, run = fresh("source"), fresh("view"), LocalRun()
    write(catalog, source, numbers(0, 10), "create")
    create_view(catalog, name, f"SELECT id, text FROM {source}")
    committed = refresh(run, catalog, spark, name)
    rows = contents(catalog, name)
    monkeypatch.setattr(job, "reopen_sources", lambda *_: None)
    found = refresh(LocalRun(run.id, _checkpoints=dict(run.checkpoints())), catalog, spark, name)
    assert (found["version"], contents(catalog, name)) == (committed["version"], rows)
