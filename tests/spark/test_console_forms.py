"""Every kind of job from its form in the console: the form that the page has is filled and sent, the server runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.services.forms import find_form
from tests.services.server import ServerProcess
from tests.spark.job_processes import transaction, wait_for
from tests.spark.views import SCHEMA, create_view, numbers, write
from tiltyard.model.jobs import PIPELINE_JOBS
from tiltyard.pipeline.catalog_client import CatalogConnection, connection, table
from tiltyard.pipeline.streams.positions import find_position

CONF = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.driver.memory": "512m"}
START = "/console/jobs/start"
COLUMN_LISTS = {"inputs", "on", "columns"}
"""Arguments that name columns of the table: the form has a box to check for each of these."""


@dataclass(frozen=True)
class Scene:
    """A catalog with a table of a hundred rows in four fragments, and a folder with a file of ten further rows."""

    catalog: CatalogConnection
    table: str
    folder: Path

    @property
    def file(self) -> str:
        """Return the path of a file with the ids 95 to 104."""
        path = self.folder / "further.parquet"
        pq.write_table(numbers(95, 105).set_column(1, "text", pa.array(["new"] * 10)), path)
        return str(path)

    def dataset(self, name: str = "") -> lance.LanceDataset:
        """Open a table."""
        return table(self.catalog, name or self.table).dataset()

    def texts(self, name: str = "") -> dict[int, str]:
        """Return a table's texts by their ids; no id is there twice."""
        rows = self.dataset(name).to_table(columns=["id", "text"]).to_pydict()
        assert len(set(rows["id"])) == len(rows["id"])
        return dict(zip(rows["id"], rows["text"], strict=True))


Case = tuple[dict[str, str], Callable[[], None]]
"""What is entered into a form, and a function that checks the effect."""


def _ingest(scene: Scene) -> Case:
    def check() -> None:
        assert sorted(scene.texts(f"{scene.table}_in")) == list(range(95, 105))

    return {"source": scene.file, "table": f"{scene.table}_in"}, check


def _index(scene: Scene) -> Case:
    def check() -> None:
        (index,) = scene.dataset().describe_indices()
        assert (index.name, index.index_type) == ("by_id", "BTree")

    return {"table": scene.table, "column": "id", "type": "BTREE", "name": "by_id"}, check


def _optimize(scene: Scene) -> Case:
    def check() -> None:
        assert len(scene.dataset().get_fragments()) == 1 and len(scene.texts()) == 100

    return {"table": scene.table}, check


def _pipeline(scene: Scene) -> Case:
    def check() -> None:
        assert len(scene.texts(f"{scene.table}_planned")) == 10

    return {"plan": json.dumps({"tables": {f"{scene.table}_planned": {"files": scene.file}}})}, check


def _backfill(scene: Scene) -> Case:
    def check() -> None:
        rows = scene.dataset().to_table(columns=["id", "double"]).to_pydict()
        assert rows["double"] == [2 * number for number in rows["id"]] and len(rows["id"]) == 100

    fields = {"column": "double", "udf": "tests.spark.functions:doubled", "inputs": "id", "type": "int64"}
    return {"table": scene.table, **fields, "udf_version": "1"}, check


def _deduplicate(scene: Scene) -> Case:
    def check() -> None:
        rows = scene.dataset().to_table(columns=["id", "copy_of"]).to_pydict()
        assert len(rows["id"]) == 100 and rows["copy_of"] == [None] * 100

    return {"table": scene.table, "on": "id", "method": "exact", "id": "id", "into": "copy_of"}, check


def _delete(scene: Scene) -> Case:
    def check() -> None:
        assert sorted(scene.texts()) == list(range(40))

    return {"table": scene.table, "filter": "id >= 40"}, check


def _export(scene: Scene) -> Case:
    destination = scene.folder / "out"

    def check() -> None:
        assert pq.read_table(destination).sort_by("id") == numbers(10, 100)

    return {"table": scene.table, "destination": str(destination), "filter": "id >= 10"}, check


def _refresh(scene: Scene) -> Case:
    view = f"{scene.table}_view"
    create_view(scene.catalog, view, f"SELECT id, text FROM {scene.table} WHERE id < 30", SCHEMA)

    def check() -> None:
        assert sorted(scene.texts(view)) == list(range(30))

    return {"table": view}, check


def _stream(scene: Scene) -> Case:
    name = f"{scene.table}_stream"

    def check() -> None:
        assert sorted(scene.texts(name)) == list(range(95, 105))
        assert find_position(scene.dataset(name), "nightly") is not None

    return {"source": scene.file, "table": name, "available_now": "yes", "name": "nightly"}, check


def _upsert(scene: Scene) -> Case:
    def check() -> None:
        texts = scene.texts()
        assert sorted(texts) == list(range(105)) and [texts[94], texts[95], texts[104]] == ["row 94", "new", "new"]

    return {"source": scene.file, "table": scene.table, "on": "id"}, check


CASES: dict[str, Callable[[Scene], Case]] = {
    "ingest": _ingest,
    "index": _index,
    "optimize": _optimize,
    "pipeline": _pipeline,
    "backfill": _backfill,
    "deduplicate": _deduplicate,
    "delete": _delete,
    "export": _export,
    "refresh": _refresh,
    "stream": _stream,
    "upsert": _upsert,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Iterator[ServerProcess]:
    """A server that runs jobs in one warm session, their functions, too."""
    settings = {"TILTYARD_SPARK_CONF": json.dumps(CONF), "TILTYARD_UDFS": "true"}
    running = ServerProcess(tmp_path_factory.mktemp("root"), "--spark", "local[1]", environ={**environ, **settings})
    yield running
    running.stop(30)


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def test_every_kind_of_job_has_a_case_here() -> None:
    assert set(CASES) == set(PIPELINE_JOBS)


@pytest.mark.parametrize("kind", sorted(PIPELINE_JOBS))
def test_job_started_from_its_form_has_its_effect(
    kind: str, server: ServerProcess, http: httpx.Client, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    scene = Scene(connection(server.url), fresh("films"), tmp_path)
    for first in range(0, 100, 25):
        write(scene.catalog, scene.table, numbers(first, first + 25), "append" if first else "create")
    entered, check = CASES[kind](scene)
    page = http.get(START, params={"name": kind, "table": scene.table})
    form = find_form(page.text, START)
    for name in COLUMN_LISTS & entered.keys() if kind != "deduplicate" else ():  # whose `on` is one column
        form.check(f"argument.{name}", entered.pop(name))
    started = form.fill(**entered).send(http)
    assert started.status_code == 200 and started.url.path == "/console/job", started.text
    job = started.url.params["id"]
    ended = wait_for(lambda: (now := transaction(server, job)).status not in ("Queued", "Running") and now, 200)
    assert ended.status == "Succeeded", ended.properties
    assert ended.properties["kind"] == kind
    check()
