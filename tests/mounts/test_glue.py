"""Glue's errors, its pages, and its versions of entries."""

from __future__ import annotations

import time
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
from tests.services.stub_catalog import Answer, StubCatalog, StubRequest, stub_catalog
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog
from tiltyard.mounts.backends.glue import GlueCatalog, GlueSettings
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.mounts.mount_settings import parse_settings


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
    with stub_catalog(lambda _: (status, {"__type": code, "message": "internals"})) as stub:
        catalog = mounted(stub.url)
        with pytest.raises(error) as caught:
            catalog.list_tables(Id(("db",)))
        assert type(caught.value) is error
        assert "internals" not in str(caught.value)
        catalog.close()


def test_pages_that_repeat_are_an_error_and_no_endless_loop() -> None:
    page = {"TableList": [{"Name": "other"}], "NextToken": "again"}
    with stub_catalog(lambda _: (200, page)) as stub, pytest.raises(MalformedAnswerError, match="repeats"):
        mounted(stub.url).list_tables(Id(("db",)))


def test_glue_that_is_not_there_or_hangs_is_unavailable_in_time() -> None:
    def hang(_: StubRequest) -> Answer:
        time.sleep(30)
        return 200, {}

    port, reserved = reserve_port()
    with reserved, stub_catalog(hang) as hanging:
        for endpoint in (f"http://127.0.0.1:{port}", hanging.url):
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


def with_lake_formation(glue: StubCatalog, vending: StubCatalog) -> MountedCatalog:
    return GlueCatalog(
        GlueSettings(
            region="eu-north-1",
            endpoint=glue.url,
            lake_formation=True,
            lake_formation_endpoint=vending.url,
            access_key_id="x",
            secret_access_key="y",
        )
    )


@pytest.mark.parametrize("writable", [False, True])
def test_lake_formation_vends_what_a_table_needs(writable: bool) -> None:  # a parameter
    keys = {"AccessKeyId": "ASIA", "SecretAccessKey": "hunter2", "SessionToken": "hunter3", "Expiration": 17.5}
    table = {"Name": "t", "CatalogId": "1234", "Parameters": {"table_type": "LANCE"}}
    with stub_catalog(lambda _: (200, keys)) as vending, stub_catalog(lambda _: (200, {"Table": table})) as glue:
        credentials = with_lake_formation(glue, vending).vend_credentials(Id(("db", "t")), writable=writable)
    assert credentials is not None
    assert credentials.options == {
        "aws_access_key_id": "ASIA", "aws_secret_access_key": "hunter2", "aws_session_token": "hunter3",
        "aws_region": "eu-north-1",
    }  # fmt: skip
    assert credentials.expires_at == 17500
    assert "hunter" not in repr(credentials)
    assert vending.requests[0].path == "/GetTemporaryGlueTableCredentials"
    assert vending.requests[0].json == {
        "TableArn": "arn:aws:glue:eu-north-1:1234:table/db/t",
        "Permissions": ["SELECT", "INSERT", "DELETE"] if writable else ["SELECT"],
        "SupportedPermissionTypes": ["COLUMN_PERMISSION"],
    }


def test_a_table_that_lake_formation_refuses_is_forbidden() -> None:
    refusal = {"__type": "AccessDeniedException", "Message": "internals"}
    table = {"Name": "t", "CatalogId": "1234", "Parameters": {"table_type": "lance"}}
    with stub_catalog(lambda _: (400, refusal)) as vending, stub_catalog(lambda _: (200, {"Table": table})) as glue:
        catalog = with_lake_formation(glue, vending)
        with pytest.raises(PermissionDeniedError) as caught:
            catalog.vend_credentials(Id(("db", "t")), writable=False)
    assert "internals" not in str(caught.value)


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
