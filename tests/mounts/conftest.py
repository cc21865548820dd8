"""The backend that a test of the suite runs over."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from lance.namespace import RestAdapter

from tests.mounts.backends import (
    Backend,
    adapter_backend,
    glue_backend,
    hive_backend,
    iceberg_backend,
    lance_backend,
    local_directory,
    nessie_backend,
    new_name,
    new_namespace,
    object_store_directory,
    polaris_backend,
    unity_backend,
)
from tests.services.glue import GLUE_AS_DOCUMENTED
from tests.services.hive import HiveMetastore, hive_3_jars, hive_metastore
from tests.services.iceberg import fixture_class_path, iceberg_fixture
from tests.services.nessie import nessie_jar, nessie_server, newer_java
from tests.services.polaris import Polaris, polaris_stub
from tests.services.s3 import S3Server, s3_server
from tests.services.server import ServerProcess
from tests.services.unity import Unity, unity_stub
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

LOCAL = ("dir-both", "dir-manifest", "dir-listing")
SERVED = ("tiltyard", "rest-adapter", "polaris", "unity")
Fetched = TypeVar("Fetched")
EXTENDED = tuple(
    pytest.param(name, marks=pytest.mark.extended)
    for name in ("dir-s3", "hive", "hive-3", "hive-3-catalogs", "glue", "iceberg", "nessie")
)


def fetched(fetch: Callable[..., Fetched], *arguments: Path) -> Fetched:
    """Return what Maven fetches; skip the tests that need it where Maven is missing or reaches no repository."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not here, which brings this server")
    try:
        return fetch(*arguments)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Maven brings no jars of this server: {error}")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server(GLUE_AS_DOCUMENTED) as server:
        yield server


@pytest.fixture(scope="session")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as metastore:
        yield metastore


@pytest.fixture(scope="session")
def hive_3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    jars = fetched(hive_3_jars)
    with hive_metastore(tmp_path_factory.mktemp("hive"), jars) as metastore:
        yield metastore


@pytest.fixture(scope="session")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("iceberg")
    fetched(fixture_class_path, folder)
    with iceberg_fixture(folder) as url:
        yield url, folder


@pytest.fixture(scope="module")
def tiltyard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    root = tmp_path_factory.mktemp("tiltyard")
    server = ServerProcess(root)
    yield server.url, root
    server.stop()


@pytest.fixture(scope="module")
def rest_adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    root = tmp_path_factory.mktemp("adapter")
    with RestAdapter("dir", {"root": str(root)}, port=0) as adapter:
        yield f"http://127.0.0.1:{adapter.port}", root


@pytest.fixture(scope="session")
def nessie(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, S3Server, str]]:
    java = newer_java()
    if java is None:
        pytest.skip("there is no Java that is new enough for Nessie")
    fetched(nessie_jar)
    bucket = s3.new_bucket(new_name("nessie"))
    with nessie_server(tmp_path_factory.mktemp("nessie"), java, s3, f"{bucket}/w") as url:
        yield url, s3, bucket


@pytest.fixture(scope="module")
def polaris(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Polaris]:
    with polaris_stub(f"file://{tmp_path_factory.mktemp('polaris')}") as stub:
        yield stub


@pytest.fixture(scope="module")
def unity() -> Iterator[Unity]:
    with unity_stub() as stub:
        yield stub


def make_backend(request: pytest.FixtureRequest, root: Callable[[], Path]) -> Backend:
    """Return the catalog of this name; one with a server shares it with the other tests of the file."""
    fixture, environment = request.getfixturevalue, request.getfixturevalue("monkeypatch")
    makers: dict[str, Callable[[], Backend]] = {
        "tiltyard": lambda: lance_backend(*fixture("tiltyard")),
        "rest-adapter": lambda: adapter_backend(*fixture("rest_adapter")),
        "polaris": lambda: polaris_backend(fixture("polaris"), environment),
        "unity": lambda: unity_backend(fixture("unity"), root(), environment),
        "dir-s3": lambda: object_store_directory(fixture("s3")),
        "glue": lambda: glue_backend(fixture("s3"), environment),
        "iceberg": lambda: iceberg_backend(*fixture("iceberg")),
        "nessie": lambda: nessie_backend(*fixture("nessie")),
        "hive": lambda: hive_backend(fixture("hive")),
        "hive-3": lambda: hive_backend(fixture("hive_3")),
        "hive-3-catalogs": lambda: hive_backend(fixture("hive_3"), has_catalogs=True),
    }
    name: str = request.param
    if name in makers:
        return makers[name]()
    return local_directory(root(), name.removeprefix("dir-"))


@pytest.fixture(params=(*LOCAL, *SERVED, *EXTENDED))
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """A catalog."""
    return make_backend(request, lambda: tmp_path_factory.mktemp("root"))


@pytest.fixture
def catalog(backend: Backend) -> Iterator[MountedCatalog]:
    """A client of the backend."""
    catalog = backend.open()
    yield catalog
    catalog.close()


@pytest.fixture
def namespace(catalog: MountedCatalog) -> Id:
    """A namespace for tables; the root, where the backend has none."""
    return new_namespace(catalog)
