"""Compare catalogs of others through a mount with `lance-namespace-impls` used in process.

    python -m bench.mounts --impls PYTHON [--tables 1000] [--rounds 5] [hive glue iceberg]

PYTHON is an interpreter with `lance-namespace-impls[hive2,glue,iceberg]`. For each backend a server is started by what
the tests start (a Hive Metastore, moto's Glue, the Iceberg project's REST fixture), with so many Lance tables in one
namespace; Tiltyard serves it as a mount, over HTTP, and the package reads it in process. They take turns; the table has
medians. A description is *cold* where nothing that was looked up before may be used (`max_age` 0), else *warm*.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from tests.services.glue import GLUE_AS_DOCUMENTED
from tests.services.hive import hive_metastore
from tests.services.iceberg import iceberg_fixture
from tests.services.s3 import s3_server
from tests.services.server import ServerProcess

from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog

NAMESPACE = "films"
WRITERS = 8
DESCRIPTIONS = 20
"""In one turn; their median is the turn's figure."""


@dataclass
class Backend:
    """A catalog: the settings of a mount, and where the package has its class and its properties for it."""

    kind: str
    settings: dict[str, Any]
    impl: str
    properties: dict[str, str]
    location: str
    namespace: str = NAMESPACE
    environ: dict[str, str] = field(default_factory=dict)


@contextmanager
def hive(folder: Path) -> Iterator[Backend]:
    with hive_metastore(folder) as metastore:
        yield Backend(
            "hive",
            {"uri": metastore.uri, "timeout": 120},
            "lance_namespace_impls.hive2:Hive2Namespace",
            {"uri": metastore.uri, "root": str(folder)},
            f"{folder}/tables",
        )


