"""A job is looked at again when it is begun, and while it runs: who asked for it may have lost the right to."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    TransactionNotFoundError,
)

from tests.access.conftest import Catalog

SCHEMA = base64.b64encode(pa.schema([("id", pa.int64())]).serialize().to_pybytes()).decode()


@pytest.fixture
def home(catalog: Catalog) -> Catalog:
    """A catalog with the table s.t, on which ann may have jobs done."""
    catalog.namespace("s")
    catalog.table("s", "t")
    catalog.grant("ann", "write,run_udfs", table=("s", "t"))
    return catalog


def asked(catalog: Catalog, **fields: Any) -> str:
    """The id of a job that ann asked for."""
    given = {"name": "delete", "table": ["s", "t"], "arguments": {"table": "s$t", "where": "true"}, **fields}
    return str(catalog.as_("ann").call("SubmitJob", given)["job"]["id"])


def claim(catalog: Catalog, job_id: str | None = None) -> Any:
    """What a driver is told that asks for a job as an administrator."""
    return catalog.owner.call("ClaimJob", {"owner": "driver", **({"job_id": job_id} if job_id else {})}).get("job")


def described(catalog: Catalog, job_id: str) -> Any:
    return catalog.owner.call("DescribeJob", {"id": [job_id]})["job"]


def refusal(catalog: Catalog, job_id: str) -> LanceNamespaceError:
    with pytest.raises(LanceNamespaceError) as raised:
        claim(catalog, job_id)
    return raised.value


def revoke(catalog: Catalog, privileges: str, table: tuple[str, ...] = ("s", "t")) -> None:
    given = {"object_kind": "table", "id": list(table), "grantee": "ann", "privileges": privileges.split(",")}
    catalog.owner.call("RevokePrivileges", given)
    catalog.changed()


def test_claim_job_of_somebody_who_may_still_have_it_done_hands_it_out(home: Catalog) -> None:
    job_id = asked(home)
    assert claim(home, job_id)["id"] == job_id


def test_claim_job_of_somebody_who_lost_the_right_is_refused(home: Catalog) -> None:
    job_id = asked(home)
    revoke(home, "run_udfs")
    found = refusal(home, job_id)
    assert type(found) is PermissionDeniedError
    assert "ann, who asked for this job" in str(found) and "run_udfs" in str(found)
    assert described(home, job_id)["status"] == "Queued"


def test_claim_job_that_waits_longest_fails_those_that_may_not_be_done_any_more(home: Catalog) -> None:
    late, own = asked(home), home.owner.call("SubmitJob", {"name": "export"})["job"]["id"]
    revoke(home, "run_udfs")
    assert claim(home)["id"] == own
    ended = described(home, late)
    assert (ended["status"], "may not have it done any more" in ended["error"]) == ("Failed", True)
    assert claim(home) is None


def test_claim_job_of_a_disabled_principal_is_refused(home: Catalog) -> None:
    home.store.add_principal("ann", administrator=False)
    job_id = asked(home)
    home.store.alter_principal("ann", None, True)
    assert "'ann' is disabled" in str(refusal(home, job_id))


def test_claim_job_of_an_administrator_of_then_asks_what_they_are_now(home: Catalog) -> None:
    record = home.store.describe_transaction(asked(home))
    asker = {**record.payload["asker"], "name": "eve", "administrator": True}
    job_id = home.store.create_transaction(
        "delete", record.table_id, {**record.payload, "asker": asker}, {}, requested_by="eve"
    ).id
    home.store.add_principal("eve", administrator=False)
    assert type(refusal(home, job_id)) is NamespaceNotFoundError
    home.store.alter_principal("eve", True, None)
    assert claim(home, job_id)["id"] == job_id


def test_beat_job_ends_one_whose_asker_lost_the_right_meanwhile(home: Catalog) -> None:
    job_id = asked(home)
    claim(home, job_id)
    beat = {"id": [job_id], "owner": "driver"}
    assert home.owner.call("BeatJob", beat)["status"] == "Running"
    revoke(home, "run_udfs")
    assert home.owner.call("BeatJob", beat)["status"] == "Failed"
    assert "may not have it done any more" in described(home, job_id)["error"]


def test_claim_job_of_a_failed_one_whose_table_was_exchanged_is_refused(home: Catalog) -> None:
    job_id = asked(home)
    claim(home, job_id)
    home.owner.call("FinishJob", {"id": [job_id], "owner": "driver", "status": "Failed"})
    home.owner.drop_table({"id": ["s", "t"]})
    home.table("s", "t")
    again = {"setStatusAction": {"status": "Queued"}}
    home.owner.call("AlterTransaction", {"id": [job_id], "actions": [again]})
    found = refusal(home, job_id)
    assert (type(found), "was dropped" in str(found)) == (TableNotFoundError, True)


def test_claim_job_of_a_renamed_table_tells_the_name_it_has_now(home: Catalog) -> None:
    job_id, location = asked(home), home.owner.describe_table({"id": ["s", "t"]}).location
    home.owner.rename_table({"id": ["s", "t"], "new_table_name": "u", "new_namespace_id": ["s"]})
    home.table("s", "t")
    told = claim(home, job_id)
    assert (told["table"], told["location"]) == (["s", "u"], location)


def test_describe_job_of_a_table_that_went_out_of_sight_tells_the_name_it_was_asked_by(home: Catalog) -> None:
    job_id = asked(home)
    home.namespace("vault")
    home.owner.rename_table({"id": ["s", "t"], "new_table_name": "t", "new_namespace_id": ["vault"]})
    assert home.as_("ann").call("DescribeJob", {"id": [job_id]})["job"]["table"] == ["vault", "t"]
    revoke(home, "write,run_udfs", ("vault", "t"))
    told = home.as_("ann").call("DescribeJob", {"id": [job_id]})["job"]
    assert (told["table"], told.get("location")) == (["s", "t"], None)


def test_claim_job_that_refreshes_a_view_asks_again_who_may_read_its_tables(home: Catalog) -> None:
    home.namespace("views")
    home.table("s", "source")
    home.grant("ann", "create,write", namespace=("views",))
    home.grant("ann", "read", table=("s", "source"))
    given = {"kind": "query", "source_query": "SELECT id FROM `s$source`", "output_schema": SCHEMA}
    made = home.as_("ann").create_materialized_view({"id": ["views", "v"], "with_no_data": False, **given})
    revoke(home, "read", ("s", "source"))
    assert isinstance(refusal(home, made.job_id), PermissionDeniedError | TableNotFoundError)
    home.grant("ann", "read", table=("s", "source"))
    assert claim(home, made.job_id)["id"] == made.job_id


def test_claim_job_that_is_none_is_not_found(home: Catalog) -> None:
    assert type(refusal(home, "nothing")) is TransactionNotFoundError
