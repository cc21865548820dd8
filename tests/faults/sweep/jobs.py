"""Jobs of the pipeline: the process of their driver is killed, with the catalog in it, and another one takes them over.

They are small: what Spark's tasks do for larger ones is done by threads of the driver, which commits in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import lance
import pyarrow as pa
import pyarrow.parquet as pq

import tiltyard
from tests.faults.sweep.installation import Installation, create_table, rows
from tests.faults.sweep.operation import SweptOperation
from tiltyard.pipeline.catalog_client import CatalogConnection, connection
from tiltyard.pipeline.driver.catalog_run import CatalogRun, claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.session import LazySession

Check = Callable[[list[dict[str, Any]]], None]


def start_no_session() -> NoReturn:
    raise AssertionError("this work is small, and needs no Spark")


def prepare(job: str, make: Callable[[Installation, tiltyard.Namespace], Mapping[str, object]]) -> Callable[..., None]:
    """Return what makes the tables of a job, and queues it with the arguments that `make` returns."""

    def run(installation: Installation) -> None:
        with installation.namespace() as namespace:
            arguments = make(installation, namespace)
        queued = submit_job(catalog_of(installation).caller(), find_job(job), arguments)
        (installation.folder / "job").write_text(queued.id)

    return run


def catalog_of(installation: Installation) -> CatalogConnection:
    return connection(str(installation.root), {"db": installation.url})


def drive(installation: Installation, begin: Callable[[], None] = lambda: None) -> None:
    """Drive the queued job to its end."""
    catalog, owner = catalog_of(installation), new_owner()
    calls = catalog.caller()
    job = claim_job(calls, (installation.folder / "job").read_text(), owner)
    run = CatalogRun(calls, job, owner)
    begin()
    assert drive_job(run, lambda: job.execute(run, catalog, LazySession(start_no_session))) is not None


def finish(table: str, version: int, expected: list[dict[str, Any]]) -> Callable[[Installation], None]:
    """Return what has another driver take the job over, and checks the table: committed whole or not, and once."""

    def run(installation: Installation) -> None:
        installation.expire_leases()
        number = (installation.folder / "job").read_text()
        [(status,)] = installation.sql(f"SELECT status FROM transactions WHERE id = '{number}'")
        if status != "Succeeded":
            drive(installation)
        assert installation.sql(f"SELECT status FROM transactions WHERE id = '{number}'") == [("Succeeded",)]
        [(location,)] = installation.sql(f"SELECT location FROM tables WHERE name = '{table}'")
        with installation.namespace() as namespace:
            assert namespace.count_table_rows({"id": [table]}).count == len(expected)
        dataset = lance.dataset(location)
        assert dataset.to_table().select(list(expected[0])).sort_by("id").to_pylist() == expected
        assert dataset.version == version, dataset.version

    return run


def write_source(installation: Installation, source: pa.Table) -> str:
    file = installation.folder / "source.parquet"
    pq.write_table(source, file)
    return str(file)


def make_ingest(installation: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    create_table(namespace, ["t"], 1)
    return {"source": write_source(installation, rows(2, 3)), "table": "t", "mode": "append"}


def make_upsert(installation: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    create_table(namespace, ["t"], 1, 2)
    source = pa.table({"id": pa.array([2, 3], pa.int64()), "value": pa.array([7, 7], pa.int64())})
    return {"source": write_source(installation, source), "table": "t", "on": ["id"]}


def row(number: int, value: int = 0) -> dict[str, int]:
    return {"id": number, "value": value}


JOBS: dict[str, SweptOperation] = {
    "job-ingest": SweptOperation(
        prepare("ingest", make_ingest), drive, finish("t", 2, [row(number) for number in (1, 2, 3)])
    ),
    "job-upsert": SweptOperation(prepare("upsert", make_upsert), drive, finish("t", 2, [row(1), row(2, 7), row(3, 7)])),
}
