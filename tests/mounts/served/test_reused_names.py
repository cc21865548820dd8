"""A name below a mount is free at once: dropped, deregistered and renamed tables keep their folders to themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.mounts.backends import Backend, new_name
from tests.mounts.served.conftest import environ
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream
from tiltyard.model.ids import Id


@pytest.fixture
def server(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerProcess]:
    """A server that mounts the backend, and keeps what is dropped for a week."""
    for name in ("aws_access_key_id", "aws_secret_access_key"):
        if name in backend.storage_options:
            monkeypatch.setenv(name.upper(), backend.storage_options[name])
    mounted = environ(backend, tmp_path_factory.getbasetemp())
    server = ServerProcess(tmp_path_factory.mktemp("served"), environ=mounted)
    yield server
    server.stop()


def rows(number: int) -> bytes:
    return stream(pa.table({"x": range(number)}))


def test_name_of_a_dropped_deregistered_or_renamed_table_is_taken_at_once(
    server: ServerProcess, home: Id, wire: Wire, backend: Backend
) -> None:
    for action in ("drop", "deregister", "rename"):
        table = Id((*home, new_name("again")))
        first = wire.call("table", table, "create", rows(3))
        assert first.status_code == 200, first.text
        body = {"new_table_name": new_name("moved"), "new_namespace_id": list(home)} if action == "rename" else {}
        done = wire.call("table", table, action, body)
        if action == "rename" and check_refused_rename(done):
            continue
        assert done.status_code == 200, (action, done.text)
        second = wire.call("table", table, "create", rows(5))
        if has_one_place(backend, home):
            assert check_error(second) in (5, 13), (action, second.text)
            assert "where another lies" in second.json()["error"] or "already" in second.json()["error"], second.text
            continue
        assert second.status_code == 200, (action, second.text)
        assert wire.call("table", table, "count_rows").json() == 5
        assert second.json()["location"] != first.json()["location"]
        if action == "rename":
            assert wire.call("table", [*home, body["new_table_name"]], "count_rows").json() == 3
        if action == "deregister":
            back = {"location": first.json()["location"]}
            if not backend.chooses_locations:
                registered = wire.call("table", [*home, new_name("back")], "register", back)
                assert registered.status_code == 200, registered.text


def check_refused_rename(response: object) -> bool:
    """Return whether a backend cannot rename."""
    return getattr(response, "status_code", 0) == 406


def has_one_place(backend: Backend, home: Id) -> bool:
    """Return whether a name has one folder alone: at the root of a directory that is listed."""
    return backend.kind == "dir" and len(home) == 1
