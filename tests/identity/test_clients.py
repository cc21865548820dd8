"""Authentication of the stock clients, each against a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import lance
import lance.namespace
import lance_namespace
import lance_namespace_urllib3_client as generated
import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import UnauthenticatedError
from lance_namespace_urllib3_client.api import NamespaceApi, TableApi
from lancedb.remote import ClientConfig
from lancedb.remote.oauth import OAuthConfig

from tests.services.openid import OpenIdProvider
from tests.services.secured import Secured

ROWS = pa.table({"n": [1, 2, 3]})
REQUEST = lance_namespace.ListNamespacesRequest(id=[])


def client(secured: Secured, **credentials: Any) -> generated.ApiClient:
    return generated.ApiClient(generated.Configuration(host=secured.url, **credentials))


def test_lancedb_sends_its_api_key(secured: Secured) -> None:
    db = lancedb.connect("db://x", api_key=secured.keys["administrator"], host_override=secured.url)
    table = db.create_table("by_lancedb", ROWS)
    table.add(ROWS)
    assert table.count_rows() == 6 and table.search().where("n > 2").to_arrow().num_rows == 2
    db.drop_table("by_lancedb")


def test_lancedb_sends_a_token_in_a_header_which_takes_precedence(secured: Secured, provider: OpenIdProvider) -> None:
    for token, fine in ((provider.token("ann"), True), ("none", False)):
        config = ClientConfig(extra_headers={"authorization": f"Bearer {token}"})
        key = "any" if fine else secured.keys["ann"]
        db = lancedb.connect("db://x", api_key=key, host_override=secured.url, client_config=config)
        if fine:
            assert db.table_names() == []
        else:
            with pytest.raises(Exception, match=r"401|not a token"):
                db.table_names()


async def _count_by_oidc(url: str, provider: OpenIdProvider, secret: str) -> int:
    oidc = OAuthConfig(provider.url, "machine", ["openid"], client_secret=secret)
    db = await lancedb.connect_async("db://x", host_override=url, oauth_config=oidc)
    table = await db.open_table("by_oidc")
    return int(await table.count_rows())


def test_lancedb_gets_its_token_from_a_provider_that_it_discovers(secured: Secured, provider: OpenIdProvider) -> None:
    provider.secrets["machine"] = "pass"
    admin = lancedb.connect("db://x", api_key=secured.keys["administrator"], host_override=secured.url)
    admin.create_table("by_oidc", ROWS)
    with pytest.raises(Exception, match=r"not found|404"):  # it is known, and has no grant
        asyncio.run(_count_by_oidc(secured.url, provider, "pass"))
    with secured.http("administrator") as http:
        grant = {"object_kind": "table", "id": ["by_oidc"], "grantee": "corp:machine", "privileges": ["read"]}
        assert http.post("/tiltyard/v1/grant/add", json=grant).status_code == 200
    assert asyncio.run(_count_by_oidc(secured.url, provider, "pass")) == 3
    assert set(provider.granted) == {"machine"}
    with pytest.raises(Exception, match=r"401|nvalid|OAuth"):
        asyncio.run(_count_by_oidc(secured.url, provider, "wrong"))
    admin.drop_table("by_oidc")


def test_lancedb_with_an_unknown_key_gets_the_reason(secured: Secured) -> None:
    db = lancedb.connect("db://x", api_key="none", host_override=secured.url)
    with pytest.raises(Exception, match="is unknown"):
        db.table_names()


@pytest.mark.parametrize(
    "credentials",
    [
        lambda secured, _: {"api_key": {"ApiKeyAuth": secured.keys["ann"]}},
        lambda _, provider: {"access_token": provider.token("ann")},
    ],
    ids=["key", "token"],
)
def test_generated_client_sends_a_key_or_a_token(
    secured: Secured, provider: OpenIdProvider, credentials: Callable[[Secured, OpenIdProvider], dict[str, Any]]
) -> None:
    response = NamespaceApi(client(secured, **credentials(secured, provider))).list_namespaces("$")
    assert response.namespaces is not None


def test_generated_client_sends_its_identity_in_the_body(secured: Secured) -> None:
    identity = generated.Identity(api_key=secured.keys["administrator"])
    api = TableApi(client(secured))
    with pytest.raises(generated.ApiException) as refused:
        api.describe_table("$none", generated.DescribeTableRequest())
    assert refused.value.status == 401
    with pytest.raises(generated.ApiException) as missing:
        api.describe_table("none", generated.DescribeTableRequest(identity=identity))
    assert missing.value.status == 404


def test_rust_client_sends_a_key_or_a_token_in_headers(secured: Secured, provider: OpenIdProvider) -> None:
    for headers in (
        {"header.x-api-key": secured.keys["ann"]},
        {"header.authorization": f"Bearer {provider.token('ann')}"},
    ):
        lance.namespace.RestNamespace(uri=secured.url, **headers).list_namespaces(REQUEST)
        lance_namespace.connect("rest", {"uri": secured.url, **headers}).list_namespaces(REQUEST)
    for headers_without_key in ({}, {"header.x-api-key": "none"}):
        with pytest.raises(UnauthenticatedError):
            lance.namespace.RestNamespace(uri=secured.url, **headers_without_key).list_namespaces(REQUEST)


def test_pylance_writes_and_reads_a_managed_table_with_a_key(secured: Secured) -> None:
    properties = {"uri": secured.url, "header.x-api-key": secured.keys["administrator"]}
    namespace = lance_namespace.connect("rest", properties)
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["by_pylance"])
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["by_pylance"], mode="append")
    assert lance.dataset(namespace_client=namespace, table_id=["by_pylance"]).count_rows() == 6
    namespace.drop_table(lance_namespace.DropTableRequest(id=["by_pylance"]))


def test_lancedb_namespace_connection_sends_a_key(secured: Secured) -> None:
    properties = {"uri": secured.url, "header.x-api-key": secured.keys["administrator"]}
    db = lancedb.connect_namespace("rest", properties)
    assert db.create_table("by_namespace", ROWS).count_rows() == 3
    db.drop_table("by_namespace")
    with pytest.raises(Exception, match="x-api-key"):
        lancedb.connect_namespace("rest", {"uri": secured.url}).create_table("by_namespace", ROWS)
