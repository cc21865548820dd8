"""The backend that a test of the suite runs over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mounts.backends import Backend, local_directory, new_name, object_store_directory
from tests.services.s3 import S3Server, s3_server
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

EXTENDED = ("dir-s3",)
BACKENDS = (
    "dir-both",
    "dir-manifest",
    "dir-listing",
    *(pytest.param(name, marks=pytest.mark.extended) for name in EXTENDED),
)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=(*LOCAL, *EXTENDED))
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """A catalog; those with a server share it with the other tests of the file."""
    match request.param:
        case "dir-s3":
            return object_store_directory(request.getfixturevalue("s3"))
        case local:
            return local_directory(tmp_path_factory.mktemp("root"), local.removeprefix("dir-"))


@pytest.fixture
def catalog(backend: Backend) -> Iterator[MountedCatalog]:
    """A client of the backend."""
    catalog = backend.open()
    yield catalog
    catalog.close()


@pytest.fixture
def namespace(backend: Backend, catalog: MountedCatalog) -> Id:
    """A namespace for tables; the root, where the backend has none."""
    if catalog.levels == 0:
        return Id()
    namespace = Id((new_name("ns"),))
    catalog.create_namespace(namespace, {})
    return namespace
