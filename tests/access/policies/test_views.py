"""A view does not bypass grants and policies: its reader and its creator each need to read all of its tables."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.access.policies.people import TABLE, call, good, refused
from tests.access.scenes import send
from tests.services.secured import Secured
from tests.services.wire import stream
from tiltyard.model.spec import operations

SCHEMA = base64.b64encode(pa.schema([("id", pa.int64())]).serialize().to_pybytes()).decode()
NARROWED = "SELECT id FROM `hr$people`"
numbers = itertools.count(1)

View = Callable[..., tuple[list[str], httpx.Response]]


def view(http: httpx.Client, query: str, **fields: Any) -> tuple[list[str], httpx.Response]:
    """Create a view in a namespace of all three; return its path and the response."""
    path = ["hr", f"view{next(numbers)}"]
    request = {"id": path, "kind": "query", "source_query": query, "output_schema": SCHEMA, **fields}
    return path, send(http, operations()["CreateMaterializedView"], request)


def refresh(http: httpx.Client, path: list[str]) -> httpx.Response:
    return send(http, operations()["RefreshMaterializedView"], {"id": path})


@pytest.fixture
def tess(secured: Secured, admin: httpx.Client) -> Iterator[httpx.Client]:
    """Return the client of a principal in an exempt role."""
    with secured.http("tess") as http:
        yield http


def test_view_of_a_narrowed_table_is_refused_to_whom_its_policies_bind(ann: httpx.Client) -> None:
    path, response = view(ann, NARROWED, with_no_data=False)
    assert "Policies restrict your access to the table hr$people" in refused(response)
    assert call(ann, "TableExists", id=path).status_code == 404  # nothing was left behind
    path, response = view(ann, NARROWED)
    assert response.status_code == 201
    assert "Policies restrict your access" in refused(refresh(ann, path))
    nested = "WITH x AS (SELECT * FROM `hr$people`) SELECT count(*) AS id FROM x"
    path, response = view(ann, nested)
    assert response.status_code == 201
    assert "Policies restrict your access" in refused(refresh(ann, path))


def test_view_submitted_as_a_job_is_refused_in_the_same_words(ann: httpx.Client, admin: httpx.Client) -> None:
    path, _ = view(ann, NARROWED)
    arguments = {"sources": {"hr$people": "file:///wherever"}, "table": "$".join(path)}
    request = {"name": "refresh", "table": path, "arguments": arguments}
    assert "Policies restrict your access" in refused(send(ann, operations()["SubmitJob"], request))
    job = good(send(admin, operations()["SubmitJob"], {**request, "table": view(admin, NARROWED)[0]}))["job"]
    location = good(call(admin, "DescribeTable", id=TABLE))["location"]
    assert job["arguments"]["sources"] == {"hr$people": location}  # the server's word, and not the client's


def test_view_made_by_somebody_whom_policies_bind_is_refused_to_all(
    ann: httpx.Client, admin: httpx.Client, tess: httpx.Client
) -> None:
    path, _ = view(ann, NARROWED, auto_refresh=True)
    for http in (admin, tess):
        assert "ann, its creator, may not read all of them" in refused(refresh(http, path))


def test_view_of_somebody_exempt_is_refreshed_by_them_and_not_by_whom_policies_bind(
    tess: httpx.Client, ann: httpx.Client
) -> None:
    path, response = view(tess, NARROWED, with_no_data=False)
    assert response.status_code == 201
    assert response.json()["job_id"]
    assert refresh(tess, path).status_code == 202
    assert "Policies restrict your access" in refused(refresh(ann, path))


def test_view_of_a_table_that_one_may_not_see_says_that_it_is_not_there(
    secured: Secured, admin: httpx.Client, ann: httpx.Client
) -> None:
    send(admin, operations()["CreateNamespace"], {"id": ["vault"]})
    send(admin, operations()["CreateTable"], {"id": ["vault", "t"]}, stream(pa.table({"id": [1]})))
    for name in ("vault$t", "vault$nothing", "nowhere$t"):
        path, _ = view(ann, f"SELECT id FROM `{name}`")
        response = refresh(ann, path)
        assert (response.status_code, response.json()["error"]) == (404, f"Namespace not found: {name.split('$')[0]}")
        if name == "vault$t":  # an administrator sees that it is there
            assert "ann, its creator, may not read all of them" in refused(refresh(admin, path))


def test_view_whose_definition_was_changed_in_its_metadata_is_refused(ann: httpx.Client, admin: httpx.Client) -> None:
    path, _ = view(admin, "SELECT id FROM `hr$other`")
    changed = {"tiltyard.view.kind": "query", "tiltyard.view.query": NARROWED}
    good(send(admin, operations()["UpdateTableSchemaMetadata"], {"id": path, "metadata": changed}))
    assert "was changed in its table's metadata" in refused(refresh(admin, path), 409)


@pytest.mark.parametrize("query", ["{}", "DROP TABLE x", "SELECT id FROM hr.people", "SELECT id FROM `{view}`"])
def test_view_of_what_is_no_query_over_other_tables_is_invalid_input(admin: httpx.Client, query: str) -> None:
    path, response = view(admin, query.replace("{view}", f"hr$view{next(numbers) + 1}"))
    assert response.status_code == 201  # a query is text until it is to be carried out
    refused(refresh(admin, path), 400)
