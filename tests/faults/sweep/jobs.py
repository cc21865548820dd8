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
from tests.faults.sweep.installation import Installation, check_collected, create_table, insert, rows
from tests.faults.sweep.operation import Begin, SweptOperation
from tiltyard.pipeline.catalog_client import CatalogConnection, connection
from tiltyard.pipeline.driver.catalog_run import CatalogRun, claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.session import LazySession

Content = list[dict[str, Any]]
Check = Callable[[lance.LanceDataset], None]


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
    return connection(installation.root, {"db": installation.url})


def drive(installation: Installation, begin: Begin = lambda: None, session: LazySession | None = None) -> None:
    """Drive the queued job to its end, without Spark if there is no session."""
    catalog, owner, spark = catalog_of(installation), new_owner(), session or LazySession(start_no_session)
    calls = catalog.caller()
    job = claim_job(calls, (installation.folder / "job").read_text(), owner)
    run = CatalogRun(calls, job, owner)
    begin()
    assert drive_job(run, lambda: job.execute(run, catalog, spark)) is not None


def find_status(installation: Installation) -> str:
    """Return the status of the job."""
    number = (installation.folder / "job").read_text()
    [(status,)] = installation.sql(f"SELECT status FROM transactions WHERE id = '{number}'")
    return str(status)


def finish(
    table: str, expected: Content, check: Check = lambda _: None, drive: Callable[[Installation], None] = drive
) -> Callable[[Installation], None]:
    """Return what has another driver take the job over, and checks that the table is as if there had been no kill.

    Then a collection removes all files but those that versions need.
    """

    def run(installation: Installation) -> None:
        installation.expire_leases()
        if find_status(installation) != "Succeeded":
            drive(installation)
        assert find_status(installation) == "Succeeded"
        with installation.namespace() as namespace:
            assert namespace.count_table_rows({"id": [table]}).count == len(expected)
        dataset = lance.dataset(installation.location(table))
        assert dataset.to_table(columns=list(expected[0])).sort_by("id").to_pylist() == expected
        check(dataset)
        check_collected(installation, table)

    return run


def of_version(version: int) -> Check:
    """Return the check that a table was committed once since it was prepared."""

    def check(dataset: lance.LanceDataset) -> None:
        assert dataset.version == version, dataset.version

    return check


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


def make_stream(installation: Installation, _: tiltyard.Namespace) -> Mapping[str, object]:
    """A stream of three files, a batch each; a row of the last does not fit."""
    folder = installation.folder / "landing"
    folder.mkdir()
    for number, lines in enumerate(
        (b'{"id": 1}\n{"id": 2}\n', b'{"id": 2, "value": 7}\n', b'{"id": 3}\n{"id": "x"}\n')
    ):
        (folder / f"{number}.jsonl").write_bytes(lines)
    options = {"on": ["id"], "batch_rows": 2, "available_now": True, "rejects": str(installation.folder / "rejects")}
    return {"source": str(folder), "table": "t", **options}


def finish_stream(installation: Installation) -> None:
    """Each row is there by its key, and each rejected one is in a file, once."""
    finish("t", [row(1, None), row(2, 7), row(3, None)])(installation)
    rejects = [line for file in (installation.folder / "rejects").iterdir() for line in file.read_text().splitlines()]
    assert len(rejects) == 1, rejects


def make_delete(_: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    create_table(namespace, ["t"], 1, 2)
    insert(namespace, ["t"], 3, 4)
    return {"table": "t", "filter": "id > 1 AND id < 4"}


def row(number: int, value: int | None = 0) -> dict[str, int | None]:
    return {"id": number, "value": value}


INGESTED, UPSERTED = [row(each) for each in (1, 2, 3)], [row(1), row(2, 7), row(3, 7)]
JOBS: dict[str, SweptOperation] = {
    "job-ingest": SweptOperation(prepare("ingest", make_ingest), drive, finish("t", INGESTED, of_version(2))),
    "job-upsert": SweptOperation(prepare("upsert", make_upsert), drive, finish("t", UPSERTED, of_version(2))),
    "job-delete": SweptOperation(prepare("delete", make_delete), drive, finish("t", [row(1), row(4)], of_version(3))),
    "job-stream": SweptOperation(prepare("stream", make_stream), drive, finish_stream),
}
