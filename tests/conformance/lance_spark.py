"""Run lance-spark, as it is published, against servers, and see what each of its statements does.

    python -m tests.conformance.lance_spark

The connector is made for Spark 3.5, so it runs in a process with a PySpark of that version, which the first run
installs beside this environment's own (some 350 MB). Spark itself fetches the connector by its coordinates, into the
same folder (some 260 MB), and its files are compared with SHA256 before a statement is run.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from tests.conformance.lance_spark_steps import STORIES, Step
from tests.conformance.observations import (
    Driver,
    ObservedCall,
    ServerObservations,
    lake,
    observe_call,
    open_server,
    run_alone,
)
from tests.conformance.packages import install
from tests.services.recorder import Recorder
from tests.services.secured import Secured
from tiltyard.cli.session.spark_conf import CONNECTOR, catalog_settings

ABOUT = f"Seen with {CONNECTOR} on PySpark 3.5.9."
SHA256 = {
    "org.lance_lance-core-4.0.0.jar": "01395d990dcaf196964afe56cbddd734301826e45ebfcf8143ae143e094c33a4",
    "org.lance_lance-spark-3.5_2.12-0.4.0.jar": "078627d23e4f704a857b8c5406bff0bf59a3f58fb6aad31b75c0955103831f4f",
    "org.lance_lance-spark-base_2.12-0.4.0.jar": "9b8c9b2540389c3071aa469d8167fb3823ae383e2bb2c5a3688c51e8312f75df",
}
DRIVER = Path(__file__).parent / "drivers/spark_statements.py"
REQUIREMENTS = Path(__file__).with_name("lance_spark.txt")
FOLDER = Path(sys.prefix) / "lance-spark"
"""The other PySpark, and what Spark fetches."""


def check_files(folder: Path = FOLDER, digests: Mapping[str, str] = SHA256) -> None:
    """Raises RuntimeError if the connector's files are not those that were looked at."""
    for name, expected in digests.items():
        with (folder / "ivy/jars" / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise RuntimeError(f"{name} is not the file that was looked at: remove {folder}, and run it again.")


def catalog(name: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for one catalog, as `tiltyard spark-conf` prints them, with other headers."""
    others = {f"spark.sql.catalog.{name}.{header}": value for header, value in headers.items()}
    return {**catalog_settings(name, url), **others}


SESSION = {
    "spark.jars.packages": CONNECTOR,
    "spark.jars.ivy": str(FOLDER / "ivy"),
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def session(catalogs: dict[str, str], errors: Path) -> Iterator[Driver]:
    """Spark with these catalogs, its connector checked."""
    packages = install(FOLDER, REQUIREMENTS)
    command = [sys.executable, str(DRIVER), json.dumps({**SESSION, **catalogs})]
    with Driver(command, {"PYTHONPATH": str(packages)}, errors) as driver:
        driver.response()
        check_files()
        yield driver


def run(driver: Driver, requests: Recorder, catalog: str, steps: Sequence[Step]) -> tuple[ObservedCall, ...]:
    """Run every step against one catalog, with the recorder between it and its server."""
    calls = []
    requests.drain()
    for step in steps:
        response = driver.ask(step.request(catalog))
        calls.append(observe_call(requests, step, step.shown, response))
    return tuple(calls)


def token(server: Secured) -> str:
    """A token of the administrator."""
    form = {"grant_type": "client_credentials", "client_id": "administrator"}
    with server.http() as http:
        response = http.post("/oauth/token", data={**form, "client_secret": server.keys["administrator"]})
    text: str = response.raise_for_status().json()["access_token"]
    return text


@cache
def observe() -> list[ServerObservations]:
    """Run every step, against an open server, one whose tables are not managed, and one with authentication."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        managed = stack.enter_context(open_server(folder / "managed"))
        unmanaged = stack.enter_context(open_server(folder / "unmanaged", TILTYARD_MANAGED_VERSIONING="false"))
        secured = stack.enter_context(lake(folder))
        urls = {"managed": managed.url, "unmanaged": unmanaged.url, "lake": secured.url, "token": secured.url}
        recorders = {name: stack.enter_context(Recorder(url)) for name, url in urls.items()}
        headers = {
            "lake": {"header.x-api-key": secured.keys["administrator"]},
            "token": {"header.authorization": f"Bearer {token(secured)}"},
        }
        catalogs = [catalog(name, recorder.url, headers.get(name, {})) for name, recorder in recorders.items()]
        with session({name: value for each in catalogs for name, value in each.items()}, folder / "log") as spark:
            return [
                ServerObservations(title, run(spark, recorders[name], name, steps)) for name, title, steps in STORIES
            ]


if __name__ == "__main__":
    run_alone(__doc__, {"lance-spark": observe})
