"""Jobs through a server that runs them itself (`serve --spark`), ordered by stock clients and by the command line."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance_namespace_urllib3_client as generated
import lancedb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from tests.services.server import ServerProcess
from tests.spark.job_processes import transaction, wait_for
from tests.spark.views import spec, words
from tiltyard.pipeline.catalog_client import connection, table

IMAGE = "registry.example/functions:1"
CONF = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.driver.memory": "512m"}

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Iterator[ServerProcess]:
    """A server with one warm Spark session for all tests here."""
    settings = {
        "TILTYARD_SPARK_CONF": json.dumps(CONF),
        "TILTYARD_SPARK_INDEX_ROWS": "50",
        "TILTYARD_UDFS": "true",
        "TILTYARD_UDF_IMAGES": json.dumps([IMAGE]),
    }
    running = ServerProcess(tmp_path_factory.mktemp("root"), "--spark", "local[2]", environ={**environ, **settings})
    yield running
    running.stop(30)


def succeeded(server: ServerProcess, job_id: str) -> dict[str, str]:
    """Wait for the success of a job; return its properties."""
    last: Any = wait_for(
        lambda: (latest := transaction(server, job_id)).status in ("Succeeded", "Failed", "Canceled") and latest, 200
    )
    assert last.status == "Succeeded", last.properties
    return dict(last.properties)


def rows(server: ServerProcess, name: str) -> pa.Table:
    """A table's contents, by plain pylance."""
    dataset: lance.LanceDataset = table(connection(server.url), name).dataset()
    return dataset.to_table().sort_by("id")


def job(server: ServerProcess, *arguments: str) -> str:
    """Run `tiltyard job …`; return what it printed."""
    command = [sys.executable, "-m", "tiltyard", "job", *arguments, "--uri", server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ingest_that_is_submitted_is_run_by_the_server_and_every_row_is_there(
    server: ServerProcess, tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    data = pa.table({"id": range(5_000), "text": [f"row {number}" for number in range(5_000)]})
    for part in range(5):
        pq.write_table(data.slice(part * 1_000, 1_000), tmp_path / f"part{part}.parquet")
    name = fresh("films")
    job_id = job(server, "ingest", str(tmp_path), name, "--submit")
    assert "status: Succeeded" in job(server, "wait", job_id)
    assert rows(server, name).equals(data)
    properties = succeeded(server, job_id)
    assert properties["rows"] == "5000" and properties["spark_application"].startswith("local-")


def test_index_of_a_large_table_by_lancedb_is_built_by_the_job(
    server: ServerProcess, fresh: Callable[[str], str]
) -> None:
    name = fresh("large")
    database = lancedb.connect("db://tests", api_key="none", host_override=server.url)
    films = database.create_table(name, pa.table({"id": range(200), "text": ["a fox"] * 200}))
    films.create_scalar_index("id", index_type="BTREE", wait_timeout=None)
    client = generated.ApiClient(generated.Configuration(host=server.url))
    (order,) = [
        listed.index_uuid
        for listed in generated.IndexApi(client).list_table_indices(name, generated.ListTableIndicesRequest()).indexes
    ]
    films.wait_for_index(
        ["id_idx"], timedelta(seconds=200)
    )  # until no row is left out: its commit is not its job's end
    (index,) = generated.IndexApi(client).list_table_indices(name, generated.ListTableIndicesRequest()).indexes
    assert (index.status, index.index_name, index.num_indexed_rows) == ("done", "id_idx", 200)
    assert transaction(server, order).properties["kind"] == "index"  # type: ignore[index]  # a job has some
    assert films.search().where("id = 77").to_list()[0]["id"] == 77


def test_virtual_column_by_the_generated_client_is_filled_by_its_code(
    server: ServerProcess, fresh: Callable[[str], str]
) -> None:
    name = fresh("coded")
    lance.write_dataset(
        pa.table({"id": range(40), "text": ["x" * number for number in range(40)]}),
        namespace_client=connection(server.url).client(),
        table_id=[name],
    )
    code = cloudpickle.dumps(lambda batch: pa.array([len(text) * 2 for text in batch["text"].to_pylist()], pa.int32()))
    output = {"column": "double", "struct_field": "double", "data_type": {"type": "int32"}, "nullable": True}
    virtual = {
        "input_columns": ["text"],
        "outputs": [output],
        "image": IMAGE,
        "udf": base64.b64encode(code).decode(),
        "udf_name": "double",
        "udf_version": "1",
    }
    api = generated.TableApi(generated.ApiClient(generated.Configuration(host=server.url)))
    entry = {"name": "double", "virtual_column": virtual}
    api.alter_table_add_columns(name, generated.AlterTableAddColumnsRequest.from_dict({"new_columns": [entry]}))
    assert rows(server, name)["double"].null_count == 40
    request = generated.AlterTableBackfillColumnsRequest(column="double")
    succeeded(server, api.alter_table_backfill_columns(name, request).job_id)
    assert rows(server, name)["double"].to_pylist() == [number * 2 for number in range(40)]


def test_view_by_the_generated_client_is_filled_refreshed_and_tells_what_it_was_made_of(
    server: ServerProcess, fresh: Callable[[str], str]
) -> None:
    source, view = fresh("texts"), fresh("words")
    client = connection(server.url).client()
    for first in (1, 11):
        data = pa.table({"id": range(first, first + 10), "text": ["one two"] * 10})
        mode = "create" if first == 1 else "append"
        lance.write_dataset(data, namespace_client=client, table_id=[source], mode=mode)
        api = generated.MaterializedViewApi(generated.ApiClient(generated.Configuration(host=server.url)))
        if first == 1:
            schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("number", pa.int64())])
            fields = {
                "kind": "chunker",
                "source_query": f"SELECT id, text FROM {source}",
                "output_schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
                "udtf_spec": spec("chunker", words, ["id", "text"]),
                "with_no_data": False,
            }
            created = api.create_materialized_view(view, generated.CreateMaterializedViewRequest.from_dict(fields))
            figures = succeeded(server, str(created.job_id))
        else:
            request = generated.RefreshMaterializedViewRequest()
            ordered = api.refresh_materialized_view(view, refresh_materialized_view_request=request)
            figures = succeeded(server, ordered.job_id)
        assert (figures["mode"], figures["rows"]) == ("full" if first == 1 else "incremental", "20")
    expected = [(number, word) for number in range(1, 21) for word in ("one", "two")]
    contents = rows(server, view).sort_by([("id", "ascending"), ("number", "ascending")])
    assert list(zip(contents["id"].to_pylist(), contents["word"].to_pylist(), strict=True)) == expected
    tables = generated.TableApi(generated.ApiClient(generated.Configuration(host=server.url)))
    described = tables.describe_table(view, generated.DescribeTableRequest(), load_detailed_metadata=True)
    assert json.loads(described.properties["tiltyard.view.sources"]) == {source: 2}
    assert "mode: unchanged" in job(server, "refresh", view)
