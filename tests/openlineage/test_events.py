"""OpenLineage events of jobs on a folder, without Spark: valid, of what was read and written, and never in the way."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

import tiltyard
from tests.openlineage.validation import check_event
from tiltyard.model.settings.openlineage import OpenLineageSettings
from tiltyard.pipeline.openlineage import emitter as events
from tiltyard.pipeline.openlineage import observer
from tiltyard.pipeline.runs import LocalRun, RunCanceledError

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of films, and one lake for the whole file."""
    folder = tmp_path_factory.mktemp("openlineage")
    pq.write_table(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "year": [1, 2, 3]}), folder / "films.parquet")
    return folder


@pytest.fixture
def lake(folder: Path) -> tiltyard.Lake:
    return tiltyard.connect(folder / "root")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Send the events of this process to a file; return it."""
    events.configure(OpenLineageSettings(f"file://{tmp_path}/events.jsonl", namespace="test"))
    yield tmp_path / "events.jsonl"
    events.configure(None)


def read(log: Path) -> Events:
    """Return the events that were sent, which are valid."""
    found = [json.loads(line) for line in log.read_text().splitlines()]
    for event in found:
        check_event(event)
    return found


def test_ingest_has_its_datasets_columns_and_checks(lake: tiltyard.Lake, folder: Path, log: Path) -> None:
    films = lake.table("films")
    run = films.ingest(
        folder / "films.parquet", select="id,name", rename={"name": "title"}, cast={"id": "int32"},
        checks=["rows >= 1", "warn: between(id, 2, 9)"],
    )  # fmt: skip
    start, complete = read(log)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"] != run.id
    assert complete["run"]["facets"]["parent"]["run"]["runId"] == run.id  # of this driver's part of a recorded job
    assert complete["job"]["namespace"] == "test" and complete["job"]["name"] == "ingest.films"
    (read_from,), (written,) = complete["inputs"], complete["outputs"]
    file = {"namespace": "file", "name": str(folder / "films.parquet")}
    assert {name: read_from[name] for name in file} == file
    assert [(each["namespace"], each["name"]) for each in start["outputs"]] == [("test", "films")]
    assertions = read_from["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(each["assertion"], each["success"], each["severity"]) for each in assertions] == [
        ("rows", True, "error"),
        ("between", False, "warn"),
    ]
    assert assertions[1]["column"] == "id" and assertions[1]["actual"] == "1 rows are not"
    facets = written["facets"]
    assert [(each["name"], each["type"]) for each in facets["schema"]["fields"]] == [
        ("id", "int32"),
        ("title", "string"),
    ]
    assert facets["version"]["datasetVersion"] == "1" and written["outputFacets"]["outputStatistics"]["rowCount"] == 3
    fields = facets["columnLineage"]["fields"]
    (identifier,), (title,) = fields["id"]["inputFields"], fields["title"]["inputFields"]
    assert (title["name"], title["field"]) == (file["name"], "name")
    assert [each["transformations"][0]["subtype"] for each in (identifier, title)] == ["TRANSFORMATION", "IDENTITY"]


def test_rows_of_this_process_have_a_run_of_their_own(lake: tiltyard.Lake, log: Path) -> None:
    lake.table("memory").ingest([{"id": 1}])
    start, complete = read(log)
    assert "parent" not in start["run"]["facets"] and start["inputs"] == []
    assert [(each["namespace"], each["name"]) for each in complete["inputs"]] == [("memory", "builtins.list")]
    assert complete["outputs"][0]["facets"]["version"]["datasetVersion"] == "1"


def test_failed_run_says_why_and_which_check_failed(lake: tiltyard.Lake, folder: Path, log: Path) -> None:
    with pytest.raises(InvalidInputError):
        lake.table("failed").ingest(folder / "films.parquet", checks="between(id, 2, 9)")
    _, fail = read(log)
    assert (
        fail["eventType"] == "FAIL"
        and "between(id, 2, 9): 1 rows are not" in fail["run"]["facets"]["errorMessage"]["message"]
    )
    (assertion,) = fail["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["success"], assertion["severity"]) == (False, "error")


def test_long_run_tells_how_much_it_has_written(
    lake: tiltyard.Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "RUNNING_SECONDS", 0.0)

    def work(run: Any) -> dict[str, object]:
        run.progress(rows=7, bytes=90)
        return {"rows": 9}

    events.observe("ingest", LocalRun(), lake.catalog, {"table": "films"}, work)
    start, running, complete = read(log)
    assert [event["eventType"] for event in (start, running, complete)] == ["START", "RUNNING", "COMPLETE"]
    statistics = running["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (7, 90)
    assert "outputStatistics" not in start["outputs"][0].get("outputFacets", {})


def test_canceled_run_is_aborted(lake: tiltyard.Lake, log: Path) -> None:
    def cancel(run: Any) -> dict[str, object]:
        raise RunCanceledError(run.id)

    with pytest.raises(RunCanceledError):
        events.observe("ingest", LocalRun(), lake.catalog, {"table": "films"}, cancel)
    assert [event["eventType"] for event in read(log)] == ["START", "ABORT"]


class Collector(BaseHTTPRequestHandler):
    """Collects what is posted to it."""

    received: list[tuple[str, str | None, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers["Authorization"], body))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_events_are_posted_with_the_key_and_a_collector_that_is_away_fails_no_job(
    lake: tiltyard.Lake, caplog: pytest.LogCaptureFixture
) -> None:
    Collector.received = []
    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    events.configure(OpenLineageSettings(f"{address}/api/v1/lineage", key="secret key"))
    try:
        lake.table("posted").ingest([{"id": 1}])
        server.shutdown()
        server.server_close()
        assert [(path, key) for path, key, _ in Collector.received] == [("/api/v1/lineage", "Bearer secret key")] * 2
        for _, _, body in Collector.received:
            check_event(json.loads(body))
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert lake.table("posted").write([{"id": 2}]).status == "Succeeded"
        (warning,) = [message for message in caplog.messages if "OpenLineage" in message]
        assert "jobs go on without" in warning and "secret key" not in warning
    finally:
        events.configure(None)


def test_missing_package_is_named_once(
    lake: tiltyard.Lake, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(settings: OpenLineageSettings) -> None:
        raise ModuleNotFoundError("openlineage")

    monkeypatch.setattr(events, "open_transport", fail)
    assert lake.table("without").ingest([{"id": 1}]).version == 1
    assert [message for message in caplog.messages if "pip install 'tiltyard[openlineage]'" in message]


def test_environment_turns_events_on_and_wrong_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_is_configured", False)
    assert events.current_emitter() is None
    for name, value, message in (
        ("", "marquez:5000", "the URL of an endpoint without credentials"),
        ("", "http://user:secret@marquez", "without credentials"),
        ("_KEY", "plain", "write env:NAME or file:PATH"),
    ):
        monkeypatch.setenv("TILTYARD_OPENLINEAGE", "http://marquez:5000")
        monkeypatch.setenv(f"TILTYARD_OPENLINEAGE{name}", value)
        monkeypatch.setattr(events, "_is_configured", False)
        with pytest.raises(InvalidInputError, match=message) as refusal:
            events.current_emitter()
        assert "secret@" not in str(refusal.value)
    monkeypatch.setenv("TILTYARD_OPENLINEAGE_KEY", "env:KEY_OF_TEST")
    monkeypatch.setenv("KEY_OF_TEST", "value")
    emitter = events.current_emitter()
    assert emitter is not None and emitter.settings == OpenLineageSettings("http://marquez:5000", "value")
    events.configure(None)


def test_event_that_is_invalid_is_found() -> None:
    """Check that the validation itself finds errors."""
    with pytest.raises(jsonschema.ValidationError):
        check_event({"schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"})
