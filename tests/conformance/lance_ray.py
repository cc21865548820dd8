"""Run lance-ray, as it is published, against servers, and see what each of its calls does.

python -m tests.conformance.lance_ray
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.seen import Driver, Seen, Story, asked, judged, lake, run_alone
from tests.services.recorder import Recorder
from tests.services.server import ServerProcess

DRIVER = Path(__file__).parent / "drivers/ray_calls.py"

log = logging.getLogger(__name__)


def run(url: str, headers: Mapping[str, str], folder: Path) -> tuple[Seen, ...]:
    """Every call against one server."""
    seen = []
    with Recorder(url) as requests:
        command = [sys.executable, str(DRIVER), json.dumps({"uri": requests.url, **headers})]
        with Driver(command, {"RAY_USAGE_STATS_ENABLED": "0"}, folder / "ray.log") as driver:
            while answer := driver.next_answer():
                outcome = judged(answer, answer["expected"], answer["refusal"])
                seen.append(Seen(answer["what"], answer["call"], outcome, asked(requests)))
                log.info("%s: %s", outcome, answer["call"])
    return tuple(seen)


def on_open_server(folder: Path) -> Story:
    server = ServerProcess(folder / "open")
    try:
        return Story("An open server; tables managed", run(server.url, {}, folder))
    finally:
        server.stop()


def on_lake(folder: Path) -> Story:
    with lake(folder) as secured:
        key = {"header.x-api-key": secured.keys["administrator"]}
        return Story("With an API key, on S3 with vended credentials", run(secured.url, key, folder))


def observe() -> list[Story]:
    """Every call, against an open server, and one that asks who you are."""
    with tempfile.TemporaryDirectory() as folder:
        return [on_open_server(Path(folder)), on_lake(Path(folder))]


if __name__ == "__main__":
    run_alone(__doc__, observe)