@contextmanager
def glue(folder: Path) -> Iterator[Backend]:
    with s3_server(GLUE_AS_DOCUMENTED) as server:
        bucket = server.new_bucket("glue")
        keys = {"access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}
        secrets = dict.fromkeys(("access_key_id", "secret_access_key"), "env:TILTYARD_MOUNT_KEY")
        yield Backend(
            "glue",
            {**keys, **secrets, "endpoint": server.endpoint, "root": bucket, "timeout": 120},
            "lance_namespace_impls.glue:GlueNamespace",
            {**keys, "endpoint": server.endpoint, "root": bucket},
            bucket,
            environ={"TILTYARD_MOUNT_KEY": "testing"},
        )


@contextmanager
def iceberg(folder: Path) -> Iterator[Backend]:
    with iceberg_fixture(folder) as url:
        yield Backend(
            "iceberg",
            {"uri": url, "timeout": 120},
            "lance_namespace_impls.iceberg:IcebergNamespace",
            {"endpoint": url, "root": str(folder)},
            f"{folder}/tables",
        )


BACKENDS = {"hive": hive, "glue": glue, "iceberg": iceberg}


class Impl:
    """The package in a process of its own; None for what it cannot do against this backend."""

    def __init__(self, python: str, backend: Backend) -> None:
        script = str(Path(__file__).with_name("impls_process.py"))
        command = [python, script, backend.impl, json.dumps(backend.properties)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def call(self, *words: str) -> tuple[float, int] | None:
        """Return the seconds that a call took, and how much it found; None if it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(" ".join(words) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = self._process.stdout.readline().split()
        return (float(answer[0]), int(answer[1])) if answer else None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Mounted:
    """The backend as a mount of a server."""

    def __init__(self, folder: Path, backend: Backend, max_age: float) -> None:
        self._namespace = backend.namespace
        mount = {"kind": backend.kind, "max_age": max_age, "allowed_locations": [backend.location], **backend.settings}
        environ = {**backend.environ, "TILTYARD_MOUNTS": json.dumps({"theirs": mount})}
        self._server = ServerProcess(folder, environ=environ)
        self._http = httpx.Client(base_url=self._server.url, timeout=300)

    def list(self) -> tuple[float, int]:
        """List all tables, page by page."""
        began, found, token = time.perf_counter(), 0, None
        while True:
            query = {"page_token": token} if token else {}
            page = self._http.get(f"/v1/namespace/theirs${self._namespace}/table/list", params=query).json()
            found += len(page["tables"])
            token = page.get("page_token")
            if not token:
                return time.perf_counter() - began, found

    def describe(self, table: str) -> float:
        began = time.perf_counter()
        response = self._http.post(f"/v1/table/theirs${self._namespace}${table}/describe", json={})
        assert response.status_code == 200, response.text
        return time.perf_counter() - began

    def close(self) -> None:
        self._http.close()
        self._server.stop()


def fill(backend: Backend, tables: int) -> list[str]:
    """Declare tables in the catalog itself; return their names."""
    os.environ |= backend.environ
    catalog: MountedCatalog = open_catalog(backend.kind, backend.settings)
    catalog.create_namespace(Id((backend.namespace,)), {})
    names = [f"t{number:05}" for number in range(tables)]

    def declare(name: str) -> None:
        catalog.declare_table(Id((backend.namespace, name)), f"{backend.location}/{name}", {})

    with ThreadPoolExecutor(1 if backend.kind == "iceberg" else WRITERS) as pool:
        list(pool.map(declare, names))
    catalog.close()
    return names


def measure(backend: Backend, names: list[str], python: str, rounds: int) -> list[str]:
    """Return the rows of a backend for the table."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cold, warm = Mounted(folder / "cold", backend, 0.0), Mounted(folder / "warm", backend, 3600.0)
        impl = Impl(python, backend)
        for each in (cold, warm, impl):
            stack.callback(each.close)
        warm.describe(names[0])
        ours: dict[str, list[float]] = {"list": [], "cold": [], "warm": []}
        theirs: dict[str, list[float]] = {"list": [], "describe": []}
        for turn in range(rounds):
            sample = [names[(turn * DESCRIPTIONS + each) % len(names)] for each in range(DESCRIPTIONS)]
            seconds, found = cold.list()
            assert found == len(names), found
            ours["list"].append(seconds)
            ours["cold"].append(median(cold.describe(name) for name in sample))
            ours["warm"].append(median(warm.describe(names[0]) for _ in sample))
            if listed := impl.call("list", backend.namespace):
                theirs["list"].append(listed[0])
            described = [impl.call("describe", backend.namespace, name) for name in sample]
            if known := [each[0] for each in described if each]:
                theirs["describe"].append(median(known))
    return [
        row(backend.kind, f"list of {len(names):,} tables", ours["list"], theirs["list"]),
        row(backend.kind, "describe, cold", ours["cold"], theirs["describe"]),
        row(backend.kind, "describe, warm", ours["warm"], theirs["describe"]),
    ]


def row(kind: str, name: str, ours: list[float], theirs: list[float]) -> str:
    def words(figures: list[float]) -> str:
        return f"{median(figures) * 1000:,.1f} ms" if figures else "fails"

    ratio = f"{median(theirs) / median(ours):.1f}x" if theirs else ""
    return f"| {kind} | {name} | {words(ours)} | {words(theirs)} | {ratio} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mounts", description="Measure mounts.")
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help=f"{', '.join(BACKENDS)} [default: all]")
    parser.add_argument("--impls", required=True, help="an interpreter that has lance-namespace-impls installed")
    parser.add_argument("--tables", type=int, default=1000, help="Lance tables in the namespace [default: 1000]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side [default: 5]")
    options = parser.parse_args(arguments)
    print("| backend | row | Tiltyard | lance-namespace-impls | ratio |\n|---|---|---|---|---|")
    for name in options.backends or BACKENDS:
        run: Callable[[Path], Any] = BACKENDS[name]
        with tempfile.TemporaryDirectory() as folder, run(Path(folder)) as backend:
            names = fill(backend, options.tables)
            print("\n".join(measure(backend, names, options.impls, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
