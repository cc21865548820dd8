"""What is Unity Catalog's own: its errors, names in another case, tables that are not external, vended credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from tests.services.stub_catalog import stub_catalog
from tests.services.unity import API, TOKEN, Unity, unity_stub
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.mounts.backends.unity import UnityCatalog, UnitySettings

SCHEMA, TABLE = Id(("main", "films")), Id(("main", "films", "t"))
LOCATION = "s3://bucket/t"


@pytest.fixture
def unity() -> Iterator[Unity]:
    with unity_stub() as stub:
        yield stub


@pytest.fixture
def catalog(unity: Unity) -> UnityCatalog:
    assert unity.catalog is not None
    catalog = UnityCatalog(UnitySettings(uri=unity.catalog.url, token=TOKEN))
    catalog.create_namespace(Id(("main",)), {})
    catalog.create_namespace(SCHEMA, {"owner": "ada"})
    return catalog


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "INVALID_ARGUMENT", InvalidInputError),
        (400, "INVALID_PARAMETER_VALUE", InvalidInputError),
        (401, "UNAUTHENTICATED", UnauthenticatedError),
        (403, "PERMISSION_DENIED", PermissionDeniedError),
        (404, "SCHEMA_DOES_NOT_EXIST", NamespaceNotFoundError),
        (429, "RESOURCE_EXHAUSTED", ThrottlingError),
        (500, "INTERNAL", InternalError),
        (501, "UNIMPLEMENTED", UnsupportedOperationError),
    ],
)
def test_an_error_has_the_code_of_the_specification(status: int, code: str, error: type[LanceNamespaceError]) -> None:
    with stub_catalog(lambda _: (status, {"error_code": code, "message": "internals"})) as stub:
        catalog = UnityCatalog(UnitySettings(uri=stub.url, token=TOKEN))
        for call in (catalog.get_namespace, catalog.list_tables, catalog.drop_namespace):
            with pytest.raises(error) as caught:
                call(SCHEMA)
            assert type(caught.value) is error
            assert "internals" not in str(caught.value)


def test_a_table_is_written_as_an_external_one(unity: Unity, catalog: UnityCatalog) -> None:
    table = catalog.declare_table(TABLE, LOCATION, {"team": "search"})
    assert (table.location, table.properties, table.stable_id) == (LOCATION, {"team": "search"}, "id-0")
    entry = unity.tables["main.films.t"]
    assert entry["table_type"] == "EXTERNAL"
    assert entry["properties"] == {"team": "search", "table_type": "lance", "managed_by": "storage"}
    assert unity.catalog is not None
    assert unity.catalog.requests[0].path.startswith(API)


def test_a_table_without_a_location_needs_a_root(catalog: UnityCatalog) -> None:
    with pytest.raises(InvalidInputError, match="root"):
        catalog.declare_table(TABLE, None, {})


def test_a_name_that_is_found_in_another_case_is_not_there(unity: Unity, catalog: UnityCatalog) -> None:
    catalog.declare_table(TABLE, LOCATION, {})
    unity.tables["main.films.T"] = unity.tables["main.films.t"]
    unity.namespaces["main.Films"] = unity.namespaces["main.films"]
    with pytest.raises(TableNotFoundError):
        catalog.get_table(Id((*SCHEMA, "T")))
    with pytest.raises(NamespaceNotFoundError):
        catalog.get_namespace(Id(("main", "Films")))


def test_a_table_that_is_not_external_is_not_deregistered(unity: Unity, catalog: UnityCatalog) -> None:
    catalog.declare_table(TABLE, LOCATION, {})
    unity.tables["main.films.t"]["table_type"] = "MANAGED"
    with pytest.raises(UnsupportedOperationError, match="lose its files"):
        catalog.deregister_table(TABLE)
    assert "main.films.t" in unity.tables


@pytest.mark.parametrize(
    ("location", "vended", "options"),
    [
        (
            LOCATION,
            {"aws_temp_credentials": {"access_key_id": "A", "secret_access_key": "hunter2", "session_token": "T"}},
            {"aws_access_key_id": "A", "aws_secret_access_key": "hunter2", "aws_session_token": "T"},
        ),
        (
            "abfss://c@account.dfs.core.windows.net/t",
            {"azure_user_delegation_sas": {"sas_token": "?hunter2"}},
            {"azure_storage_account_name": "account", "azure_storage_sas_token": "hunter2"},
        ),
        ("gs://bucket/t", {"gcp_oauth_token": {"oauth_token": "hunter2"}}, {"google_storage_token": "hunter2"}),
    ],
    ids=["aws", "azure", "google"],
)
def test_vended_credentials_are_lances_options(
    unity: Unity, catalog: UnityCatalog, location: str, vended: dict[str, object], options: dict[str, str]
) -> None:
    catalog.declare_table(TABLE, location, {})
    unity.vended = {**vended, "expiration_time": 17}
    credentials = catalog.vend_credentials(TABLE, writable=False)
    assert credentials is not None
    assert (credentials.options, credentials.expires_at) == (options, 17)
    assert "hunter2" not in repr(credentials)
    catalog.vend_credentials(TABLE, writable=True)
    assert unity.operations == ["READ", "READ_WRITE"]


def test_a_storage_without_credentials_has_none(unity: Unity, catalog: UnityCatalog) -> None:
    catalog.declare_table(TABLE, LOCATION, {})
    assert catalog.vend_credentials(TABLE, writable=False) is None
    unity.tables["main.films.t"]["table_id"] = "forgotten"
    unity.tables["main.films.u"] = {**unity.tables["main.films.t"], "table_id": "another"}
    assert catalog.vend_credentials(TABLE, writable=False) is None


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOUNTS_TEST_SECRET", "hunter2")
    client = {"client_id": "mount", "client_secret": "env:MOUNTS_TEST_SECRET"}
    with pytest.raises(InvalidInputError, match="oauth2_uri"):
        open_catalog("unity", {"uri": "http://localhost", **client})
    open_catalog("unity", {"uri": "http://localhost", **client, "oauth2_uri": "http://localhost/token"}).close()
