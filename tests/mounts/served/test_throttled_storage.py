"""A storage that answers SlowDown: 503 with Retry-After, for a root of ours as below a mount, and nothing is paused."""

from __future__ import annotations

import json
from pathlib import Path

from tests.services.server import ServerProcess
from tests.services.stub_catalog import stub_catalog
from tests.services.wire import Wire, check_error

SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
)


def test_storage_that_gets_too_many_requests_is_503_with_retry_after_everywhere(tmp_path: Path) -> None:
    with stub_catalog(lambda _: (503, SLOW_DOWN)) as store:
        reach = {"aws_endpoint": store.url, "aws_region": "us-east-1", "allow_http": "true"}
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
        options = {**reach, **keys, "client_max_retries": "0", "client_retry_timeout": "1"}
        mount = {"kind": "dir", "root": "s3://bucket/w", "options": options}
        environ = {
            "TILTYARD_MOUNTS": json.dumps({"slow": mount}),
            "TILTYARD_STORAGE_OPTIONS": json.dumps(options),
        }
        server = ServerProcess(tmp_path, environ=environ)
        try:
            with Wire(server.url) as wire:
                for _ in range(4):  # after three failures in a row a catalog is taken to be away
                    for answer in (
                        wire.http.get("/v1/namespace/slow/table/list"),
                        wire.http.post("/v1/table/own/register", json={"location": "s3://bucket/w/t"}),
                    ):
                        assert (answer.status_code, check_error(answer)) == (503, 17), answer.text
                        assert answer.headers["retry-after"] == "1"
                        assert answer.json()["error"] == "The storage gets too many requests: try again in a moment."
        finally:
            server.stop()
