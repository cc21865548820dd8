"""A job is bound to a table, not to its name: tables are renamed, dropped and created again while jobs wait or run."""

from __future__ import annotations

from collections.abc import Callable

import lance_namespace as upstream
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableNotFoundError,
)

from tests.spark.views import contents, numbers, write
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.driver.catalog_run import CatalogRun, QueuedJob, claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.writing.target_table import WriteMode, prepare_target

Fresh = Callable[[str], str]


class Watched(CatalogRun):
    """A run in which something happens as soon as it has kept something."""

    happens: Callable[[], None] | None = None

    def save_checkpoint(self, key: str, value: str) -> None:
        """Keep, and then let it happen, once."""
        super().save_checkpoint(key, value)
        if happens := self.happens:
            self.happens = None
            happens()


@pytest.fixture
def films(catalog: CatalogConnection, fresh: Fresh) -> str:
    name = fresh("films")
    write(catalog, name, numbers(0, 10))
    return name


def rename(catalog: CatalogConnection, old: str, new: str) -> None:
    catalog.client().rename_table(upstream.RenameTableRequest(id=[old], new_table_name=new))


def exchange(catalog: CatalogConnection, name: str, new: str) -> None:
    """Give the table another name, and its name to another table."""
    rename(catalog, name, new)
    write(catalog, name, numbers(100, 110))


def queued(catalog: CatalogConnection, name: str) -> str:
    return submit_job(catalog.caller(), find_job("delete"), {"table": name, "where": "id % 2 = 1"}).id


def driven(catalog: CatalogConnection, job_id: str, happens: Callable[[], None] | None = None) -> dict[str, str] | None:
    """The figures of a job, driven here, without Spark: it is small."""
    owner, calls = new_owner(), catalog.caller()
    job: QueuedJob = claim_job(calls, job_id, owner)
    run = Watched(calls, job, owner)
    run.happens = happens
    try:
        return drive_job(run, lambda: job.execute(run, catalog, None), attempts=job.attempts)
    finally:
        run.close()


def status(catalog: CatalogConnection, job_id: str) -> str:
    return str(catalog.caller().call("DescribeJob", id=[job_id])["job"]["status"])


def test_job_whose_table_is_renamed_while_it_waits_is_of_that_table(catalog: CatalogConnection, films: str) -> None:
    job_id, movies = queued(catalog, films), f"{films}_renamed"
    exchange(catalog, films, movies)
    assert (driven(catalog, job_id) or {})["rows"] == "5"
    assert contents(catalog, movies)["id"].to_pylist() == [0, 2, 4, 6, 8]
    assert contents(catalog, films).equals(numbers(100, 110))


def test_job_whose_table_is_renamed_while_it_runs_stops_and_goes_on_under_the_new_name(
    catalog: CatalogConnection, films: str
) -> None:
    job_id, movies = queued(catalog, films), f"{films}_renamed"
    with pytest.raises(ConcurrentModificationError, match="renamed or dropped meanwhile"):
        driven(catalog, job_id, lambda: exchange(catalog, films, movies))
    assert contents(catalog, movies).equals(numbers(0, 10))
    assert contents(catalog, films).equals(numbers(100, 110))
    assert status(catalog, job_id) == "Queued"
    assert (driven(catalog, job_id) or {})["rows"] == "5"
    assert (contents(catalog, movies).num_rows, contents(catalog, films).num_rows) == (5, 10)


def test_job_whose_table_is_dropped_while_it_waits_touches_no_other_of_its_name(
    catalog: CatalogConnection, films: str
) -> None:
    job_id = queued(catalog, films)
    catalog.client().drop_table(upstream.DropTableRequest(id=[films]))
    write(catalog, films, numbers(100, 110))
    with pytest.raises(LanceNamespaceError) as raised:
        driven(catalog, job_id)
    assert isinstance(raised.value, TableNotFoundError | InvalidTableStateError)
    assert status(catalog, job_id) == "Canceled"
    assert contents(catalog, films).equals(numbers(100, 110))


def test_land_again_where_the_table_is_another_by_now_is_refused(catalog: CatalogConnection, fresh: Fresh) -> None:
    name, run = fresh("made"), LocalRun()
    declared = prepare_target(run, table(catalog, name), WriteMode.CREATE)
    assert prepare_target(run, table(catalog, name), WriteMode.CREATE).location == declared.location
    rename(catalog, name, f"{name}_renamed")
    with pytest.raises(InvalidTableStateError, match="submit the job again"):
        prepare_target(run, table(catalog, name), WriteMode.CREATE)
    write(catalog, name, pa.table({"id": [1]}))
    with pytest.raises(InvalidTableStateError, match="submit the job again"):
        prepare_target(run, table(catalog, name), WriteMode.CREATE)
