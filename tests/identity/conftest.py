"""A server with authentication, for all tests that leave it unchanged, and an OpenID provider that it trusts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.services.openid import OpenIdProvider, openid_provider
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.secured import Secured, secured_server


@pytest.fixture(scope="session")
def provider() -> Iterator[OpenIdProvider]:
    with openid_provider() as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory, provider: OpenIdProvider) -> Iterator[Secured]:
    environ = {"TILTYARD_PROVIDERS": json.dumps({"corp": provider.settings})}
    with secured_server(tmp_path_factory.mktemp("secured"), environ=environ) as running:
        yield running
