"""Views that the server refreshes itself show nothing that their creator, or who refreshes them, may not read."""

from __future__ import annotations

from typing import Any

import pytest
from lance_namespace.errors import NamespaceNotFoundError, PermissionDeniedError

from tests.access.conftest import Catalog
from tiltyard.worker.runner import Worker

QUERY = "SELECT id FROM s.t"


@pytest.fixture
def home(catalog: Catalog) -> Catalog:
    """A catalog with the table s.t, and the namespace v, in which ann may create views."""
    catalog.namespace("s")
    catalog.namespace("v")
    catalog.table("s", "t")
    catalog.grant("ann", "create", namespace=("v",))
    return catalog


def create(catalog: Catalog, **fields: Any) -> Any:
    request = {"id": ["v", "view"], "kind": "select", "source_query": QUERY, "output_schema": "", **fields}
    return catalog.as_("ann").call("CreateMaterializedView", request)


def run(catalog: Catalog, job: str) -> Any:
    Worker(catalog.owner._services, 0).run_one()
    return catalog.owner.call("DescribeJobState", {"job_id": job})


def revoke(catalog: Catalog) -> None:
    request = {"object_kind": "table", "id": ["s", "t"], "grantee": "ann", "privileges": ["read"]}
    catalog.owner.call("RevokePrivileges", request)
    catalog.refresh_rights()


@pytest.mark.parametrize("empty", [True, False])
def test_create_of_a_table_that_may_not_be_read_is_refused(home: Catalog, empty: bool) -> None:
    with pytest.raises(NamespaceNotFoundError):
        create(home, with_no_data=empty)
    home.grant("ann", "use", table=("s", "t"))
    with pytest.raises(PermissionDeniedError):
        create(home, with_no_data=empty)
    assert home.owner.call("ListMaterializedViews", {"id": ["v"]})["views"] == []


def test_create_of_a_table_with_policies_is_refused(home: Catalog) -> None:
    home.grant("ann", "read", table=("s", "t"))
    home.owner.call("SetTablePolicy", {"id": ["s", "t"], "name": "p", "filter": "id > 1"})
    home.refresh_rights()
    with pytest.raises(PermissionDeniedError):
        create(home)


def test_refresh_runs_as_its_submitter(home: Catalog) -> None:
    home.grant("ann", "read", table=("s", "t"))
    job = create(home, with_no_data=False).job_id
    described = run(home, job)
    assert (described["job_state"], described["result"]["rows_written"]) == ("DONE", 3)
    assert home.as_("ann").call("CountTableRows", {"id": ["v", "view"]}).count == 3
    assert home.as_("ann").call("ListMaterializedViews", {"id": ["v"]})["views"] == ["view"]


def test_refresh_of_a_submitter_who_lost_the_right_fails(home: Catalog) -> None:
    home.grant("ann", "read", table=("s", "t"))
    job = create(home, with_no_data=False).job_id
    revoke(home)
    described = run(home, job)
    assert described["job_state"] == "FAILED"
    assert home.owner.call("CountTableRows", {"id": ["v", "view"]}).count == 0


def test_refresh_by_another_needs_what_its_creator_still_has(home: Catalog) -> None:
    home.grant("ann", "read", table=("s", "t"))
    create(home)
    revoke(home)
    with pytest.raises(PermissionDeniedError, match="its creator"):
        home.owner.call("RefreshMaterializedView", {"id": ["v", "view"]})
