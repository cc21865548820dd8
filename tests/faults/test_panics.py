"""A panic of Lance, which is no Exception to Python, is an error of the specification, and the server goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from tests.services.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_request_whose_operation_panics_is_answered_and_logged(tmp_path: Path) -> None:
    moment = tmp_path / "moment"
    server = ServerProcess(tmp_path / "root", environ={"TILTYARD_FAULT": f"before_answer=panic@{moment}"})
    with httpx.Client(base_url=server.url, timeout=30) as http:
        for operation in ("namespace/sales/create", "table/films/describe"):
            moment.touch()
            failed = http.post(f"/v1/{operation}", json={}, headers={"x-request-id": f"panic-{operation[:5]}"})
            if moment.exists():  # refused before its operation had returned
                assert failed.status_code == 404
                continue
            assert failed.status_code == 500
            assert failed.json() == {
                "error": "Lance failed on this request; the log has the details under the id in `instance`.",
                "code": 18,
                "instance": f"panic-{operation[:5]}",
            }
        assert http.post("/v1/namespace/sales/exists", json={}).status_code == 200
    server.stop()
    log = "".join(server.log)
    assert "request panic-names failed" in log
    assert "a panic at before_answer" in log
