"""A wrong request to a job command is answered with one sentence: no traceback, and nothing is changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tiltyard.cli import main
from tiltyard.cli.session.failures import ExitStatus
from tiltyard.pipeline.catalog_client import CatalogConnection, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "mistaken"
MISSING = ("not found: ", "There is no version", "has no tag", "has no branch")
"""What messages say about that which does not exist."""
CODE = """
def fails(rows):
    raise ValueError('no such word')

def texts(rows):
    return ['no Arrow array'] * rows.num_rows
"""


@pytest.fixture(scope="module")
def films(catalog: CatalogConnection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lance.LanceDataset]:
    """The table, and a folder with its source and code, in which commands are given."""
    folder = tmp_path_factory.mktemp("mistakes")
    vectors = pa.array([[float(n), 0.5] for n in range(20)], pa.list_(pa.float32(), 2))
    rows = pa.table({"id": range(20), "title": [f"film {n}" for n in range(20)], "vector": vectors})
    pq.write_table(rows, folder / "films.parquet")
    (folder / "words.py").write_text(CODE)
    (folder / "pretty.json").write_text('[\n  {\n    "id": 1\n  }\n]\n')
    target = table(catalog, NAME)
    lance.write_dataset(rows, namespace_client=target.client, table_id=target.id)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield target.dataset()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ingest missing.parquet other", "There is no file at"),
        ("ingest pretty.json other", "No line of"),
        (
            "ingest words.py other",
            "no known format: name one with --format (parquet, arrow, csv, json, lance, images, orc, avro)",
        ),
        ("ingest films.parquet other --rename id=a.b", "'a.b' cannot be the name of a column"),
        ("ingest films.parquet other --rename id=a`b", "'a`b' cannot be the name of a column"),
        ("ingest films.parquet other --format arrow", "is not an Arrow file or stream"),
        ("ingest films.parquet other --format lance", "is not a Lance table"),
        ("ingest gopher://shelf/films.parquet other", "gopher://shelf cannot be opened"),
        ("ingest films.parquet other --udf words.py:fails", "The UDF failed: ValueError: no such word."),
        ("upsert films.parquet nowhere --on id", "Table not found: nowhere"),
        (f"upsert films.parquet {NAME} --on key", "the table has no column 'key'; it has id, title, vector"),
        (f"delete {NAME} --where 'key > 1'", "'key > 1' is not a condition on the table's rows: "),
        (f"backfill {NAME} letters --udf words.py:fails --inputs key --type int32", "has no column 'key'"),
        (f"backfill {NAME} letters --udf words.py:fails --inputs id --type nothing", "'nothing' is not a type"),
        (
            f"backfill {NAME} letters --udf words.py:fails --inputs id --type int32 --where 'a = 1'",
            "is not a condition",
        ),
        (f"backfill {NAME} letters --udf words.py:fails --inputs id --type int32", "failed: ValueError: no such word"),
        (f"backfill {NAME} a.b --udf words.py:fails --inputs id --type int32", "'a.b' cannot be the name of a column"),
        (f"backfill {NAME} letters --udf words.py:nothing --inputs id --type int32", "has no function 'nothing'"),
        (
            f"backfill {NAME} letters --udf no.such.module:f --inputs id --type int32",
            "cannot be loaded: ModuleNotFound",
        ),
        (f"backfill {NAME} letters --udf words.py:texts --inputs id --type int32", "has to return an Arrow array of"),
        (f"index {NAME} title IVF_PQ", "needs a column of fixed-size lists"),
        (f"index {NAME} id FTS", "FTS needs a column of text"),
        (f"index {NAME} vector BTREE", "BTREE needs a column of numbers"),
        (f"index {NAME} id SOMETHING", "Unknown index type 'SOMETHING'"),
        (f"index {NAME} id BTREE --parameters speed=1", "An index has no parameter 'speed'"),
        (f"index {NAME} vector IVF_FLAT --parameters num_partitions=lots", "got `str` - at `$.num_partitions`"),
        (f"index {NAME} vector IVF_FLAT --parameters distance_type=far", "Unknown distance type 'far'"),
        (f"optimize {NAME} --rows-per-fragment 0", "at least one row"),
        (f"refresh {NAME}", "is not a materialized view"),
        (f"export {NAME} out --columns key", "cannot be read: No field named key"),
        (f"export {NAME} out --filter 'key = 1'", "cannot be read: No field named key"),
        (f"export {NAME} out --version 99", f"There is no version 99 of {NAME}."),
        (f"export {NAME} out --tag monday", f"{NAME} has no tag 'monday'."),
        (f"export {NAME} out --branch draft", f"{NAME} has no branch 'draft'."),
        (f"export {NAME} out --rows-per-file 0", "at least one row"),
        ("show nothing", "Transaction not found: nothing"),
        ("resume nothing", "Transaction not found: nothing"),
    ],
)
def test_job_that_is_asked_for_wrongly_says_so_in_a_sentence_and_changes_nothing(
    spark: SparkSession, catalog: CatalogConnection, films: lance.LanceDataset, line: str, message: str
) -> None:
    uri = dict(catalog.properties)["uri"]
    done = CliRunner().invoke(main, ["job", *shlex.split(line), "--uri", uri])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert (message in done.output, done.output.count("\n")) == (True, 1), done.output
    is_missing = any(
        words in message for words in ("not found: ", "There is no version", "has no tag", "has no branch")
    )
    assert done.exit_code == (ExitStatus.NOT_FOUND if is_missing else ExitStatus.FAILED), done.output
    assert ".rs:" not in done.output
    newest = table(catalog, NAME).dataset()
    assert newest.version == films.version
    assert not Path("out").exists()


def test_job_on_a_server_that_is_not_there_says_so_soon(spark: SparkSession, films: lance.LanceDataset) -> None:
    arguments = ["job", "export", NAME, "out", "--uri", "http://127.0.0.1:9"]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, "http://127.0.0.1:9 does not answer" in done.output) == (6, True), done.output
