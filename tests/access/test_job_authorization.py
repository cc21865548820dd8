"""Jobs are authorized again when they are started, and while they run: a submitter may have lost its privileges."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    TransactionNotFoundError,
)

from tests.access.conftest import Catalog

SCHEMA = base64.b64encode(pa.schema([("id", pa.int64())]).serialize().to_pybytes()).decode()


@pytest.fixture
def home(catalog: Catalog) -> Catalog:
    """A catalog with the table s.t, on which ann can submit jobs."""
    catalog.namespace("s")
    catalog.table("s", "t")
    catalog.grant("ann", "write,run_udfs", table=("s", "t"))
    return catalog


def submit_job(catalog: Catalog, **fields: Any) -> str:
    """Submit a job as ann; return its id."""
    request = {"name": "delete", "table": ["s", "t"], "arguments": {"table": "s$t", "where": "true"}, **fields}
    return str(catalog.as_("ann").call("SubmitJob", request)["job"]["id"])


def claim(catalog: Catalog, job_id: str | None = None) -> Any:
    """Claim a job for a driver, as an administrator; return its description."""
    return catalog.owner.call("ClaimJob", {"owner": "driver", **({"job_id": job_id} if job_id else {})}).get("job")


def describe_job(catalog: Catalog, job_id: str) -> Any:
    return catalog.owner.call("DescribeJob", {"id": [job_id]})["job"]


def claim_error(catalog: Catalog, job_id: str) -> LanceNamespaceError:
    with pytest.raises(LanceNamespaceError) as raised:
        claim(catalog, job_id)
    return raised.value


def revoke(catalog: Catalog, privileges: str, table: tuple[str, ...] = ("s", "t")) -> None:
    request = {"object_kind": "table", "id": list(table), "grantee": "ann", "privileges": privileges.split(",")}
    catalog.owner.call("RevokePrivileges", request)
    catalog.refresh_rights()


def test_a_delete_takes_what_deleting_rows_does_and_is_of_its_own_table_alone(home: Catalog) -> None:
    home.table("s", "other")
    home.grant("bob", "read,write", table=("s", "t"))
    home.grant("eve", "write", table=("s", "t"))
    bob = home.as_("bob")
    wish = {"name": "delete", "table": ["s", "t"], "arguments": {"table": "s$t", "filter": "true"}}
    job_id = bob.call("SubmitJob", wish)["job"]["id"]
    assert claim(home, job_id)["id"] == job_id
    for caller, more, error in (
        ("bob", {"arguments": {"table": "s$other", "filter": "true"}}, InvalidInputError),
        ("bob", {"arguments": {"filter": "true"}}, InvalidInputError),
        ("bob", {"name": "optimize"}, PermissionDeniedError),
        ("bob", {"spark": {"spark.sql.shuffle.partitions": "3"}}, PermissionDeniedError),
        ("bob", {"table": ["s", "other"]}, LanceNamespaceError),
        ("bob", {"table": ["s", "none"]}, LanceNamespaceError),
        ("eve", {}, PermissionDeniedError),
    ):
        with pytest.raises(error):
            home.as_(caller).call("SubmitJob", {**wish, **more})
    later = bob.call("SubmitJob", wish)["job"]["id"]
    home.owner.call(
        "RevokePrivileges", {"object_kind": "table", "id": ["s", "t"], "grantee": "bob", "privileges": ["write"]}
    )
    home.refresh_rights()
    assert "lacks the privileges" in str(claim_error(home, later))


def test_claim_job_of_somebody_who_may_still_have_it_done_hands_it_out(home: Catalog) -> None:
    job_id = submit_job(home)
    assert claim(home, job_id)["id"] == job_id


def test_claim_job_of_somebody_who_lost_the_right_is_refused(home: Catalog) -> None:
    job_id = submit_job(home)
    revoke(home, "run_udfs")
    error = claim_error(home, job_id)
    assert type(error) is PermissionDeniedError
    assert "ann, who submitted this job" in str(error) and "run_udfs" in str(error)
    assert describe_job(home, job_id)["status"] == "Queued"


def test_claim_job_that_waits_longest_fails_those_that_may_not_be_done_any_more(home: Catalog) -> None:
    refused_id, allowed_id = submit_job(home), home.owner.call("SubmitJob", {"name": "export"})["job"]["id"]
    revoke(home, "run_udfs")
    assert claim(home)["id"] == allowed_id
    ended = describe_job(home, refused_id)
    assert (ended["status"], "lacks the privileges for it now" in ended["error"]) == ("Failed", True)
    assert claim(home) is None


def test_claim_job_of_a_disabled_principal_is_refused(home: Catalog) -> None:
    home.store.add_principal("ann", administrator=False)
    job_id = submit_job(home)
    home.store.alter_principal("ann", None, True)
    assert "'ann' is disabled" in str(claim_error(home, job_id))


def test_claim_job_of_an_administrator_of_then_asks_what_they_are_now(home: Catalog) -> None:
    record = home.store.describe_transaction(submit_job(home))
    submitter = {**record.payload["asker"], "name": "eve", "administrator": True}
    job_id = home.store.create_transaction(
        "delete", record.table_id, {**record.payload, "asker": submitter}, {}, requested_by="eve"
    ).id
    home.store.add_principal("eve", administrator=False)
    error = claim_error(home, job_id)
    assert type(error) is PermissionDeniedError
    assert "eve, who submitted this job" in str(error) and "Namespace not found" in str(error)
    home.store.alter_principal("eve", True, None)
    assert claim(home, job_id)["id"] == job_id


def test_beat_job_ends_one_whose_asker_lost_the_right_meanwhile(home: Catalog) -> None:
    job_id = submit_job(home)
    claim(home, job_id)
    beat = {"id": [job_id], "owner": "driver"}
    assert home.owner.call("BeatJob", beat)["status"] == "Running"
    revoke(home, "run_udfs")
    assert home.owner.call("BeatJob", beat)["status"] == "Failed"
    assert "lacks the privileges for it now" in describe_job(home, job_id)["error"]


def test_claim_job_of_a_failed_one_whose_table_was_exchanged_is_refused(home: Catalog) -> None:
    job_id = submit_job(home)
    claim(home, job_id)
    home.owner.call("FinishJob", {"id": [job_id], "owner": "driver", "status": "Failed"})
    home.owner.drop_table({"id": ["s", "t"]})
    home.table("s", "t")
    requeue = {"setStatusAction": {"status": "Queued"}}
    home.owner.call("AlterTransaction", {"id": [job_id], "actions": [requeue]})
    error = claim_error(home, job_id)
    assert (type(error), "was dropped" in str(error)) == (TableNotFoundError, True)


def test_claim_job_of_a_renamed_table_tells_the_name_it_has_now(home: Catalog) -> None:
    job_id, location = submit_job(home), home.owner.describe_table({"id": ["s", "t"]}).location
    home.owner.rename_table({"id": ["s", "t"], "new_table_name": "u", "new_namespace_id": ["s"]})
    home.table("s", "t")
    description = claim(home, job_id)
    assert (description["table"], description["location"]) == (["s", "u"], location)


def test_describe_job_of_a_table_that_went_out_of_sight_tells_the_name_it_was_asked_by(home: Catalog) -> None:
    job_id = submit_job(home)
    home.namespace("vault")
    home.owner.rename_table({"id": ["s", "t"], "new_table_name": "t", "new_namespace_id": ["vault"]})
    assert home.as_("ann").call("DescribeJob", {"id": [job_id]})["job"]["table"] == ["vault", "t"]
    revoke(home, "write,run_udfs", ("vault", "t"))
    description = home.as_("ann").call("DescribeJob", {"id": [job_id]})["job"]
    assert (description["table"], description.get("location")) == (["s", "t"], None)


def test_claim_job_that_refreshes_a_view_asks_again_who_may_read_its_tables(home: Catalog) -> None:
    home.namespace("views")
    home.table("s", "source")
    home.grant("ann", "create,write", namespace=("views",))
    home.grant("ann", "read", table=("s", "source"))
    definition = {"kind": "query", "source_query": "SELECT id FROM `s$source`", "output_schema": SCHEMA}
    response = home.as_("ann").create_materialized_view({"id": ["views", "v"], "with_no_data": False, **definition})
    revoke(home, "read", ("s", "source"))
    assert isinstance(claim_error(home, response.job_id), PermissionDeniedError | TableNotFoundError)
    home.grant("ann", "read", table=("s", "source"))
    assert claim(home, response.job_id)["id"] == response.job_id


def test_claim_job_that_is_none_is_not_found(home: Catalog) -> None:
    assert type(claim_error(home, "nothing")) is TransactionNotFoundError
