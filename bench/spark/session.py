"""A warm Spark session that measures: jobs of the pipeline, and what Spark does without it.

python -m bench.spark.session MASTER CATALOG
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.spark.data import SCHEMA
from bench.spark.line_processes import answer
from bench.spark.single import index as index_alone
from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import connection, table
from tiltyard.pipeline.delete.job import delete
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.session import spark_session
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.spark_tasks import tune_allocator
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import FrameRows
from tiltyard.pipeline.writing.target_table import WriteMode
from tiltyard.pipeline.writing.write_job import write_source

MASTER, CATALOG = sys.argv[1:3] if len(sys.argv) > 2 else ("local[2]", "")
spark = spark_session(MASTER, config={"spark.ui.enabled": "false", "spark.driver.memory": "2g"})
where = connection(CATALOG)
tune_allocator()  # as a job's driver does; what pylance does here has it as well


class BareSource(DataSource):
    """The plainest Python data source over a Lance table: what `format("tiltyard")` is measured against."""

    @classmethod
    def name(cls) -> str:
        return "bare_lance"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: Any) -> BareReader:
        return BareReader(self.options["uri"])


class BareReader(DataSourceReader):
    """A partition for each fragment, in batches of the size that was measured to be best."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part.fragment_id) for part in lance.dataset(self._uri).get_fragments()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        fragment = lance.dataset(self._uri).get_fragment(partition.value)
        assert fragment is not None
        yield from fragment.to_batches(columns=["id"], batch_size=65_536)


spark.dataSource.register(BareSource)


def ingested(source: str, name: str) -> float:
    """Seconds of an ingest; the table stays."""
    started_at = time.perf_counter()
    ingest(LocalRun(), where, spark, source, name, mode="overwrite")
    seconds = time.perf_counter() - started_at
    _only_newest(name)
    return seconds


def framed(source: str, name: str) -> float:
    """Seconds to write a DataFrame of Parquet files, as it comes from Spark's own reader: vectors of a fixed size, for
    which Spark has no type, are such again in the table."""
    frame = spark.read.parquet(source)
    started_at = time.perf_counter()
    write_source(
        LocalRun(),
        FrameRows((), frame),
        table(where, name),
        WriteOptions(WriteMode.OVERWRITE, ColumnSelection(types={"vector": SCHEMA.field("vector").type})),
    )
    seconds = time.perf_counter() - started_at
    _only_newest(name)
    return seconds


def handed(source: str) -> float:
    """Seconds for Spark to hand these rows to Python, which counts them."""
    started_at = time.perf_counter()
    result = spark.read.parquet(source).mapInArrow(_count, "n long").toArrow()
    assert pc.sum(result["n"]).as_py()
    return time.perf_counter() - started_at


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array([sum(batch.num_rows for batch in batches)])], ["n"])


def read(name: str) -> float:
    """Seconds to sum the ids of a table."""
    return _summed(spark.read.format("tiltyard").options(uri=CATALOG, table=name, columns="id").load())


def read_bare(name: str) -> float:
    """The same through the plainest source."""
    return _summed(spark.read.format("bare_lance").options(uri=table(where, name).location().uri).load())


def read_filtered(name: str, condition: str) -> float:
    """Seconds to sum up two columns of the rows that meet a condition."""
    options = {"uri": CATALOG, "table": name, "columns": "id,text", "filter": condition}
    started_at = time.perf_counter()
    spark.read.format("tiltyard").options(**options).load().selectExpr("sum(id)", "sum(length(text))").collect()
    return time.perf_counter() - started_at


def deleted(name: str, condition: str) -> float:
    """Seconds to delete the rows that meet a condition."""
    started_at = time.perf_counter()
    delete(LocalRun(), where, spark, name, filter=condition)
    return time.perf_counter() - started_at


def rows(name: str) -> int:
    """Count the rows of a table."""
    return int(table(where, name).dataset().count_rows())


def _summed(frame: DataFrame) -> float:
    started_at = time.perf_counter()
    frame.selectExpr("sum(id)").collect()
    return time.perf_counter() - started_at


def upserted(source: str, name: str) -> float:
    """Seconds of an upsert by `id`."""
    started_at = time.perf_counter()
    upsert(LocalRun(), where, spark, source, name, on=["id"])
    return time.perf_counter() - started_at


def backfilled(name: str, column: str) -> float:
    """Seconds to compute a column."""
    started_at = time.perf_counter()
    code = "bench.spark.data:norm"
    backfill(LocalRun(), where, spark, name, column, udf=code, inputs=["vector"], type="float32")
    return time.perf_counter() - started_at


def indexed(name: str, column: str, kind: str, options: dict[str, str]) -> float:
    """Seconds to build an index."""
    started_at = time.perf_counter()
    index(LocalRun(), where, spark, name, column, kind, replace=True, parameters=options)
    return time.perf_counter() - started_at


def _only_newest(name: str) -> None:
    """Delete the files of older versions, so that the disk holds a table once."""
    dataset = table(where, name).dataset()
    used = {file.path for part in dataset.get_fragments() for file in part.data_files()}
    for file in Path(dataset.uri, "data").iterdir():
        if file.name not in used:
            file.unlink()


if __name__ == "__main__":
    answer(
        {
            "ingest": ingested,
            "frame": framed,
            "hand": handed,
            "upsert": upserted,
            "delete": deleted,
            "rows": rows,
            "read_filtered": read_filtered,
            "backfill": backfilled,
            "index": indexed,
            "index_alone": index_alone,
            "read": read,
            "read_bare": read_bare,
        }
    )
