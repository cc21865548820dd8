"""`tiltyard maintain`: find the tables that need a job, and queue it once."""

from __future__ import annotations

from collections.abc import Callable

import lance
import pyarrow as pa
import pytest

from tests.services.forked_process import run_tiltyard
from tests.services.server import ServerProcess
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.operation_client import OperationClient
from tiltyard.pipeline.optimize.maintenance import Thresholds, queue_needed_jobs


@pytest.fixture
def calls(shared_server: ServerProcess) -> OperationClient:
    return OperationClient(connection(shared_server.url))


def write(calls: OperationClient, name: str, times: int) -> None:
    """A table of as many fragments, each of ten rows."""
    client = calls.connection.client()
    for time in range(times):
        rows = pa.table({"id": pa.array(range(time * 10, time * 10 + 10))})
        mode = "append" if time else "create"
        lance.write_dataset(rows, namespace_client=client, table_id=[name], mode=mode)


def test_maintain_finds_small_fragments_and_queues_optimize_once(
    calls: OperationClient, fresh: Callable[[str], str]
) -> None:
    many, few = fresh("many"), fresh("few")
    write(calls, many, 4)
    write(calls, few, 1)
    thresholds = Thresholds(small_fragments=4)
    (needed,) = queue_needed_jobs(calls, [many, few], thresholds, dry_run=True)
    assert (needed.table, needed.job, needed.reason, needed.job_id) == (many, "optimize", "4 small fragments", "")
    (queued,) = queue_needed_jobs(calls, [many, few], thresholds)
    job = calls.call("DescribeJob", id=[queued.job_id])["job"]
    assert (job["name"], job["table"], job["properties"]["why"]) == ("optimize", [many], "4 small fragments")
    (repeated,) = queue_needed_jobs(calls, [many, few], thresholds)
    assert repeated.was_queued and repeated.job_id == queued.job_id
    everything = [needed.table for needed in queue_needed_jobs(calls, [], thresholds)]
    assert many in everything and few not in everything


def test_maintain_command_without_anything_to_do_says_so(
    shared_server: ServerProcess, calls: OperationClient, fresh: Callable[[str], str]
) -> None:
    name = fresh("fine")
    write(calls, name, 1)
    done = run_tiltyard("maintain", name, "--uri", shared_server.url)
    assert (done.returncode, done.stdout) == (0, "No table needs a job.\n")


def test_maintain_command_of_a_table_that_is_not_there_is_one_sentence(shared_server: ServerProcess) -> None:
    done = run_tiltyard("maintain", "nowhere", "--uri", shared_server.url)
    assert (done.returncode, done.stdout) == (4, "") and "nowhere" in done.stderr
