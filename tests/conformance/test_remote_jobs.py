"""Jobs as lancedb's remote client sees them: waited for, listed, canceled, paused, resumed, with their events."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import lancedb
import pyarrow as pa
import pytest
from lancedb.exceptions import JobCancelledError, JobFailedError, JobNotFoundError
from lancedb.index import BTree, LabelList
from lancedb.remote.errors import HttpError

from tests.services.server import ServerProcess
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.catalog_run import CatalogRun, claim_job, drive_job, new_owner

pytestmark = pytest.mark.parametrize("server", ["embedded"], indirect=True)

LONG = datetime.timedelta(minutes=2)
JOB = "export"


@pytest.fixture
def table(remote: Any, fresh: Callable[[str], str]) -> Any:
    return remote.create_table(fresh("t"), pa.table({"id": pa.array(range(100), pa.int64())}))


def submit(raw: Any, table: str, **fields: Any) -> str:
    """Submit a job of the pipeline, which no worker of this server runs."""
    arguments = {"table": table, "destination": "/tmp/none"}
    response = raw.post("/tiltyard/v1/job/submit", {"name": JOB, "table": [table], "arguments": arguments, **fields})
    assert response.status_code == 200, response.text
    return str(response.json()["job"]["id"])


def owned(raw: Any, job: str, call: str, **fields: Any) -> Any:
    response = raw.post(f"/tiltyard/v1/job/{job}/{call}", {"owner": "driver", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_an_index_build_is_waited_for_and_leaves_its_events(remote: Any, table: Any) -> None:
    job = table.create_index_async("id", config=BTree())
    job.wait(timeout=LONG)
    opened = remote.open_job(job.id)
    assert (opened.state, opened.job_type, opened.failure) == ("finished", "create_index", None)
    assert opened.spec["index_name"] == "id_idx"
    events = opened.events()
    assert events["state"].to_pylist() == ["queued", "claim", "claim_complete"]
    assert events["rows_processed"].to_pylist()[-1] == 100
    ended = opened.events(filter="state = 'claim_complete' AND emitted_from = 'worker'", limit=5)
    assert ended["job_status"].to_pylist() == ["Succeeded"]
    (listed,) = [info for info in remote.list_jobs() if info.job_id == job.id]
    assert (listed.table, listed.job_type, listed.state) == (table.name, "create_index", "finished")


def test_the_async_client_waits_too(server: ServerProcess, table: Any) -> None:
    async def run() -> tuple[str, int]:
        connection = await lancedb.connect_async("db://tests", api_key="none", host_override=server.url)
        opened = await connection.open_table(table.name)
        job = await opened.create_index_async("id", config=BTree())
        await job.wait(timeout=LONG)
        events = await job.events()
        dropped = await connection.drop_table_async(table.name)
        await dropped.wait(timeout=LONG)
        return (await connection.open_job(dropped.id)).job_type, events.num_rows

    assert asyncio.run(run()) == ("drop_table", 3)


def test_a_drop_is_a_job_that_has_ended(remote: Any, table: Any) -> None:
    job = remote.drop_table_async(table.name)
    job.wait(timeout=LONG)
    assert table.name not in remote.list_tables(limit=1000).tables
    assert remote.open_job(job.id).spec == {"table": table.name}


def test_a_failed_build_says_why_and_whether_a_retry_helps(raw: Any, remote: Any, table: Any) -> None:
    location = raw.post(f"/v1/table/{table.name}/describe").json()["location"]
    for file in Path(unquote(urlsplit(location).path)).glob("data/*.lance"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    job = table.create_index_async("id", config=BTree())
    with pytest.raises(JobFailedError, match="not appear to be a Lance file"):
        job.wait(timeout=LONG)
    failure = remote.open_job(job.id).failure
    assert (failure.phase, failure.retryable) == ("build", False)
    assert job.events(filter="job_status = 'Failed'")["message"].to_pylist() == [failure.message]
    (config,) = table.list_indices()
    assert config.name == "id_idx"
    with pytest.raises(HttpError, match="could not be built"):
        table.index_stats("id_idx")


def test_what_cannot_be_indexed_is_refused_at_the_request(remote: Any, fresh: Callable[[str], str]) -> None:
    nested = pa.array([[{"a": 1}]], pa.list_(pa.struct([("a", pa.int64())])))
    table = remote.create_table(fresh("t"), pa.table({"tags": nested, "id": pa.array([1], pa.int64())}))
    for column, config in (("tags", LabelList()), ("id", LabelList()), ("tags", BTree())):
        with pytest.raises(HttpError, match="needs a column") as refused:
            table.create_index_async(column, config=config)
        assert refused.value.status_code == 400


def test_cancel_ends_the_wait(raw: Any, remote: Any, table: Any) -> None:
    job = remote.open_job(submit(raw, table.name))
    assert job.state == "QUEUED"
    assert remote.cancel_job(job.id) is True
    with pytest.raises(JobCancelledError):
        job.wait(timeout=LONG)
    assert remote.cancel_job(job.id) is True  # it has ended: nothing to do
    assert remote.cancel_job("00000000-0000-0000-0000-000000000000") is False
    with pytest.raises(JobNotFoundError):
        remote.open_job("00000000-0000-0000-0000-000000000000")


def test_pause_of_a_queued_job_lasts_until_it_is_resumed(raw: Any, remote: Any, table: Any) -> None:
    job = submit(raw, table.name)
    claim = {"owner": "driver", "job_id": job}
    assert (remote.pause_job(job), remote.pause_job(job)) == ("pausing", "already_paused")
    assert remote.open_job(job).state == "PAUSED"
    assert raw.post("/tiltyard/v1/job/claim", claim).json() == {}
    assert (remote.resume_job(job), remote.resume_job(job)) == ("resumed", "not_paused")
    assert raw.post("/tiltyard/v1/job/claim", claim).json()["job"]["id"] == job
    words = remote.open_job(job).events()["state"].to_pylist()
    assert words == ["queued", "pause", "resume", "claim"]
    remote.cancel_job(job)


def test_pause_of_a_running_job_takes_effect_at_its_checkpoint(raw: Any, remote: Any, table: Any) -> None:
    job = submit(raw, table.name, owner="driver")
    assert owned(raw, job, "keep", name="a", value="1") == {}
    assert remote.pause_job(job) == "pausing"
    assert remote.open_job(job).state == "PAUSING"
    assert owned(raw, job, "keep", name="b", value="2") == {"paused": True}
    owned(raw, job, "finish", status="Queued")
    assert remote.open_job(job).state == "PAUSED"
    assert remote.resume_job(job) == "resumed"
    claimed = raw.post("/tiltyard/v1/job/claim", {"owner": "driver", "job_id": job}).json()["job"]
    assert claimed["attempts"] == 1  # a pause uses up no attempt
    parts = raw.post(f"/tiltyard/v1/job/{job}/parts", {}).json()["parts"]
    assert parts == {"a": "1", "b": "2"}
    owned(raw, job, "finish", status="Succeeded", properties={"rows": "7"})
    done = remote.open_job(job)
    assert (done.state, done.result["rows"]) == ("finished", "7")
    with pytest.raises(HttpError, match="has ended") as refused:
        remote.pause_job(job)
    assert refused.value.status_code == 400


def test_a_driver_releases_a_paused_job_and_the_next_one_resumes_it(
    server: ServerProcess, raw: Any, remote: Any, table: Any
) -> None:
    client, owner = connection(server.url, {}).caller(), new_owner()
    job = submit(raw, table.name)
    run = CatalogRun(client, claim_job(client, job, owner), owner)

    def work() -> Mapping[str, object]:
        run.save_checkpoint("a", "1")
        remote.pause_job(job)
        run.save_checkpoint("b", "2")
        raise AssertionError("it goes on although it is paused")

    assert drive_job(run, work) is None
    assert remote.open_job(job).state == "PAUSED"
    remote.resume_job(job)
    owner = new_owner()
    resumed = CatalogRun(client, claim_job(client, job, owner), owner)
    assert resumed.checkpoints() == {"a": "1", "b": "2"}
    assert drive_job(resumed, lambda: {"rows": 3}) is not None
    words = remote.open_job(job).events()["state"].to_pylist()
    assert words == ["queued", "claim", "pause", "claim_complete", "resume", "claim", "claim_complete"]


def test_a_transient_failure_may_be_retried(raw: Any, remote: Any, table: Any) -> None:
    job = submit(raw, table.name, owner="driver")
    owned(raw, job, "finish", status="Failed", error="no answer", properties={"retryable": "true", "stage": "commit"})
    failure = remote.open_job(job).failure
    assert (failure.phase, failure.message, failure.retryable) == ("commit", "no answer", True)


def test_list_jobs_pages_and_filters(raw: Any, table: Any) -> None:
    jobs = [submit(raw, table.name) for _ in range(5)]
    raw.post("/v1/jobs/pause", {"job_id": jobs[0]})
    listed: list[str] = []
    token = None
    while True:
        page = raw.post("/v1/jobs/list", {"table": table.name, "limit": 2, "page_token": token}).json()
        listed += [job["job_id"] for job in page["jobs"]]
        if not (token := page.get("page_token")):
            break
    assert sorted(listed) == sorted(jobs)
    paused = raw.post("/v1/jobs/list", {"table": table.name, "state": "PAUSED"}).json()["jobs"]
    assert [job["job_id"] for job in paused] == [jobs[0]]
    assert raw.post("/v1/jobs/list", {"table": table.name, "job_type": "ingest"}).json()["jobs"] == []


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("list", {"state": "gone"}),
        ("list", {"job_type": "none"}),
        ("list", {"page_token": "x"}),
        ("describe", {}),
        ("describe", {"job_id": 7}),
        ("pause", {}),
        ("query_events", {"job_id": "x", "limit": 0}),
        ("query_events", {"job_id": "x", "limit": 10_001}),
        ("query_events", {"job_id": "x", "filter": "state = state"}),
        ("query_events", {"job_id": "x", "filter": "password = 'x'"}),
        ("query_events", {"job_id": "x", "filter": "state = 'a' AND (SELECT 1) = 1"}),
        ("query_events", {"job_id": "x", "filter": "upper(state) = 'A'"}),
        ("query_events", {"job_id": "x", "filter": "state = "}),
        ("query_events", {"job_id": "x", "filter": "state = 'a' OR " * 400 + "state = 'a'"}),
    ],
)
def test_bad_input_is_refused(raw: Any, call: str, body: Any) -> None:
    response = raw.post(f"/v1/jobs/{call}", body)
    assert response.status_code == 400, response.text
