"""Services outside decide on every way in: stock clients by HTTP, SQL by Flight, and are in the audit and metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import lance_namespace
import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import PermissionDeniedError

from tests.access.decisions.service import Service, opa, unused_url
from tests.events.receiver import eventually
from tests.flight.conftest import SqlServer, command, flight_port
from tests.services.secured import Secured, secured_server
from tiltyard.cli import main

FILMS = pa.table({"id": [1, 2, 3], "title": ["Alien", "Brazil", "Casablanca"]})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, running_service: Service) -> Iterator[Secured]:
    """A server whose decisions are not kept, with two tables that ann may read."""
    settings = json.dumps(opa(running_service, cache_seconds=0))
    environ = {"TILTYARD_DECISIONS": settings, "TILTYARD_AUDIT": "all"}
    with secured_server(tmp_path_factory.mktemp("served"), environ=environ) as secured:
        owner = lancedb.connect("db://x", api_key=secured.keys["administrator"], host_override=secured.url)
        for name in ("films", "secrets"):
            owner.create_table(name, FILMS)
            granted = {"grantee": "ann", "privileges": ["read"], "object_kind": "table", "id": [name]}
            with secured.http("administrator") as http:
                assert http.post("/tiltyard/v1/grant/add", json=granted).status_code == 200
        yield secured


def not_secrets(privilege: str, kind: str, path: str) -> bool:
    return path != "secrets"


def test_a_stock_client_is_allowed_and_refused(served: Secured, service: Service) -> None:
    service.allows = not_secrets
    client = lance_namespace.connect("rest", {"uri": served.url, "header.x-api-key": served.keys["ann"]})
    assert client.describe_table(lance_namespace.DescribeTableRequest(id=["films"])).location
    with pytest.raises(PermissionDeniedError, match="'opa' does not allow use"):
        client.describe_table(lance_namespace.DescribeTableRequest(id=["secrets"]))
    database = lancedb.connect("db://x", api_key=served.keys["ann"], host_override=served.url)
    assert database.table_names() == ["films"]
    assert database.open_table("films").count_rows() == 3
    with pytest.raises(Exception, match="does not allow"):
        database.open_table("secrets").count_rows()
    assert {each["principal"]["name"] for each in service.inputs} == {"ann"}


def test_sql_reads_what_is_allowed(served: Secured, service: Service) -> None:
    service.allows = not_secrets
    with SqlServer(served, flight_port(served.url)).channel("ann") as wire:

        def plan(table: str) -> Any:
            query = f"SELECT count(*) AS n FROM {table}"
            return wire.call("GetFlightInfo", command("CommandStatementQuery", query=query), "FlightInfo")

        assert plan("films").schema
        with pytest.raises(grpc.RpcError) as refused:
            plan("secrets")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "does not allow read on the table secrets" in (refused.value.details() or "")
    assert {each["operation"] for each in service.inputs} == {"ExecuteQuery"}


def test_decisions_are_in_the_audit_and_the_metrics(served: Secured, service: Service) -> None:
    service.allows = not_secrets
    with served.http("ann") as ann, served.http("administrator") as administrator:
        refused = ann.post("/v1/table/secrets/describe", json={"context": {"decisions": "forged"}})
        assert refused.status_code == 403, refused.text
        request_id = refused.headers["x-request-id"]

        def recorded() -> list[dict[str, Any]]:
            records = administrator.post("/tiltyard/v1/audit", json={"principal": "ann"}).json()["records"]
            return [each for each in records if each["request_id"] == request_id]

        (record,) = eventually(recorded, "the record")
        metrics = administrator.get("/metrics").text
    assert re.fullmatch(r"opa denied decision-\d+", record["context"]["decisions"])
    counts = dict(re.findall(r'tiltyard_decisions_total\{outcome="(\w+)",service="opa"\} ([\d.]+)', metrics))
    assert float(counts["allowed"]) > 0
    assert float(counts["denied"]) > 0
    assert float(re.findall(r'tiltyard_decision_seconds_total\{service="opa"\} ([\d.e-]+)', metrics)[0]) > 0


def test_a_server_whose_service_fails_refuses_with_503(served: Secured, service: Service) -> None:
    service.status = 500
    with served.http("ann") as ann:
        refused = ann.post("/v1/table/films/describe", json={})
        service.reset()
        assert (refused.status_code, refused.json()["code"]) == (503, 17)
        assert "'opa' decides about this" in refused.json()["error"]


def test_the_doctor_and_the_start_say_whether_services_answer(
    service: Service, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def examine(decisions: dict[str, Any]) -> tuple[int, str]:
        arguments = ["doctor", "--port", "0", "--sql-port", "off", "--root", str(tmp_path / "new")]
        result = CliRunner().invoke(main, arguments, env={"TILTYARD_DECISIONS": json.dumps(decisions)})
        return result.exit_code, result.output

    status, said = examine(opa(service))
    assert (status, "Decisions of opa: it answers" in said) == (0, True), said
    away = opa(service, deadline_ms=500)
    away["opa"]["url"] = unused_url()
    status, said = examine(away)
    assert (status, "Decisions of opa: it does not answer" in said) == (3, True), said
