"""An Iceberg REST catalog's errors, prefixes, pages and credentials, as its specification has them."""

from __future__ import annotations

import time

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ThrottlingError,
    UnauthenticatedError,
)

from tests.services.ports import reserve_port
from tests.services.stub_catalog import Answer, StubRequest, stub_catalog
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.mounts.backends.iceberg import IcebergCatalog, IcebergSettings
from tiltyard.mounts.catalog_errors import MalformedAnswerError


def mounted(url: str, timeout: float = 5) -> IcebergCatalog:
    return IcebergCatalog(
        IcebergSettings(uri=url, warehouse="lake", token="secret-token", timeout=timeout, connect_timeout=1)
    )


def entry(**more: object) -> dict[str, object]:
    metadata = {"location": "s3a://bucket/ns/t/", "table-uuid": "u-1", "properties": {"table_type": "lance", "a": "b"}}
    return {"metadata": metadata, "metadata-location": "m-1", **more}


@pytest.mark.parametrize(
    ("status", "exception", "error"),
    [
        (400, "BadRequestException", InvalidInputError),
        (401, "NotAuthorizedException", UnauthenticatedError),
        (403, "ForbiddenException", PermissionDeniedError),
        (404, "NoSuchNamespaceException", NamespaceNotFoundError),
        (419, "AuthenticationTimeoutException", UnauthenticatedError),
        (429, "TooManyRequestsException", ThrottlingError),
        (500, "ServerException", InternalError),
        (503, "ServiceUnavailableException", ServiceUnavailableError),
    ],
)
def test_an_error_of_the_catalog_has_the_code_of_the_specification(
    status: int, exception: str, error: type[LanceNamespaceError]
) -> None:
    def answer(request: StubRequest) -> Answer:
        return (
            (200, {}) if "config" in request.path else (status, {"error": {"type": exception, "message": "internals"}})
        )

    with stub_catalog(answer) as stub:
        catalog = mounted(stub.url)
        for call in (catalog.get_namespace, catalog.list_tables, catalog.list_namespaces, catalog.drop_namespace):
            with pytest.raises(error) as caught:
                call(Id(("ns",)))
            assert type(caught.value) is error
            assert "internals" not in str(caught.value)
        catalog.close()


@pytest.mark.parametrize(
    ("exception", "error"),
    [("NamespaceNotEmptyException", NamespaceNotEmptyError), ("CommitFailedException", ConcurrentModificationError)],
)
def test_a_conflict_is_told_from_another_by_its_type(exception: str, error: type[LanceNamespaceError]) -> None:
    def answer(request: StubRequest) -> Answer:
        return (409, {"error": {"type": exception}}) if request.method == "DELETE" else (200, {})

    with stub_catalog(answer) as stub, pytest.raises(error):
        mounted(stub.url).drop_namespace(Id(("ns",)))


def test_requests_have_the_prefix_as_it_is_the_token_and_names_encoded_once() -> None:
    def answer(request: StubRequest) -> Answer:
        config = {"defaults": {"prefix": "wrong"}, "overrides": {"prefix": "main%7Clake"}}
        return 200, config if "config" in request.path else entry()

    with stub_catalog(answer) as stub:
        table = mounted(stub.url).get_table(Id(("a b", "ü", "t")))
    assert (table.location, table.stable_id) == ("s3://bucket/ns/t", "u-1")
    assert table.properties == {"a": "b"}
    paths = [request.path for request in stub.requests]
    assert paths == ["/v1/config?warehouse=lake", "/v1/main%7Clake/namespaces/a%20b%1F%C3%BC/tables/t"]
    assert all(request.headers["authorization"] == "Bearer secret-token" for request in stub.requests)


def test_a_configuration_that_fails_is_asked_for_again() -> None:
    answers = [(500, {}), (404, {}), (200, {})]

    def answer(request: StubRequest) -> Answer:
        return answers.pop(0) if "config" in request.path else (200, {"properties": {"a": "b"}})

    with stub_catalog(answer) as stub:
        catalog = mounted(stub.url)
        for error in (InternalError, ServiceUnavailableError):
            with pytest.raises(error):
                catalog.get_namespace(Id(("ns",)))
        assert catalog.get_namespace(Id(("ns",))) == {"a": "b"}


