"""Views that the server refreshes itself show nothing that their creator, or who refreshes them, may not read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
)

from tests.access.conftest import Catalog
from tiltyard.worker.runner import Worker

QUERY = "SELECT id FROM s.t"
QUERIES = (QUERY, "SELECT * FROM vector_dedup('s$t', 1, 'vector', 0.1)")


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
@pytest.mark.parametrize("query", QUERIES)
def test_create_of_a_table_that_may_not_be_read_is_refused(home: Catalog, empty: bool, query: str) -> None:
    with pytest.raises(NamespaceNotFoundError):
        create(home, with_no_data=empty, source_query=query)
    home.grant("ann", "use", table=("s", "t"))
    with pytest.raises(PermissionDeniedError):
        create(home, with_no_data=empty, source_query=query)
    assert home.owner.call("ListMaterializedViews", {"id": ["v"]})["views"] == []


@pytest.mark.parametrize("query", QUERIES)
def test_create_of_a_table_with_policies_is_refused(home: Catalog, query: str) -> None:
    home.grant("ann", "read", table=("s", "t"))
    home.owner.call("SetTablePolicy", {"id": ["s", "t"], "name": "p", "filter": "id > 1"})
    home.refresh_rights()
    with pytest.raises(PermissionDeniedError):
        create(home, source_query=query)


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


def plain_view(catalog: Catalog, query: str = "SELECT id FROM s.t") -> Any:
    return catalog.as_("ann").call("CreateView", {"id": ["v", "plain"], "query": query})


def count(catalog: Catalog, name: str, **fields: Any) -> int:
    return int(catalog.as_(name).call("CountTableRows", {"id": ["v", "plain"], **fields}).count)


def test_create_plain_view_of_a_table_that_may_not_be_read_is_refused(home: Catalog) -> None:
    with pytest.raises(LanceNamespaceError):
        plain_view(home)
    assert home.owner.call("ListViews", {"id": ["v"]})["views"] == []


def test_a_plain_view_is_read_under_the_reader_s_own_grants_and_policies(home: Catalog) -> None:
    home.grant("ann", "read", table=("s", "t"))
    plain_view(home)
    assert count(home, "ann") == 3
    with pytest.raises(LanceNamespaceError):
        count(home, "bob")
    home.grant("bob", "read", table=("v", "plain"))
    for fields in ({}, {"predicate": "id > 0"}):
        with pytest.raises((NamespaceNotFoundError, PermissionDeniedError)):
            count(home, "bob", **fields)
    home.owner.call("SetTablePolicy", {"id": ["s", "t"], "name": "p", "filter": "id > 1"})
    home.grant("bob", "read", table=("s", "t"))
    assert (count(home, "bob"), count(home, "bob", predicate="id > 2")) == (2, 1)
    assert home.as_("bob").call("ListViews", {"id": ["v"]})["views"] == ["plain"]
    revoke(home)
    with pytest.raises((NamespaceNotFoundError, PermissionDeniedError)):
        count(home, "ann")


def test_properties_that_are_no_view_leave_a_table_a_table(home: Catalog) -> None:
    for number, schema in enumerate(({}, {"tiltyard.plain_view.schema": "AAAA"}, {"tiltyard.plain_view.schema": "é"})):
        properties = {"tiltyard.plain_view.query": "SELECT id FROM s.t", **schema}
        fields = {"id": ["v", f"t{number}"], "properties": properties}
        home.as_("ann").call("DeclareTable", fields)
        assert home.as_("ann").call("DescribeTable", {"id": fields["id"]}).location
        with pytest.raises(InvalidTableStateError):
            home.as_("ann").call("CountTableRows", {"id": fields["id"]})


def test_copy_of_a_classified_column_is_masked_for_whom_it_is_masked_in_the_source(home: Catalog) -> None:
    home.grant("ann", "read", table=("s", "t"))
    run(home, create(home, with_no_data=False, source_query="SELECT id AS number, vector FROM s.t").job_id)
    home.grant("bob", "read", namespace=("v",))
    request = {"id": ["v", "view"], "k": 3, "vector": {}, "columns": {"column_names": ["number"]}}

    def read(who: Any) -> list[Any]:
        return pa.ipc.open_file(who.query_table(request)).read_all()["number"].to_pylist()

    assert None not in read(home.as_("bob"))
    home.owner.call("SetClassificationPolicy", {"name": "ids", "key": "pii", "mask": "null"})
    classified = {"object_kind": "column", "id": ["s", "t"], "column": "id", "key": "pii", "value": "id"}
    home.owner.call("SetClassification", classified)
    home.refresh_rights()
    assert read(home.as_("bob")) == [None, None, None]
    assert None not in read(home.owner)
    (listed,) = home.owner.call("ListClassifications", {"object_kind": "table", "id": ["v", "view"]})["classifications"]
    assert (listed["column"], listed["key"], listed["value"]) == ("number", "pii", "id")
    assert listed["inherited_from"] == {"object_kind": "column", "id": ["s", "t"], "column": "id"}
    home.owner.call("UnsetClassification", {name: classified[name] for name in ("object_kind", "id", "column", "key")})
    home.refresh_rights()
    assert None not in read(home.as_("bob"))
