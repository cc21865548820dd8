"""A mounted Lance server's errors, ids, pages and credentials, as the specification has them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ThrottlingError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from tests.services.ports import reserve_port
from tests.services.secured import secured_server
from tests.services.server import ServerProcess
from tests.services.stub_catalog import Answer, StubRequest, stub_catalog
from tests.services.wire import Wire, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog
from tiltyard.mounts.backends.lance_rest import LanceRestCatalog, LanceRestSettings
from tiltyard.mounts.catalog_errors import MalformedAnswerError


def mounted(url: str, **settings: Any) -> LanceRestCatalog:
    return LanceRestCatalog(LanceRestSettings(**{"uri": url, "timeout": 5, "connect_timeout": 1, **settings}))


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (406, 0, UnsupportedOperationError),
        (404, 1, NamespaceNotFoundError),
        (400, 13, InvalidInputError),
        (409, 14, ConcurrentModificationError),
        (403, 15, PermissionDeniedError),
        (401, 16, UnauthenticatedError),
        (503, 17, ServiceUnavailableError),
        (500, 18, InternalError),
        (409, 19, InvalidTableStateError),
        (429, 21, ThrottlingError),
        (500, 99, InternalError),
        (503, None, ServiceUnavailableError),
        (429, None, ThrottlingError),
    ],
)
def test_an_error_has_the_code_of_the_response_else_that_of_its_status(
    status: int, code: int | None, error: type[LanceNamespaceError]
) -> None:
    content = b"<html>gone</html>" if code is None else {"code": code, "error": "a reason", "detail": "internals"}
    with stub_catalog(lambda _: (status, content)) as stub:
        catalog = mounted(stub.url)
        for call in (catalog.get_namespace, catalog.list_tables, catalog.list_namespaces, catalog.drop_namespace):
            with pytest.raises(error) as caught:
                call(Id(("ns",)))
            assert type(caught.value) is error
            assert "internals" not in str(caught.value)
        catalog.close()


def test_ids_are_one_segment_with_the_mounts_delimiter_encoded_once() -> None:
    with stub_catalog(lambda _: (200, {"location": "file:///data/t"})) as stub:
        table = mounted(stub.url, delimiter="::").get_table(Id(("a b", "ü+", "t")))
    assert table.location == "/data/t"
    assert stub.requests[0].path == "/v1/table/a%20b%3A%3A%C3%BC%2B%3A%3At/describe?delimiter=%3A%3A"


def test_headers_and_tokens_are_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOUNTS_TEST_TOKEN", "hunter2")
    secrets: dict[str, object] = {
        "token": "env:MOUNTS_TEST_TOKEN",
        "secret_headers": {"x-api-key": "env:MOUNTS_TEST_TOKEN"},
    }
    with stub_catalog(lambda _: (401, {"code": 16, "error": "hunter2?"})) as stub:
        catalog = open_catalog("lance", {"uri": stub.url, "headers": {"x-role": "reader"}, **secrets})
        with pytest.raises(UnauthenticatedError) as caught:
            catalog.get_namespace(Id(("ns",)))
    assert "hunter2" not in str(caught.value)
    assert len(stub.requests) == 1
    headers = stub.requests[0].headers
    assert (headers["authorization"], headers["x-api-key"], headers["x-role"]) == (
        "Bearer hunter2",
        "hunter2",
        "reader",
    )
    assert "hunter2" not in repr(LanceRestSettings(uri=stub.url, token="hunter2", secret_headers={"a": "hunter2"}))


def test_vended_credentials_are_the_storage_options_with_their_expiry() -> None:
    options = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "hunter2", "expires_at_millis": "17"}

    def answer(request: StubRequest) -> Answer:
        described = {"location": "s3://bucket/t"}
        return 200, {**described, "storage_options": options} if request.json.get("vend_credentials") else described

    with stub_catalog(answer) as stub:
        catalog = mounted(stub.url)
        credentials = catalog.vend_credentials(Id(("t",)), writable=False)
        assert catalog.get_table(Id(("t",))).location == "s3://bucket/t"
    assert credentials is not None
    assert credentials.options == {"aws_access_key_id": "AKIA", "aws_secret_access_key": "hunter2"}
    assert credentials.expires_at == 17
    assert "hunter" not in repr(credentials)


def test_a_server_without_pages_is_listed_in_pages_of_ours() -> None:
    with stub_catalog(lambda _: (200, {"tables": ["a", "ns$b", "c"]})) as stub:
        catalog = mounted(stub.url)
        first = catalog.list_tables(Id(("ns",)), 2)
        second = catalog.list_tables(Id(("ns",)), 2, first.next_token)
    assert (first.names, second.names, second.next_token) == (("a", "b"), ("c",), None)


def test_a_token_of_another_list_is_an_invalid_input() -> None:
    with stub_catalog(lambda _: (200, {"tables": []})) as stub, pytest.raises(InvalidInputError, match="token"):
        mounted(stub.url).list_tables(Id(), 2, "someone's")


def test_a_server_with_two_levels_is_asked_for_no_others() -> None:
    with stub_catalog(lambda _: (200, {})) as stub:
        catalog = mounted(stub.url, levels=2)
        deep = Id(("a", "b", "c"))
        assert catalog.levels == 2
        with pytest.raises(InvalidInputError, match="2 levels"):
            catalog.create_namespace(deep, {})
        with pytest.raises(InvalidInputError, match="2 levels"):
            catalog.declare_table(Id((*deep, "t")), None, {})
        for missing in (catalog.get_namespace, catalog.list_tables, catalog.list_namespaces):
            with pytest.raises(NamespaceNotFoundError):
                missing(deep)
        with pytest.raises(NamespaceNotFoundError):
            catalog.get_table(Id((*deep, "t")))
    assert stub.requests == []


def test_a_server_that_is_not_there_hangs_or_speaks_no_json_is_an_error_in_time() -> None:
    def hang(_: StubRequest) -> Answer:
        time.sleep(3)
        return 200, {}

    port, reserved = reserve_port()
    with reserved, stub_catalog(hang) as hanging, stub_catalog(lambda _: (200, b"hello")) as talking:
        for url, error in (
            (f"http://127.0.0.1:{port}", ServiceUnavailableError),
            (hanging.url, ServiceUnavailableError),
            (talking.url, MalformedAnswerError),
        ):
            started = time.monotonic()
            with pytest.raises(error):
                mounted(url, timeout=0.5).get_namespace(Id(("ns",)))
            assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"uri": "localhost"},
        {"uri": "http://user:hunter2@localhost"},
        {"token": "hunter2"},
        {"secret_headers": {"x-api-key": "hunter2"}},
        {"client_id": "mount"},
        {"levels": -1},
        {"delimiter": ""},
        {"oauth2_style": "else"},
        {"connections": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_settings_that_cannot_be_used_are_refused_without_their_secrets(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_catalog("lance", {"uri": "http://localhost", **wrong})
    assert "hunter2" not in str(caught.value)


def test_another_tiltyard_is_mounted_with_a_key_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with secured_server(tmp_path) as secured:

        def opened(name: str) -> MountedCatalog:
            monkeypatch.setenv("MOUNTS_TEST_KEY", secured.keys.get(name, "tilt_unknown"))
            return open_catalog("lance", {"uri": secured.url, "secret_headers": {"x-api-key": "env:MOUNTS_TEST_KEY"}})

        administrator, ann, stranger = opened("administrator"), opened("ann"), opened("nobody")
        administrator.create_namespace(Id(("ns",)), {"a": "b"})
        table = administrator.declare_table(Id(("ns", "t")), None, {})
        with pytest.raises(PermissionDeniedError):
            ann.create_namespace(Id(("other",)), {})
        for call in (ann.get_table, ann.deregister_table):
            with pytest.raises((NamespaceNotFoundError, PermissionDeniedError)):
                call(table.id)
        with pytest.raises(UnauthenticatedError):
            stranger.list_namespaces(Id())
        assert administrator.get_table(table.id) == table
        for catalog in (administrator, ann, stranger):
            catalog.close()


@pytest.mark.extended
def test_commits_of_another_tiltyard_and_into_the_folder_lose_nothing(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    catalog = open_catalog("lance", {"uri": server.url})
    table = catalog.declare_table(Id(("t",)), None, {})
    lance.write_dataset(pa.table({"x": [0]}), table.location, mode="overwrite")

    def append(number: int) -> None:
        rows = pa.table({"x": [number]})
        if number % 2:
            lance.write_dataset(rows, table.location, mode="append")
        else:
            with Wire(server.url) as wire:
                body, headers = stream(rows), {"content-type": "application/vnd.apache.arrow.stream"}
                assert wire.http.post("/v1/table/t/insert", content=body, headers=headers).status_code == 200

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(append, range(1, 61)))
    assert sorted(lance.dataset(table.location).to_table()["x"].to_pylist()) == list(range(61))
    catalog.close()
    server.stop()
