"""Traces: a span for each request with what it cost, its children, the trace of its client; logs as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider

from tests.services.collector import Collector
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.config import ConfigError, load_settings
from tiltyard.runtime import tracing
from tiltyard.runtime.pool import Pool
from tiltyard.runtime.tracing import CurrentRequest, JsonFormatter, working_on

ROWS = pa.table({"id": pa.array(range(10), pa.int64())})
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that sends traces, and logs JSON."""
    environ = {
        "TILTYARD_TRACE_ENDPOINT": collector.url,
        "TILTYARD_LOG_FORMAT": "json",
        "TILTYARD_LOG_LEVEL": "info",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    server = ServerProcess(tmp_path_factory.mktemp("traces"), environ=environ)
    yield server
    assert server.stop() == 0


def test_span_of_a_request_has_what_it_cost_and_belongs_to_its_clients_trace(
    server: ServerProcess, collector: Collector
) -> None:
    with Wire(server.url) as wire:
        wire.http.headers.update(HEADERS)
        body = stream(ROWS)
        wire.good(wire.table(["t"], "create", body))
        query = {"k": 5, "vector": {"single_vector": []}, "filter": "id > 2"}
        answer = wire.table(["t"], "query", query)
        missing = wire.table(["none"], "count_rows")
    created = collector.wait_for(lambda span: span.name == "CreateTable")
    assert (created.trace_id, created.parent_id) == (TRACE, PARENT)
    values = created.attributes
    assert (values["tiltyard.object"], values["tiltyard.rows"]) == ("t", 10)
    assert (values["http.response.status_code"], values["tiltyard.request_bytes"]) == (200, len(body))
    assert values["tiltyard.run_ms"] > 0 and values["tiltyard.wait_ms"] >= 0

    read = collector.wait_for(lambda span: span.name == "QueryTable")
    assert (read.attributes["tiltyard.rows"], read.trace_id) == (5, TRACE)
    assert read.attributes["tiltyard.response_bytes"] == len(answer.content)
    failed = collector.wait_for(lambda span: span.name == "CountTableRows")
    assert failed.attributes["http.response.status_code"] == missing.status_code == 404
    assert failed.attributes["tiltyard.code"] == 4 and not failed.has_failed
    assert failed.attributes["tiltyard.request_id"] == missing.headers["x-request-id"]

    names = {child.name for child in collector.children(created)}
    assert {name.split()[0] for name in names} == {"catalog", "storage"}, names
    assert any(name.startswith("storage") for name in {child.name for child in collector.children(read)})


def test_job_of_the_server_belongs_to_the_trace_of_its_request(server: ServerProcess, collector: Collector) -> None:
    with Wire(server.url) as wire:
        wire.good(wire.table(["indexed"], "create", stream(ROWS)))
        wire.http.headers.update(HEADERS)
        wire.good(wire.table(["indexed"], "create_scalar_index", {"column": "id", "index_type": "BTREE"}))
    ordered = collector.wait_for(lambda span: span.name == "CreateTableScalarIndex")
    job = collector.wait_for(lambda span: span.name == "job create_index")
    assert (job.trace_id, job.parent_id) == (TRACE, ordered.span_id)
    assert job.attributes["tiltyard.job"] and job.attributes["tiltyard.attempt"] == 1
    assert any(child.name.startswith("storage") for child in collector.children(job))


def test_trace_of_a_request_is_written_into_the_job_that_it_submits(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        job = {"name": "ingest", "arguments": {"source": "/none", "table": "films"}, "table": ["films"]}
        answer = wire.good(wire.http.post("/tiltyard/v1/job/submit", json=job, headers=HEADERS))
    assert answer["job"]["properties"]["traceparent"].startswith(f"00-{TRACE}-")


def test_damaged_trace_headers_begin_a_new_trace(server: ServerProcess, collector: Collector) -> None:
    with Wire(server.url) as wire:
        for number, text in enumerate(("00-zz-11-01", "00-" + "0" * 32 + "-" + PARENT + "-01", "x" * 5000)):
            wire.http.headers["traceparent"] = text
            request_id = f"damaged-{number}"
            wire.http.headers["x-request-id"] = request_id
            wire.good(wire.namespace([], "list", method="GET"))
            span = collector.wait_for(lambda span: span.attributes.get("tiltyard.request_id") == request_id)  # noqa: B023
            assert span.parent_id == "" and len(span.trace_id) == 32


def test_log_lines_are_json(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        wire.http.post("/v1/table/none/query", json={"k": 1})
    lines = [json.loads(line) for line in server.log if not line.startswith(("Tiltyard serves", "The console"))]
    assert lines and all({"time", "level", "logger", "message"} <= set(line) for line in lines)


def test_log_line_within_a_request_has_the_ids_of_request_and_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread of an executor, too, where the request's work is done."""
    monkeypatch.setattr(tracing, "_is_tracked", True)
    provider = TracerProvider()
    span = provider.get_tracer("test").start_span("request")
    formatter = JsonFormatter()

    def line() -> dict[str, str]:
        record = logging.LogRecord("tiltyard", logging.ERROR, "", 1, "line one\nline %s", ("two",), None)
        formatted = formatter.format(record)
        assert "\n" not in formatted
        return dict(json.loads(formatted))

    assert "request_id" not in line()
    with Pool("test", "Of a test", 1) as pool, working_on(CurrentRequest("find-me", span)):
        for found in line(), pool.submit(line).result():
            context = span.get_span_context()
            assert (found["request_id"], found["message"]) == ("find-me", "line one\nline two")
            assert (found["trace_id"], found["span_id"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert "request_id" not in line()


@pytest.mark.parametrize(
    ("name", "value"),
    [("trace_endpoint", "collector:4318"), ("trace_sample", "1.5"), ("log_format", "xml")],
)
def test_settings_of_traces_and_logs_are_checked(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_settings({name: value}, environ={})
