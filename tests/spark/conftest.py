"""One Spark session for the whole run, and a server for the jobs to talk to."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.services.forked_process import forking_python
from tests.services.jvm import make_archive
from tests.services.server import ServerProcess
from tests.spark.example_jobs import install
from tiltyard.pipeline.catalog_client import CatalogConnection, connection
from tiltyard.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(__file__).resolve().parents[2]
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
}

"""Spark interprets its plans: to compile a class for each of a few rows' plans takes half of a test's time. Drivers of
servers, clusters and commands, which tests start, too, compile as they do for users."""

numbers = itertools.count(1)


@contextmanager
def start_session(master: str = "local[2]") -> Iterator[SparkSession]:
    """Start a session whose Python workers are forked, and can import the tests' own functions."""
    make_archive()
    paths = [str(HOME), str(HOME / "src"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch, forking_python() as python:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        patch.setenv("PYSPARK_PYTHON", str(python))
        session = spark_session(master, config=CONF)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start the session."""
    with start_session() as session:
        yield session


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server on SQLite and a local folder."""
    server = ServerProcess(tmp_path_factory.mktemp("served"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def catalog(shared_server: ServerProcess) -> CatalogConnection:
    """Return a connection to that server."""
    return connection(shared_server.url)


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Return a function that makes names which no other test uses."""
    return lambda stem: f"{stem}_{next(numbers)}"


@pytest.fixture(scope="session")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment variables of a process that has the example jobs installed, and whose Spark forks its workers."""
    make_archive()  # the commands start JVMs
    folder = tmp_path_factory.mktemp("installed")
    install(folder)
    paths = [str(HOME / "src"), str(HOME), str(folder), os.environ.get("PYTHONPATH", "")]
    with forking_python() as python:
        yield {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYSPARK_PYTHON": str(python),
        }
