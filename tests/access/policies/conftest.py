"""A server with the table of people, and a caller whom its policies bind."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.access.policies.people import MASKS, PEOPLE, RED, TABLE, call, good
from tests.access.scenes import send
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.model.spec import operations


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("policies"), names=("ann", "tess", "olga")) as running:
        with running.http("administrator") as admin:
            good(send(admin, operations()["CreateNamespace"], {"id": ["hr"]}))
            for role, member in (("auditors", "tess"), ("others", "ann")):
                good(send(admin, operations()["CreateRole"], {"role": role}))
                good(send(admin, operations()["AddRoleMember"], {"role": role, "member": member}))
            for name in ("ann", "tess", "olga"):
                granted = {"object_kind": "namespace", "id": ["hr"], "grantee": name, "privileges": ["all"]}
                good(send(admin, operations()["GrantPrivileges"], granted))
        yield running


@pytest.fixture
def admin(secured: Secured) -> Iterator[httpx.Client]:
    """The table anew, with both policies."""
    with secured.http("administrator") as http:
        send(http, operations()["DropTable"], {"id": TABLE})
        good(call(http, "CreateTable", stream(PEOPLE)))
        for policy in (RED, MASKS):
            good(call(http, "SetTablePolicy", **policy))
        yield http


@pytest.fixture
def ann(secured: Secured, admin: httpx.Client) -> Iterator[httpx.Client]:
    """Return the client of a principal with all privileges, to whom the policies apply."""
    with secured.http("ann") as http:
        yield http
