"""The change feed in Spark: as a DataFrame, and as a stream that goes on over versions that change rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import tiltyard
from tests.services.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]


@pytest.fixture
def table(shared_server: ServerProcess, fresh: Fresh) -> tiltyard.Table:
    """Return a table of three rows."""
    table = tiltyard.connect(shared_server.url).table(fresh("films"))
    table.ingest([{"id": number, "title": f"film {number}"} for number in range(3)])
    return table


def change_rows(table: tiltyard.Table) -> list[tuple[Any, ...]]:
    """Update a row, delete one, and compact; return the changes."""
    table.upsert([{"id": 1, "title": "one"}], on="id")
    dataset = table.dataset()
    dataset.delete("id = 0")
    dataset.optimize.compact_files()
    return [("delete", 3, 0, "film 0"), ("update_after", 2, 1, "one"), ("update_before", 2, 1, "film 1")]


def test_changes_are_a_dataframe_and_options_that_do_not_fit_are_refused(
    spark: SparkSession, shared_server: ServerProcess, table: tiltyard.Table
) -> None:
    expected = change_rows(table)
    batch = table.changes(1, on="id").to_spark()
    assert sorted(tuple(row) for row in batch.drop("_timestamp").collect()) == expected
    assert table.changes(table.version, columns="title").to_spark().collect() == []
    for options, sentence in (
        ({"changes": "true", "since": "1", "filter": "id > 1"}, "The option filter has no part in a change feed"),
        ({"changes": "true", "since": "9"}, "since is 9: it is a version from 0 to"),
        ({"changes": "true"}, "Set the option since to the version after which"),
        ({"since": "1"}, "The option since needs the option changes=true"),
    ):
        read = spark.read.format("tiltyard").options(uri=shared_server.url, table=table.name, **options)
        with pytest.raises(PySparkException, match=sentence):
            read.load().collect()


@pytest.mark.extended
def test_stream_of_changes_goes_on_over_versions_that_change_rows(
    spark: SparkSession, shared_server: ServerProcess, table: tiltyard.Table, tmp_path: Path
) -> None:
    options = {"uri": shared_server.url, "table": table.name, "changes": "true", "on": "id"}

    def stream() -> list[tuple[Any, ...]]:
        frame = spark.readStream.format("tiltyard").options(**options).load()
        out = frame.writeStream.format("json").option("checkpointLocation", str(tmp_path / "seen"))
        out.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        written = spark.read.schema(frame.schema).json(str(tmp_path / "out"))
        return sorted(tuple(row) for row in written.drop("_timestamp").collect())

    first = [("insert", 1, number, f"film {number}") for number in range(3)]
    assert stream() == first
    assert stream() == first
    changes = change_rows(table)
    assert stream() == sorted(first + changes)
