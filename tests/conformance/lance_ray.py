"""Run lance-ray, as it is published, against servers, and observe what each of its calls does.

python -m tests.conformance.lance_ray
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.observations import (
    Driver,
    ObservedCall,
    ServerObservations,
    drain_operations,
    lake,
    outcome_of,
    run_alone,
)
from tests.services.recorder import Recorder
from tests.services.server import ServerProcess

DRIVER = Path(__file__).parent / "drivers/ray_calls.py"

log = logging.getLogger(__name__)


def run(url: str, headers: Mapping[str, str], folder: Path) -> tuple[ObservedCall, ...]:
    """Run every call against one server."""
    calls = []
    with Recorder(url) as requests:
        command = [sys.executable, str(DRIVER), json.dumps({"uri": requests.url, **headers})]
        with Driver(command, {"RAY_USAGE_STATS_ENABLED": "0"}, folder / "ray.log") as driver:
            while response := driver.next_response():
                outcome = outcome_of(response, response["expected"], response["refusal"])
                calls.append(ObservedCall(response["what"], response["call"], outcome, drain_operations(requests)))
                log.info("%s: %s", outcome, response["call"])
    return tuple(calls)


def on_open_server(folder: Path) -> ServerObservations:
    server = ServerProcess(folder / "open")
    try:
        return ServerObservations("An open server; tables managed", run(server.url, {}, folder))
    finally:
        server.stop()


def on_lake(folder: Path) -> ServerObservations:
    with lake(folder) as secured:
        key = {"header.x-api-key": secured.keys["administrator"]}
        return ServerObservations("With an API key, on S3 with vended credentials", run(secured.url, key, folder))


def observe() -> list[ServerObservations]:
    """Run every call, against an open server, and one with authentication."""
    with tempfile.TemporaryDirectory() as folder:
        return [on_open_server(Path(folder)), on_lake(Path(folder))]


if __name__ == "__main__":
    run_alone(__doc__, observe)
