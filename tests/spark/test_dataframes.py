"""DataFrames into tables: computed rows, checked, once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.contracts.checks import parse_check
from tiltyard.model.schemas.type_names import parse_type
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.functions.calls import GuardedFunction
from tiltyard.pipeline.functions.user_functions import parse_user_function
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.writing import write_job
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import FrameRows
from tiltyard.pipeline.writing.target_table import WriteMode
from tiltyard.pipeline.writing.write_job import write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

Fresh = Callable[[str], str]


def test_write_frame_of_a_join_is_its_rows_with_vectors(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh
) -> None:
    table = table_of(catalog, fresh("joined"))
    vectors = spark.range(1000).selectExpr("id", "array(cast(id as float), 0.5f) as v")
    frame = vectors.join(spark.range(500, 2000), "id")
    options = WriteOptions(
        columns=ColumnSelection(types={"v": parse_type("float32[2]")}), checks=(parse_check("unique(id)"),)
    )
    figures = write_source(LocalRun(), FrameRows((), frame), table, options)
    assert (figures["rows"], figures["version"]) == (500, 1)
    rows = table.dataset().to_table().sort_by("id").to_pylist()
    assert rows == [{"id": n, "v": [float(n), 0.5]} for n in range(500, 1000)]
    appended = write_source(LocalRun(), FrameRows((), vectors.filter("id < 3")), table, WriteOptions(WriteMode.APPEND))
    assert (appended["version"], table.dataset().count_rows()) == (2, 503)


def test_keys_that_are_too_many_for_the_driver_are_compared_by_spark(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_job, "MAX_KEYS_IN_DRIVER", 5)
    others, table = table_of(catalog, fresh("others")), table_of(catalog, fresh("keys"))
    write_source(LocalRun(), FrameRows((), spark.range(8)), others, WriteOptions())
    checks = (parse_check("unique(id)"), parse_check(f"foreign_key(id, {others}.id)"))
    write_source(LocalRun(), FrameRows((), spark.range(6)), table, WriteOptions(checks=checks))
    append = WriteOptions(WriteMode.APPEND, checks=checks)
    with pytest.raises(
        InvalidInputError, match=r"unique\(id\): 2 keys are there.*others_\d+.id\): 3 keys are not there"
    ):
        write_source(LocalRun(), FrameRows((), spark.range(4, 11)), table, append)
    assert table.dataset().count_rows() == 6


def test_write_frame_through_a_udf_makes_its_columns(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    module = tmp_path / "own.py"
    module.write_text(
        "import pyarrow as pa, pyarrow.compute as pc\n"
        "def double(batch):\n    return pa.record_batch([pc.multiply(batch['id'], 2)], ['twice'])\n"
    )
    table = table_of(catalog, fresh("udf"))
    double = GuardedFunction(parse_user_function(f"{module}:double"))
    write_source(LocalRun(), FrameRows((), spark.range(10)), table, WriteOptions(udf=double))
    assert sorted(table.dataset().to_table()["twice"].to_pylist()) == list(range(0, 20, 2))


def test_write_frame_that_fails_its_check_or_is_canceled_leaves_nothing(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    table = table_of(catalog, fresh("nothing"))
    with pytest.raises(InvalidInputError, match="rows > 10: 10 rows"):
        write_source(
            LocalRun(), FrameRows((), spark.range(10)), table, WriteOptions(checks=(parse_check("rows > 10"),))
        )
    run, mark = LocalRun(), tmp_path / "began"

    def slow(batches):  # type: ignore[no-untyped-def]  # Spark's own signature
        import time

        mark.touch()
        yield from batches
        time.sleep(60)

    def cancel() -> None:
        while not mark.exists():
            threading.Event().wait(0.01)
        run.canceled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(RunCanceledError):
        write_source(run, FrameRows((), spark.range(10).coalesce(1).mapInArrow(slow, "id long")), table, WriteOptions())
    thread.join()
    with pytest.raises(TableNotFoundError):
        table.describe()
