"""What is Polaris's own: tokens that expire, formats of generic tables, vended credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    ServiceUnavailableError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from tests.services.polaris import CATALOG, CLIENT, CLIENT_SECRET, Polaris, polaris_stub
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.mounts.backends.polaris import PolarisCatalog, PolarisSettings

NAMESPACE = Id(("ns", "inner one"))
ROOT = "s3://bucket/lake"


@pytest.fixture
def polaris() -> Iterator[Polaris]:
    with polaris_stub(ROOT) as stub:
        yield stub


def mounted(polaris: Polaris, **more: Any) -> PolarisCatalog:
    assert polaris.catalog is not None
    values = {"client_id": CLIENT, "client_secret": CLIENT_SECRET, "catalog": CATALOG, **more}
    return PolarisCatalog(PolarisSettings(uri=polaris.catalog.url, **values))


@pytest.fixture
def catalog(polaris: Polaris) -> PolarisCatalog:
    catalog = mounted(polaris)
    for depth in (1, 2):
        catalog.create_namespace(Id(NAMESPACE[:depth]), {})
    return catalog


def test_a_table_is_written_as_a_generic_one_below_its_namespaces_location(
    polaris: Polaris, catalog: PolarisCatalog
) -> None:
    table = catalog.declare_table(Id((*NAMESPACE, "t")), None, {"team": "search"})
    assert re.fullmatch(rf"{re.escape(ROOT)}/ns/inner one/t-[0-9a-f]{{32}}\.lance", table.location)
    assert polaris.tables[tuple(NAMESPACE), "t"] == {
        "name": "t", "format": "lance", "base-location": table.location, "doc": None,
        "properties": {"team": "search", "table_type": "lance", "managed_by": "storage"},
    }  # fmt: skip


def test_a_mount_with_a_root_puts_tables_there(polaris: Polaris, catalog: PolarisCatalog) -> None:
    with_root = mounted(polaris, root="s3://elsewhere/x")
    placed = with_root.declare_table(Id((*NAMESPACE, "t")), None, {}).location
    assert placed.startswith("s3://elsewhere/x/ns/inner one/t-")
    polaris.namespaces[tuple(NAMESPACE)].pop("location")
    with pytest.raises(UnsupportedOperationError, match="location"):
        catalog.declare_table(Id((*NAMESPACE, "u")), None, {})


def test_an_expired_token_is_renewed_at_its_rejection(polaris: Polaris, catalog: PolarisCatalog) -> None:
    polaris.tokens.clear()
    assert catalog.list_namespaces(Id()).names == ("ns",)
    assert len(polaris.tokens) == 1


def test_a_client_that_is_not_known_is_unauthenticated(polaris: Polaris) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        mounted(polaris, client_secret="hunter2").get_namespace(NAMESPACE)
    assert "hunter2" not in str(caught.value)


def test_a_catalog_that_is_not_there_is_unavailable(polaris: Polaris) -> None:
    with pytest.raises(ServiceUnavailableError, match="check the mount"):
        mounted(polaris, catalog="another").list_namespaces(Id())


def test_a_list_loads_each_table_once_for_as_long_as_formats_are_remembered(
    polaris: Polaris, catalog: PolarisCatalog
) -> None:
    assert polaris.catalog is not None
    for number in range(4):
        polaris.add_other(tuple(NAMESPACE), f"other{number}")
        catalog.declare_table(Id((*NAMESPACE, f"t{number}")), None, {})
    other = mounted(polaris)
    other.get_namespace(NAMESPACE)
    for client, loads in ((other, 8), (other, 0), (mounted(polaris, formats_age=0), 8), (catalog, 4)):
        client.get_namespace(Id())
        before = len([request for request in polaris.catalog.requests if "generic-tables/" in request.path])
        assert client.list_tables(NAMESPACE).names == ("t0", "t1", "t2", "t3")
        after = len([request for request in polaris.catalog.requests if "generic-tables/" in request.path])
        assert after - before == loads


def test_vended_credentials_are_those_of_the_longest_prefix(polaris: Polaris, catalog: PolarisCatalog) -> None:
    table = catalog.declare_table(Id((*NAMESPACE, "t")), None, {}).id
    assert catalog.vend_credentials(table, writable=False) is None
    keys = {"s3.access-key-id": "AKIA", "s3.secret-access-key": "hunter2", "s3.session-token": "hunter3"}
    polaris.vended = [
        {"prefix": "s3://bucket", "config": {"s3.access-key-id": "WRONG"}},
        {"prefix": f"{ROOT}/ns", "config": {**keys, "s3.session-token-expires-at-ms": "17"}},
        {"prefix": "s3://bucket/lake/ns2/and/more", "config": {"s3.access-key-id": "WRONG"}},
    ]
    credentials = catalog.vend_credentials(table, writable=True)
    assert credentials is not None
    assert credentials.options == {
        "aws_access_key_id": "AKIA", "aws_secret_access_key": "hunter2", "aws_session_token": "hunter3",
    }  # fmt: skip
    assert credentials.expires_at == 17


def test_a_server_that_vends_nothing_for_generic_tables_has_no_credentials(
    polaris: Polaris, catalog: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.declare_table(Id((*NAMESPACE, "t")), None, {}).id
    assert polaris.catalog is not None
    answer = polaris.catalog.answer
    polaris.catalog.answer = lambda request: (
        (400, {"error": {"type": "BadRequestException"}})
        if "polaris-generic-table-access-delegation" in request.headers
        else answer(request)
    )
    assert catalog.vend_credentials(table, writable=False) is None


def test_settings_are_checked() -> None:
    for wrong in ({"catalog": ""}, {"catalog": "c", "formats_age": -1}, {"catalog": "c", "client_id": "x"}, {}):
        with pytest.raises(InvalidInputError):
            open_catalog("polaris", {"uri": "http://localhost", **wrong})
