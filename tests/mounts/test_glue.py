"""Glue's errors, its pages, and its versions of entries."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ThrottlingError,
    UnauthenticatedError,
)

from tests.mounts.backends import Backend, glue_backend, new_name
from tests.services.ports import reserve_port
from tests.services.s3 import S3Server
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog
from tiltyard.mounts.glue import GlueCatalog, GlueSettings
from tiltyard.mounts.mount_settings import parse_settings


@contextmanager
def glue_that_answers(status: int, body: dict[str, Any], seconds: float = 0) -> Iterator[str]:
    """Run a server that gives every request one answer, after a time."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            time.sleep(seconds)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/x-amz-json-1.1")
            self.send_header("content-length", str(len(content)))
            with suppress(OSError):  # the client has given up
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def mounted(endpoint: str, timeout: float = 5) -> MountedCatalog:
    settings = GlueSettings(
        region="us-east-1",
        endpoint=endpoint,
        access_key_id="x",
        secret_access_key="y",
        timeout=timeout,
        connect_timeout=1,
    )
    return GlueCatalog(settings)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "ThrottlingException", ThrottlingError),
        (400, "AccessDeniedException", PermissionDeniedError),
        (400, "ExpiredTokenException", UnauthenticatedError),
        (400, "ConcurrentModificationException", ConcurrentModificationError),
        (400, "InvalidInputException", InvalidInputError),
        (400, "OperationTimeoutException", ServiceUnavailableError),
        (500, "InternalServiceException", ServiceUnavailableError),
        (400, "SomethingNewException", InternalError),
    ],
)
def test_an_error_of_glue_has_the_code_of_the_specification(
    status: int, code: str, error: type[LanceNamespaceError]
) -> None:
    with glue_that_answers(status, {"__type": code, "message": "internals"}) as endpoint:
        catalog = mounted(endpoint)
        with pytest.raises(error) as caught:
            catalog.list_tables(Id(("db",)))
        assert type(caught.value) is error
        assert "internals" not in str(caught.value)
        catalog.close()


def test_pages_that_repeat_are_an_error_and_no_endless_loop() -> None:
    page = {"TableList": [{"Name": "other"}], "NextToken": "again"}
    with glue_that_answers(200, page) as endpoint, pytest.raises(InternalError, match="repeats"):
        mounted(endpoint).list_tables(Id(("db",)))


def test_glue_that_is_not_there_or_hangs_is_unavailable_in_time() -> None:
    port, reserved = reserve_port()
    with reserved, glue_that_answers(200, {}, seconds=30) as hanging:
        for endpoint in (f"http://127.0.0.1:{port}", hanging):
            started = time.monotonic()
            with pytest.raises(ServiceUnavailableError):
                mounted(endpoint, timeout=0.5).list_tables(Id(("db",)))
            assert time.monotonic() - started < 15


def test_keys_are_references_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOUNTS_TEST_KEY", "hunter2")
    references = {"access_key_id": "env:MOUNTS_TEST_KEY", "secret_access_key": "env:MOUNTS_TEST_KEY"}
    settings = parse_settings(GlueSettings, {"region": "us-east-1", **references})
    assert settings.secret_access_key == "hunter2"
    assert "hunter2" not in repr(settings)
    for wrong in ({"access_key_id": "hunter2"}, {"access_key_id": "env:MOUNTS_TEST_KEY"}, {"profile": "no such"}):
        with pytest.raises(InvalidInputError) as caught:
            open_catalog("glue", {"region": "us-east-1", **wrong})
        assert "hunter2" not in str(caught.value)


@pytest.fixture
def glue(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Backend:
    return glue_backend(s3, monkeypatch)


@pytest.mark.extended
def test_pages_are_full_however_many_tables_of_other_formats_lie_between(glue: Backend) -> None:
    catalog, namespace = glue.open(), Id((new_name("db"),))
    catalog.create_namespace(namespace, {})
    assert glue.add_other_table is not None
    for number in range(12):
        table = Id((*namespace, f"t{number:02}"))
        if number % 4:
            glue.add_other_table(table)
        else:
            catalog.declare_table(table, None, {})
    page = catalog.list_tables(namespace, 2)
    assert page.names == ("t00", "t04")
    assert catalog.list_tables(namespace, 2, page.next_token).names == ("t08",)
    assert catalog.list_tables(namespace).names == ("t00", "t04", "t08")


@pytest.mark.extended
def test_a_change_that_came_between_is_a_conflict_and_not_lost(glue: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other, table = glue.open(), glue.open(), Id((new_name("db"), "t"))
    catalog.create_namespace(table.parent, {})
    catalog.declare_table(table, None, {})
    read = GlueCatalog._get_entry

    def read_and_lose_the_race(self: GlueCatalog, read_table: Id) -> dict[str, Any]:
        entry = read(self, read_table)
        if self is catalog:
            monkeypatch.setattr(GlueCatalog, "_get_entry", read)
            other.update_table_properties(table, {"theirs": "1"})
        return entry

    monkeypatch.setattr(GlueCatalog, "_get_entry", read_and_lose_the_race)
    with pytest.raises(ConcurrentModificationError):
        catalog.update_table_properties(table, {"ours": "1"})
    assert catalog.get_table(table).properties == {"theirs": "1"}