@pytest.mark.parametrize("has_pages", [True, False])
def test_pages_are_whole_whether_the_catalog_has_pages_or_not(has_pages: bool) -> None:  # a parameter
    names = [f"n{number}" for number in range(7)]

    def answer(request: StubRequest) -> Answer:
        if "config" in request.path:
            return 200, {}
        if not has_pages:
            return 200, {"namespaces": [[name] for name in names]}
        start = int(request.path.partition("pageToken=")[2] or 0)
        rest = {"next-page-token": str(start + 3)} if start + 3 < len(names) else {}
        return 200, {"namespaces": [[name] for name in names[start : start + 3]], **rest}

    with stub_catalog(answer) as stub:
        catalog = mounted(stub.url)
        listed: list[str] = []
        token = None
        while True:
            page = catalog.list_namespaces(Id(), 2, token)
            assert len(page.names) <= 2
            listed += page.names
            token = page.next_token
            if token is None:
                break
        assert listed == names


def test_pages_that_repeat_are_an_error_and_no_endless_loop() -> None:
    def answer(request: StubRequest) -> Answer:
        return 200, {} if "config" in request.path else {"namespaces": [], "next-page-token": "again"}

    with stub_catalog(answer) as stub, pytest.raises(MalformedAnswerError, match="repeats"):
        mounted(stub.url).list_namespaces(Id(), 2)


def test_vended_credentials_are_lances_options_and_not_shown() -> None:
    keys = {"s3.access-key-id": "AKIA", "s3.secret-access-key": "hunter2", "s3.session-token": "hunter3"}
    vended = {
        "config": {"client.region": "eu-1", "other": "x"},
        "storage-credentials": [
            {"prefix": "s3a://bucket/ns/t", "config": {**keys, "s3.session-token-expires-at-ms": "17"}},
            {"prefix": "s3a://elsewhere", "config": {"s3.access-key-id": "WRONG"}},
        ],
    }

    def answer(request: StubRequest) -> Answer:
        return 200, {} if "config" in request.path else entry(**vended)

    with stub_catalog(answer) as stub:
        credentials = mounted(stub.url).vend_credentials(Id(("ns", "t")), writable=False)
    assert credentials is not None
    assert credentials.options == {
        "aws_region": "eu-1", "aws_access_key_id": "AKIA", "aws_secret_access_key": "hunter2",
        "aws_session_token": "hunter3",
    }  # fmt: skip
    assert credentials.expires_at == 17
    assert "hunter" not in repr(credentials)
    assert stub.requests[-1].headers["x-iceberg-access-delegation"] == "vended-credentials"


def test_a_catalog_that_is_not_there_hangs_or_speaks_no_json_is_an_error_in_time() -> None:
    def hang(request: StubRequest) -> Answer:
        time.sleep(0 if "config" in request.path else 3)
        return 200, {}

    port, reserved = reserve_port()
    with reserved, stub_catalog(hang) as hanging:
        for url in (f"http://127.0.0.1:{port}", hanging.url):
            started = time.monotonic()
            with pytest.raises(ServiceUnavailableError):
                mounted(url, timeout=0.5).get_namespace(Id(("ns",)))
            assert time.monotonic() - started < 3


def test_settings_are_checked_and_the_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOUNTS_TEST_TOKEN", "hunter2")
    open_catalog("iceberg", {"uri": "http://localhost", "token": "env:MOUNTS_TEST_TOKEN"}).close()
    assert "hunter2" not in repr(IcebergSettings(uri="http://localhost", token="hunter2"))
    for wrong in ({"uri": "localhost"}, {"uri": "http://localhost", "token": "hunter2"}):
        with pytest.raises(InvalidInputError) as caught:
            open_catalog("iceberg", wrong)
        assert "hunter2" not in str(caught.value)
