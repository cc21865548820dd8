"""Schedules: each time has one job, queued as the definer, whatever else happens to servers, rights and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotEmptyError,
    PermissionDeniedError,
    TableNotFoundError,
)
from msgspec.structs import replace

from tests.access.conftest import ROWS_AS_STREAM
from tiltyard.catalog.schedules.due import queue_due_job
from tiltyard.catalog.table_ages import note_stale_tables
from tiltyard.context import Context
from tiltyard.model.principals import SERVER
from tiltyard.store import TableAge
from tiltyard.tables.versions.records import MANAGED

if TYPE_CHECKING:
    import tiltyard
    from tests.access.conftest import Catalog

NIGHTLY = {"id": ["s", "nightly"], "job": "optimize", "table": ["s", "t"], "arguments": {"table": "s$t"}}
HOUR = {"every_seconds": 3600}


@pytest.fixture
def home(catalog: Catalog) -> Catalog:
    """A catalog with the table s.t, on which ann can submit jobs and in whose namespace she can create objects."""
    catalog.namespace("s")
    catalog.table("s", "t")
    catalog.grant("ann", "use,create", namespace=("s",))
    catalog.grant("ann", "read,run_udfs", table=("s", "t"))
    return catalog


def create(catalog: Catalog, caller: str = "ann", **fields: Any) -> Any:
    return catalog.as_(caller).call("CreateSchedule", {**NIGHTLY, **fields})["schedule"]


def describe(catalog: Catalog, name: str = "nightly") -> Any:
    return catalog.owner.call("DescribeSchedule", {"id": ["s", name]})["schedule"]


def later(catalog: Catalog, seconds: float) -> None:
    """Let so much time pass for all schedules."""
    change = "UPDATE schedules SET due_at = due_at - ?, rests_until = rests_until - ?"
    ms = int(seconds * 1000)
    catalog.store.transact(lambda work: work.connection.change(change, ms, ms))


def look(client: tiltyard.Namespace) -> None:
    """Let a server look at schedules until none is due."""
    client._services.rights_cache.refresh_next()
    ctx = Context(client._services, "schedules", principal=SERVER)
    while queue_due_job(ctx):
        pass


def jobs(catalog: Catalog, status: str | None = None) -> list[Any]:
    """Return the jobs of schedules, the first one first."""
    found = catalog.owner.call("ListJobs", {"status": status} if status else {})["jobs"]
    return [job for job in reversed(found) if "schedule" in job["properties"]]


def end(catalog: Catalog, status: str = "Succeeded") -> None:
    """End the jobs that wait, as a driver does."""
    while job := catalog.owner.call("ClaimJob", {"owner": "driver"}).get("job"):
        catalog.owner.call("FinishJob", {"id": [job["id"]], "owner": "driver", "status": status})


def test_a_job_on_a_table_needs_one_and_a_pipeline_does_not(home: Catalog) -> None:
    for job in "optimize", "ingest", "refresh":
        wish = {**NIGHTLY, **HOUR, "job": job, "table": None, "arguments": {}}
        with pytest.raises(InvalidInputError, match=f"A schedule of the job {job} names the table"):
            home.owner.call("CreateSchedule", wish)
    wish = {**NIGHTLY, **HOUR, "job": "pipeline", "table": None, "arguments": {}}
    assert home.owner.call("CreateSchedule", wish)["schedule"]["job"] == "pipeline"


def error_of(catalog: Catalog, caller: str, operation: str, **fields: Any) -> LanceNamespaceError:
    with pytest.raises(LanceNamespaceError) as raised:
        catalog.as_(caller).call(operation, fields)
    return raised.value


def test_each_time_has_one_job_of_the_definer_however_many_servers_look(home: Catalog) -> None:
    entry = create(home, **HOUR)
    assert (entry["state"], entry["every_seconds"], entry["definer"], entry["catch_up"]) == (
        "Active",
        3600,
        "ann",
        False,
    )
    servers = [home.owner, home.as_("second server"), home.as_("third server")]
    for server in servers:
        look(server)
    assert jobs(home) == []
    for times in (1, 2, 3):
        later(home, 3600)
        for server in servers:
            look(server)
        assert len(jobs(home)) == times
        end(home)
    last = jobs(home)[-1]
    assert (last["asked_by"], last["name"], last["arguments"]) == ("ann", "optimize", {"table": "s$t"})
    assert last["properties"]["schedule"] == "s$nightly"
    seen = describe(home)
    assert (seen["last_job_id"], seen["last_status"]) == (last["id"], "Succeeded")
    assert seen["next_run_millis"] - seen["last_run_millis"] == 3_600_000


def test_a_server_that_is_killed_after_its_claim_leaves_the_time_to_another_one(home: Catalog) -> None:
    create(home, **HOUR)
    later(home, 3600)
    seen = home.store.claim_due_schedule()
    look(home.owner)
    assert jobs(home) == []  # for the length of the lease it is the killed server's
    later(home, 10)
    look(home.owner)
    look(home.as_("second server"))
    assert len(jobs(home)) == 1
    assert not home.store.settle_schedule(seen, {}, due_at=None)  # it was only suspended, and is too late
    assert describe(home)["last_job_id"] == jobs(home)[0]["id"]


def test_nothing_piles_up_behind_a_job_that_has_not_ended(home: Catalog) -> None:
    create(home, **HOUR)
    create(home, id=["s", "patient"], catch_up=True, **HOUR)
    for _ in range(3):
        later(home, 3600)
        look(home.owner)
    assert len(jobs(home)) == 2
    assert [describe(home).get("skipped"), describe(home, "patient").get("skipped")] == [2, None]
    end(home)
    later(home, 3)
    look(home.owner)
    assert [job["properties"]["schedule"] for job in jobs(home, "Queued")] == ["s$patient"]  # one for both times


def test_missed_times_are_skipped_or_made_up_for_by_one_run(home: Catalog) -> None:
    create(home, cron="0 3 * * *", zone="Europe/Berlin")
    create(home, id=["s", "all"], cron="@daily", catch_up=True)
    later(home, 5 * 86_400)  # no server is there for that long
    look(home.owner)
    assert [job["properties"]["schedule"] for job in jobs(home)] == ["s$all"]
    assert describe(home)["missed"] == 1 and describe(home)["next_run_millis"] > home.owner._services.clock()


def test_commits_of_a_table_start_one_run_after_the_last_one_has_ended(home: Catalog) -> None:
    home.table("s", "other")
    create(home, on_commit=[["s", "t"]], debounce_seconds=2)
    assert "next_run_millis" not in describe(home)
    ids = [home.store.describe_table(("s", name)).id for name in ("t", "other")]
    home.store.note_changes(ids[1:])
    assert "next_run_millis" not in describe(home)
    for _ in range(3):
        home.store.note_changes(ids)
    look(home.owner)
    assert jobs(home) == []
    later(home, 2)
    look(home.owner)
    home.store.note_changes(ids)  # while the job waits or runs
    later(home, 2)
    look(home.owner)
    assert len(jobs(home)) == 1
    end(home)
    later(home, 2)
    look(home.owner)
    assert len(jobs(home)) == 2
    end(home)
    later(home, 60)
    look(home.owner)
    assert len(jobs(home)) == 2


def test_a_paused_schedule_runs_by_request_alone_and_commits_are_not_forgotten(home: Catalog) -> None:
    create(home, **HOUR)
    home.owner.call("CreateSchedule", {**NIGHTLY, "id": ["s", "triggered"], "on_commit": [["s", "t"]]})
    for name in ("nightly", "triggered"):
        home.owner.call("AlterSchedule", {"id": ["s", name], "paused": True})
    home.store.note_changes([home.store.describe_table(("s", "t")).id])
    later(home, 7200)
    look(home.owner)
    assert (jobs(home), describe(home)["state"]) == ([], "Paused")
    job = home.as_("ann").call("RunSchedule", {"id": ["s", "nightly"]})["job"]
    assert describe(home)["last_job_id"] == job["id"]
    error = error_of(home, "ann", "RunSchedule", id=["s", "nightly"])
    assert isinstance(error, ConcurrentModificationError) and job["id"] in str(error)
    end(home)
    for name in ("nightly", "triggered"):
        home.owner.call("AlterSchedule", {"id": ["s", name], "paused": False})
    look(home.owner)
    assert [each["properties"]["schedule"] for each in jobs(home, "Queued")] == ["s$triggered"]


def test_a_definer_without_the_rights_runs_nothing_and_the_reason_is_seen(home: Catalog) -> None:
    create(home, **HOUR)
    home.owner.call(
        "RevokePrivileges",
        {"object_kind": "table", "id": ["s", "t"], "grantee": "ann", "privileges": ["run_udfs"]},
    )
    home.refresh_rights()
    later(home, 3600)
    look(home.owner)
    seen = describe(home)
    assert (jobs(home), seen["state"]) == ([], "Refused")
    assert "ann, who defined this schedule" in seen["refused"] and "run_udfs" in seen["refused"]
    assert isinstance(error_of(home, "ann", "RunSchedule", id=["s", "nightly"]), PermissionDeniedError)
    home.grant("ann", "run_udfs", table=("s", "t"))
    later(home, 3600)
    look(home.owner)
    assert len(jobs(home)) == 1 and describe(home)["state"] == "Active"


def test_others_see_and_steer_a_schedule_by_their_rights_on_its_table(home: Catalog) -> None:
    create(home, **HOUR)
    home.grant("bob", "use", namespace=("s",))
    assert isinstance(error_of(home, "bob", "DescribeSchedule", id=["s", "nightly"]), PermissionDeniedError)
    assert home.as_("bob").call("ListSchedules", {})["schedules"] == []
    assert isinstance(error_of(home, "eve", "DescribeSchedule", id=["s", "nightly"]), LanceNamespaceError)
    hidden = str(error_of(home, "eve", "DescribeSchedule", id=["s", "nightly"]))
    assert hidden == str(error_of(home, "eve", "DescribeSchedule", id=["s", "none"]))
    for operation in ("ListSchedules", "ListTableAges"):  # a table that the caller cannot see is missing
        unseen, missing = (str(error_of(home, "eve", operation, table=name)) for name in ("s$t", "s$none"))
        assert unseen == missing
    denied = error_of(home, "bob", "CreateSchedule", **{**NIGHTLY, "id": ["s", "mine"]}, **HOUR)
    assert isinstance(denied, PermissionDeniedError)
    home.grant("bob", "run_udfs", table=("s", "t"))
    [entry] = home.as_("bob").call("ListSchedules", {"table": "s$t"})["schedules"]
    assert entry["id"] == ["s", "nightly"]
    assert isinstance(error_of(home, "bob", "DropSchedule", id=["s", "nightly"]), PermissionDeniedError)
    home.grant("bob", "alter", table=("s", "t"))
    home.as_("bob").call("DropSchedule", {"id": ["s", "nightly"]})
    assert isinstance(error_of(home, "ann", "DropSchedule", id=["s", "nightly"]), TableNotFoundError)


def test_a_schedule_follows_its_table_rests_while_that_is_dropped_and_goes_with_it(home: Catalog) -> None:
    create(home, **HOUR)
    home.owner.call("RenameTable", {"id": ["s", "t"], "new_table_name": "u"})
    later(home, 3600)
    look(home.owner)
    assert jobs(home)[0]["table"] == ["s", "u"] and jobs(home)[0]["arguments"] == {"table": "s$u"}
    end(home)
    home.owner.call("DropTable", {"id": ["s", "u"]})
    home.table("s", "u")  # another one
    later(home, 7200)
    look(home.owner)
    assert (len(jobs(home)), describe(home)["state"]) == (1, "Stopped")
    home.owner.call("DropTable", {"id": ["s", "u"]})
    first = home.owner.call("ListDroppedTables", {})["tables"][-1]
    home.owner.call("UndropTable", {"id": ["s", "u"], "dropped_id": first["dropped_id"]})
    look(home.owner)
    assert describe(home)["state"] == "Active"
    later(home, 3600)
    look(home.owner)
    assert len(jobs(home)) == 2
    with pytest.raises(NamespaceNotEmptyError):
        home.owner.call("DropNamespace", {"id": ["s"]})
    home.owner.call("DropNamespace", {"id": ["s"], "behavior": "Cascade"})
    end(home)
    later(home, 3600)
    look(home.owner)
    assert len(jobs(home)) == 2
    home.owner.call("UndropNamespace", {"id": ["s"]})
    assert describe(home)["state"] == "Active"


REFUSED = [
    ({}, "when its job runs"),
    ({"cron": "* * * * *", "on_commit": [["s", "t"]]}, "make two schedules"),
    ({"cron": "soon"}, "five fields"),
    ({"every_seconds": 1}, "5 to"),
    ({"every_seconds": 60, "debounce_seconds": 5}, "leave it out"),
    ({"on_commit": [["s", "t"]], "debounce_seconds": 0.1}, "debounce_seconds is"),
    ({"on_commit": [["s", "t"]], "catch_up": True}, "never missed"),
    ({"on_commit": [["s", "t"]] * 21}, "20 tables"),
    ({"on_commit": [["s", "t"]], "job": "ingest", "arguments": {"table": "s$t", "source": "x"}}, "start the next one"),
    ({**HOUR, "job": "sleep"}, "There is no job"),
    ({**HOUR, "job": "stream"}, "runs until it is canceled"),
    ({**HOUR, "id": ["s", "a b"]}, "characters"),
    ({**HOUR, "arguments": {"table": "x" * 70_000}}, "bytes at most"),
    ({**HOUR, "spark": {"spark.jars": "x"}}, "spark.jars"),
]


def test_bad_schedules_are_refused_and_nothing_is_written(home: Catalog) -> None:
    for fields, sentence in REFUSED:
        error = error_of(home, "ann", "CreateSchedule", **{**NIGHTLY, **fields})
        assert isinstance(error, InvalidInputError) and sentence in str(error), (fields, error)
    missing = error_of(home, "ann", "CreateSchedule", **NIGHTLY, on_commit=[["s", "none"]])
    assert isinstance(missing, TableNotFoundError)
    assert home.owner.call("ListSchedules", {})["schedules"] == []
    create(home, **HOUR)
    assert isinstance(error_of(home, "ann", "CreateSchedule", **NIGHTLY, **HOUR), ConcurrentModificationError)
    assert "Nothing is altered" in str(error_of(home, "ann", "AlterSchedule", id=["s", "nightly"]))
    altered = home.as_("ann").call("AlterSchedule", {"id": ["s", "nightly"], "cron": "0 3 * * *", "catch_up": True})
    assert (altered["schedule"]["zone"], altered["schedule"]["catch_up"]) == ("UTC", True)
    assert "every_seconds" not in altered["schedule"]


def test_a_table_is_stale_once_it_is_older_than_it_may_be(home: Catalog) -> None:
    def ages(caller: str = "ann", **fields: Any) -> Any:
        return [(each["id"], each["stale"]) for each in home.as_(caller).call("ListTableAges", fields)["tables"]]

    def grow_older(seconds: float) -> None:
        ms = int(seconds * 1000)
        for change in ("table_versions SET created_at = created_at - ?", "tables SET updated_at = updated_at - ?"):
            home.store.transact(lambda work, change=change: work.connection.change(f"UPDATE {change}", ms))

    managed = {"id": ["s", "m"], "properties": {MANAGED: "true"}}
    home.owner.create_table(managed, ROWS_AS_STREAM)
    home.grant("ann", "read,alter,write", table=("s", "m"))
    assert ages() == []
    home.as_("ann").call("SetTableMaxAge", {"id": ["s", "m"], "max_age_seconds": 3600})
    grow_older(3590)
    assert (ages(), ages(stale=True), ages("eve")) == ([(["s", "m"], False)], [], [])
    grow_older(20)
    ctx = Context(home.owner._services, "schedules", principal=SERVER)
    note_stale_tables(ctx)
    assert (ages(), ages(table="s$m", stale=True)) == ([(["s", "m"], True)], [(["s", "m"], True)])
    [age] = home.store.list_table_ages()
    assert age.stale_since is not None
    home.owner.insert_into_table({"id": ["s", "m"]}, ROWS_AS_STREAM)
    note_stale_tables(ctx)
    assert (ages(), home.store.list_table_ages()[0].stale_since) == ([(["s", "m"], False)], None)
    home.owner.call("DropTable", {"id": ["s", "m"]})
    assert ages() == []
    home.owner.call("UndropTable", {"id": ["s", "m"]})
    assert ages() == [(["s", "m"], False)]
    home.as_("ann").call("SetTableMaxAge", {"id": ["s", "m"]})
    assert ages() == []
    for seconds in (1, -5, 1e12):
        assert "seconds old" in str(error_of(home, "ann", "SetTableMaxAge", id=["s", "m"], max_age_seconds=seconds))
    home.owner.create_table({"id": ["s", "own"], "properties": {MANAGED: "false"}}, ROWS_AS_STREAM)
    with pytest.raises(InvalidInputError, match="not managed"):
        home.owner.call("SetTableMaxAge", {"id": ["s", "own"], "max_age_seconds": 60})


def test_a_view_is_as_old_as_what_it_lacks() -> None:
    refreshed = TableAge(1, 1, 60_000, None, committed_at=0, refreshed_at=1_000_000, sources_at=999_000)
    assert (refreshed.age_ms(9_000_000), refreshed.is_stale(9_000_000)) == (0, False)
    behind = replace(refreshed, sources_at=1_000_001)
    assert [behind.is_stale(at) for at in (1_060_000, 1_060_001)] == [False, True]
    assert replace(refreshed, refreshed_at=None).age_ms(9) == 9
