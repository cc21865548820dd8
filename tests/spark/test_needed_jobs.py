"""`tiltyard maintain`: find the tables that need a job, and queue it once."""

from __future__ import annotations

from collections.abc import Callable

import lance
import pyarrow as pa
import pytest

from tests.services.forked_process import run_tiltyard
from tests.services.server import ServerProcess
from tiltyard.calls.caller import Caller
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.optimize.needed_jobs import Thresholds, queue_needed_jobs


@pytest.fixture
def calls(shared_server: ServerProcess) -> Caller:
    return connection(shared_server.url).caller()


def write(calls: Caller, name: str, times: int) -> None:
    """A table of as many fragments, each of ten rows."""
    client = connection(calls.address).client()
    for time in range(times):
        rows = pa.table({"id": pa.array(range(time * 10, time * 10 + 10))})
        mode = "append" if time else "create"
        lance.write_dataset(rows, namespace_client=client, table_id=[name], mode=mode)


def test_maintain_finds_small_fragments_and_queues_optimize_once(calls: Caller, fresh: Callable[[str], str]) -> None:
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
    shared_server: ServerProcess, calls: Caller, fresh: Callable[[str], str]
) -> None:
    name = fresh("fine")
    write(calls, name, 1)
    done = run_tiltyard("maintain", name, "--uri", shared_server.url)
    assert (done.returncode, done.stdout) == (0, "No table needs a job.\n")


def test_maintain_command_of_a_table_that_is_not_there_is_one_sentence(shared_server: ServerProcess) -> None:
    done = run_tiltyard("maintain", "nowhere", "--uri", shared_server.url)
    assert (done.returncode, done.stdout) == (4, "") and "nowhere" in done.stderr


def test_maintain_follows_the_properties_of_tables(calls: Caller, fresh: Callable[[str], str]) -> None:
    off, few = fresh("off"), fresh("few")
    for name, properties in ((off, {"tiltyard.upkeep": "off"}), (few, {"tiltyard.upkeep.small_fragments": "3"})):
        write(calls, name, 3)
        calls.call("UpdateTable", id=[name], properties=properties, updates=[])
    everything = {needed.table: needed.reason for needed in queue_needed_jobs(calls, [], Thresholds(2), dry_run=True)}
    assert off not in everything and everything[few] == "3 small fragments"
    named = queue_needed_jobs(calls, [off, few], Thresholds(), dry_run=True)
    assert [(needed.table, needed.reason) for needed in named] == [(few, "3 small fragments")]
    assert [needed.table for needed in queue_needed_jobs(calls, [off], Thresholds(3), dry_run=True)] == [off]


def test_maintain_counts_the_rows_that_an_index_lacks_and_deleted_ones(
    calls: Caller, fresh: Callable[[str], str]
) -> None:
    name = fresh("grown")
    write(calls, name, 1)
    table = lance.dataset(namespace_client=connection(calls.address).client(), table_id=[name])
    table.create_scalar_index("id", "BTREE", name="ids")
    table.insert(pa.table({"id": range(999)}))
    assert [*queue_needed_jobs(calls, [name], Thresholds(), dry_run=True)] == []
    (by_share,) = queue_needed_jobs(calls, [name], Thresholds(unindexed=0.5), dry_run=True)
    assert by_share.reason == "the index ids lacks 999 rows"
    table.insert(pa.table({"id": [-1]}))
    (by_rows,) = queue_needed_jobs(calls, [name], Thresholds(), dry_run=True)
    assert by_rows.reason == "the index ids lacks 1000 rows"
    table.delete("id > 700")
    (worn,) = queue_needed_jobs(calls, [name], Thresholds(unindexed=1), dry_run=True)
    assert worn.reason == "fragments with many deleted rows"
