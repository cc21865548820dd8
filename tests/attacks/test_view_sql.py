"""SQL of callers on a worker: what it reads of the machine, whom it asks, and what its end costs others."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from tests.attacks.watchdog import attacked_server
from tests.services.wire import stream
from tests.spark.job_processes import transaction, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.server import ServerProcess

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

MARK = f"secret{uuid4().hex}"
SCHEMA = pa.schema([("a", pa.string())])
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
JAVA = ("java.", "\tat ", "Exception:", "org.apache")
"""Parts of Java's own error messages."""

BOUND_MIB = 3000
"""The server, a driver, and Spark's Python workers; Java's heap has its own bound."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that runs jobs, with secrets in its settings, its environment and its command line."""
    folder = tmp_path_factory.mktemp("views")
    (folder / MARK).mkdir()
    environ = {
        "AWS_SECRET_ACCESS_KEY": f"{MARK}cloud",
        "PGPASSWORD": f"{MARK}password",
        "TILTYARD_STORAGE_OPTIONS": json.dumps({"secret_access_key": f"{MARK}options"}),
        "TILTYARD_SPARK_CONF": json.dumps({"spark.sql.shuffle.partitions": "1", "spark.eventLog.compress": "false"}),
        "TILTYARD_SPARK_MEMORY": "512m",
    }
    flags = ("--spark", "local[2]", "--db", f"sqlite:///{folder / MARK}/catalog.db")
    with attacked_server(folder / "root", *flags, environ=environ, bound_mib=BOUND_MIB) as running:
        created = httpx.post(
            f"{running.url}/v1/table/rows/create", content=stream(pa.table({"a": ["x", "y"]}, SCHEMA)), headers=ARROW
        )
        assert created.status_code == 200, created.text
        yield running


def create(server: ServerProcess, query: str, name: str = "", **fields: object) -> httpx.Response:
    """Create a view; return the response."""
    output = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    body = {"kind": "query", "source_query": query, "output_schema": output, "with_no_data": False, **fields}
    name = name or f"v{uuid4().hex}"
    return httpx.post(f"{server.url}/v1/materialized_view/{name}/create", json=body, timeout=60)


def queued(server: ServerProcess, query: str) -> str:
    """Create a view of this query; return the id of its refresh."""
    response = create(server, query)
    assert response.is_success, response.text
    return str(response.json()["job_id"])


def outcome(server: ServerProcess, job_id: str) -> tuple[str, str]:
    """Wait for the end of a job; return its status and error."""
    ended = wait_for(lambda: (job := transaction(server, job_id)).status in ("Succeeded", "Failed") and job, 300)
    return ended.status, (ended.properties or {}).get("error", "")


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """Start an HTTP server that records the paths of its requests."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}/x.xsd", paths
        web.shutdown()
        thread.join()


def descendants(pid: int) -> Iterator[int]:
    """All processes below a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from descendants(int(child))


def test_create_view_with_a_variable_of_spark_is_refused(server: ServerProcess) -> None:
    for text in ("${env:AWS_SECRET_ACCESS_KEY}", "${system:user.home}", "${spark:spark.master}", "${hivevar:a}"):
        for with_no_data in (True, False):
            response = create(server, f"SELECT '{text}' AS a FROM rows", with_no_data=with_no_data)
            assert (response.status_code, response.json()["code"]) == (400, 13) and "no '${" in response.json()["error"]


def test_refresh_that_asks_for_more_than_its_tables_fails_in_our_words(server: ServerProcess) -> None:
    with listener() as (url, paths):
        attacks = {  # by the network, and as Spark runs; test_view_queries has all others
            f"SELECT from_xml(a, 'a STRING', map('rowValidationXSDPath', '{url}')).a AS a FROM rows": "XML",
            "SELECT raise_error(concat('java.', a)) AS a FROM rows": "the log of its driver",
        }
        jobs = {queued(server, query): message for query, message in attacks.items()}
        for job_id, message in jobs.items():
            status, error = outcome(server, job_id)
            assert status == "Failed" and message in error, error
            assert not any(sign in error for sign in JAVA) and MARK not in error, error
        assert paths == []


def test_driver_has_no_secret_where_others_may_look(server: ServerProcess) -> None:
    assert outcome(server, queued(server, "SELECT upper(a) AS a FROM rows"))[0] == "Succeeded"
    command_lines = {}
    for pid in descendants(server.process.pid):
        process = Path(f"/proc/{pid}")
        try:
            command_line, variables = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:  # a Python worker that has ended
            continue
        command_lines[pid] = command_line.decode().replace("\0", " ")
        assert MARK.encode() not in command_line, command_lines[pid]
        assert MARK.encode() not in variables, command_lines[pid]
    for program in ("tiltyard.pipeline.driver.process", "org.apache.spark.deploy.SparkSubmit", "pyspark.daemon"):
        assert any(program in command_line for command_line in command_lines.values()), (program, command_lines)
    logs = [file for file in (Path(server.root) / "_spark-events").rglob("*") if file.is_file()]
    assert any(b"SparkListenerEnvironmentUpdate" in file.read_bytes() for file in logs)
    assert not any(MARK.encode() in file.read_bytes() for file in logs)


def test_refresh_that_takes_all_memory_costs_its_own_job_alone(server: ServerProcess) -> None:
    eight = "concat(made, made, made, made, made, made, made, made)"  # by leaps: what nearly fits is collected for long
    grown = f"aggregate(sequence(1, 20), array(a), (made, i) -> {eight})"
    status, error = outcome(server, queued(server, f"SELECT string(size({grown})) AS a FROM rows"))
    assert status == "Failed" and "Spark's JVM ended" in error, error
    assert not any(sign in error for sign in JAVA), error
    assert outcome(server, queued(server, "SELECT lower(a) AS a FROM rows"))[0] == "Succeeded"
