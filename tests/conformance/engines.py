"""Run engines' own clients, as they are published, against servers, and observe what each of their calls does.

    python -m tests.conformance.engines [ENGINE]

Some need packages that this environment has in other versions, or another Python: the first run installs those beside
it (some 550 MB for `engines.txt`). Where a package has no wheel for the platform, its engine is not run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from tests.conformance.observations import (
    Driver,
    ObservedCall,
    ServerObservations,
    lake,
    observe_call,
    open_server,
    run_alone,
)
from tests.conformance.packages import find_python, install, versions
from tests.services.recorder import Recorder

HERE = Path(__file__).parent
NAMESPACES = ("team", "team%24inner")
READER = {"object_kind": "namespace", "id": ["team"], "grantee": "ann", "privileges": ["read"]}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine: its driver, its packages, and the file that pins them if they are not this environment's."""

    driver: str
    packages: tuple[str, ...]
    requirements: str = ""
    python: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def about(self) -> str:
        pinned = versions(HERE / self.requirements) if self.requirements else {}
        names = [f"{name} {pinned.get(name) or version(name)}" for name in self.packages]
        return f"Seen with {', '.join(names)}."

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command of its driver, and its environment. Raises NoWheelError."""
        python, environ = find_python(self.python) if self.python else sys.executable, dict(self.environ)
        if self.requirements:
            folder = Path(sys.prefix) / Path(self.requirements).stem
            environ["PYTHONPATH"] = str(install(folder, HERE / self.requirements, python))
        return [python, str(HERE / "drivers" / self.driver)], environ


PINNED = "engines.txt"
ALONE = {"AWS_REGION": "us-east-1"}
"""Without a region, a client that has no credentials would ask S3 itself for one."""
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Its workers would be nicer by 15: on a machine that is busy they would hardly run."""
ENGINES = {
    "lance-ray": Engine("ray_calls.py", ("lance-ray",), environ=RAY),
    "Daft": Engine("daft_calls.py", ("daft", "daft-lance"), PINNED),
    "Polars": Engine("polars_calls.py", ("polars", "polars-pylance"), PINNED, environ=ALONE),
    "lance-graph": Engine("graph_calls.py", ("lance-graph",), PINNED),
    "lancedb-ray": Engine("lancedb_ray_calls.py", ("lancedb-ray",), "lancedb_ray.txt", "3.12", RAY),
}


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a driver expects of a call."""

    what: str
    rows: list[list[Any]] | None
    refusal: str
    known: str


def _run(engine: Engine, url: str, keys: Mapping[str, str], folder: Path) -> tuple[ObservedCall, ...]:
    """Run every call of an engine against one server, in namespaces made for it."""
    command, environ = engine.command()
    with httpx.Client(base_url=url, headers={"x-api-key": keys["owner"]} if keys else {}) as http:
        for namespace in NAMESPACES:
            http.post(f"/v1/namespace/{namespace}/create", json={}).raise_for_status()
        if keys:
            http.post("/tiltyard/v1/grant/add", json=READER).raise_for_status()
    with Recorder(url) as requests:
        given = json.dumps({"uri": url, "recorded": requests.url, "keys": dict(keys)})
        with Driver([*command, given], environ, folder / "driver.log") as driver:
            return tuple(_calls(driver, requests))


def _calls(driver: Driver, requests: Recorder) -> Iterator[ObservedCall]:
    while response := driver.next_response():
        expected = _Expected(response["what"], response["expected"], response["refusal"], response["known"])
        yield observe_call(requests, expected, response["call"], response)


def on_open_server(engine: Engine, folder: Path) -> ServerObservations:
    with open_server(folder / "open") as server:
        return ServerObservations("An open server; tables managed", _run(engine, server.url, {}, folder))


def on_lake(engine: Engine, folder: Path) -> ServerObservations:
    with lake(folder) as secured:
        keys = {"owner": secured.keys["administrator"], "reader": secured.keys["ann"]}
        title = "With an API key, on S3 with vended credentials"
        return ServerObservations(title, _run(engine, secured.url, keys, folder))


@cache
def observe(name: str) -> list[ServerObservations]:
    """Run every call of an engine, against an open server, and one with authentication. Raises NoWheelError."""
    with tempfile.TemporaryDirectory() as folder:
        return [part(ENGINES[name], Path(folder)) for part in (on_open_server, on_lake)]


if __name__ == "__main__":
    run_alone(__doc__, {name: partial(observe, name) for name in ENGINES})
