"""Authorization fails closed while the catalog is down, and a revocation on one server takes effect on all."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance_namespace.errors import PermissionDeniedError, ServiceUnavailableError

from tests.access.conftest import Catalog
from tests.access.scenes import ARROW, Admin, outcome, send
from tests.identity.responses import SLACK_SECONDS
from tests.services.lossy import wait_for
from tests.services.postgres import PostgresServer
from tests.services.proxy import Proxy
from tests.services.secured import secured_server
from tests.services.server import ServerProcess
from tiltyard.model.operations import Handler
from tiltyard.model.principals import Principal
from tiltyard.model.spec import operations

TABLE = {"id": ["t"]}


@pytest.mark.extended
def test_grants_while_the_database_is_away_let_nobody_in(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with Proxy(url) as proxy, secured_server(tmp_path, db=url.replace(f":{postgres.port}/", f":{port(proxy)}/")) as run:
        admin = Admin(run.http("administrator"))
        admin.call("CreateTable", TABLE, ARROW)
        admin.call("GrantPrivileges", {"object_kind": "table", **TABLE, "grantee": "ann", "privileges": ["read"]})
        ann = run.http("ann")
        assert outcome(send(ann, operations()["DescribeTable"], TABLE)) == "200"
        proxy.cut()
        response = ann.post("/v1/table/t/describe", json={})
        assert (response.status_code, response.json()["code"]) == (503, 17)
        proxy.mend()
        wait_for(lambda: ann.post("/v1/table/t/describe", json={}).status_code == 200)


def port(proxy: Proxy) -> str:
    return proxy.url.rpartition(":")[2]


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def test_revoke_on_one_server_ends_the_grant_on_another_within_five_seconds(
    tmp_path: Path, request: pytest.FixtureRequest, database: str
) -> None:
    db = request.getfixturevalue("postgres").new_database() if database == "postgres" else ""
    with secured_server(tmp_path, db=db) as run:
        other = ServerProcess(tmp_path, "--auth", *(("--db", db) if db else ()))
        try:
            admin = Admin(run.http("administrator"))
            admin.call("CreateTable", TABLE, ARROW)
            grant = {"object_kind": "table", **TABLE, "grantee": "ann", "privileges": ["read"]}
            admin.call("GrantPrivileges", grant)
            remote = run.http("ann")
            remote.base_url = other.url
            wait_for(lambda: remote.post("/v1/table/t/count_rows", json={}).status_code == 200)
            admin.call("RevokePrivileges", grant)
            response = run.http("ann").post("/v1/table/t/count_rows", json={})
            assert response.status_code == 404  # at once, where it was revoked
            wait_for(lambda: remote.post("/v1/table/t/count_rows", json={}).status_code == 404, 5 + SLACK_SECONDS)
        finally:
            other.stop()


def test_repeat_of_a_drop_by_its_owner_is_told_the_first_answer(tmp_path: Path) -> None:
    """The repeat finds nothing to have rights on any more, and is no less a repeat."""
    with secured_server(tmp_path) as run:
        admin = Admin(run.http("administrator"))
        admin.call("CreateNamespace", {"id": ["s"]})
        admin.call(
            "GrantPrivileges", {"object_kind": "namespace", "id": ["s"], "grantee": "ann", "privileges": ["create"]}
        )
        ann, key = run.http("ann"), {"idempotency-key": "once"}
        responses = [ann.post("/v1/table/s$t/create", content=ARROW, headers=key) for _ in range(2)]
        assert [response.status_code for response in responses] == [200, 200]
        assert responses[0].json() == responses[1].json()
        key = {"idempotency-key": "twice"}
        dropped = [ann.post("/v1/table/s$t/drop", json={}, headers=key) for _ in range(2)]
        assert [response.status_code for response in dropped] == [200, 200]
        assert "idempotent-replayed" in dropped[1].headers
        refused = run.http("bob").post("/v1/table/s$t/drop", json={}, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (404, 1)


def test_grants_that_cannot_be_looked_up_are_unavailable_not_allowed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.table("t")
    catalog.grant("ann", "read", table=("t",))
    ann = catalog.as_("ann")
    ann._services.store.close()
    ann._services.rights_cache.refresh_next()
    with pytest.raises(ServiceUnavailableError):
        ann.table_exists(TABLE)


def test_operation_without_a_declaration_is_for_administrators_alone(catalog: Catalog) -> None:
    handler = Handler(lambda ctx, request: None, lambda ctx, request: False, None)
    ctx = type("Ctx", (), {"principal": Principal("ann"), "is_unchecked": False})()
    with pytest.raises(PermissionDeniedError):
        handler.authorize(ctx, None)
