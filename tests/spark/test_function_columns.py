"""Columns that registered functions compute: declared and refreshed by the stock lancedb client, computed in Spark."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError
from lancedb import col
from lancedb.exceptions import JobCancelledError
from lancedb.remote.errors import HttpError
from lancedb.secrets import EnvVarSecret

import tiltyard
from tests.access.scenes import Admin
from tests.functions import definitions
from tests.services.secured import Secured, kept_lines, secured_server
from tests.services.server import ServerProcess
from tests.spark.job_processes import wait_for
from tiltyard.pipeline.backfill import job as backfill
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.catalog_run import CatalogRun, QueuedJob, claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.jobs import find_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs/functions.md"
SECRET = "sk-0123456789abcdef"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    key = tmp_path_factory.mktemp("keys") / "secrets.key"
    key.write_text(base64.b64encode(os.urandom(32)).decode())
    environ = {"TILTYARD_SECRET_KEYS": f'["file:{key}"]', "TILTYARD_UDFS": "true"}
    with secured_server(tmp_path_factory.mktemp("functions"), environ=environ) as server:
        yield server


@pytest.fixture(scope="module")
def db(secured: Secured) -> Any:
    database = connect(secured, "administrator")
    database.create_namespace(["fn"])
    for definition in (definitions.twice, definitions.ratio, definitions.words, definitions.scale):
        database.create_function(definition, namespace_path=["fn"])
    return database


def connect(secured: Secured, name: str) -> Any:
    return lancedb.connect("db://tilt", api_key=secured.keys[name], host_override=secured.url)


def test_functions_are_listed_ready_made_and_registered(secured: Secured, db: Any) -> None:
    assert db is not None  # which registers them
    lake = tiltyard.connect(secured.url, api_key=secured.keys["administrator"])
    found = {each.name: each for each in lake.namespace("fn").functions()}
    assert (found["fn.twice"].kind, found["fn.twice"].version) == ("registered", "1")
    assert len(found["fn.twice"].digest) == 64 and found["embed_image"].kind == "ready-made"
    assert [each.name for each in lake.functions() if each.kind == "registered"] == []


@pytest.fixture
def drive(secured: Secured, spark: SparkSession) -> Callable[..., Any]:
    """Run a job as the driver of a worker does; return its result."""

    def run(job: Any) -> Any:
        catalog = connection(secured.url, {"header.x-api-key": secured.keys["administrator"]})
        client, owner = catalog.caller(), new_owner()
        claimed = claim_job(client, job.id, owner)
        lease = CatalogRun(client, claimed, owner)
        drive_job(lease, lambda: claimed.execute(lease, catalog, spark))
        return job.wait()

    return run


@pytest.fixture
def driven(secured: Secured, spark: SparkSession) -> Iterator[None]:
    """Run the jobs that are queued meanwhile, as a worker does."""
    catalog = connection(secured.url, {"header.x-api-key": secured.keys["administrator"]})
    client, stopping = catalog.caller(), threading.Event()

    def work() -> None:
        while not stopping.wait(0.1):
            owner = new_owner()
            response = client.call("ClaimJob", owner=owner, names=["backfill"])
            if job := response.get("job"):
                claimed = QueuedJob.from_response(job)
                lease = CatalogRun(client, claimed, owner)
                drive_job(lease, lambda job=claimed, lease=lease: job.execute(lease, catalog, spark))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stopping.set()
    thread.join()


@pytest.mark.usefixtures("driven")
def test_examples_of_the_page_run_one_after_the_other(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one makes a catalog in ./data
    names: dict[str, Any] = {"db": connect(secured, "administrator")}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for number, example in enumerate(examples):
        file = tmp_path / f"example{number}.py"  # udf reads the source of what it packs
        file.write_text(example)
        exec(compile(example, str(file), "exec"), names)
    assert len(examples) == 5


def function(db: Any, name: str) -> Any:
    return db.get_function(name, version="1", namespace_path=["fn"])


@pytest.fixture
def table(db: Any, fresh: Callable[[str], str]) -> Any:
    rows = pa.table({"x": pa.array([1, 2, 3, 4], pa.int64()), "y": pa.array([2, 0, 4, None], pa.int64())})
    return db.create_table(fresh("functions"), rows)


def values(table: Any, column: str) -> list[Any]:
    return sorted(table.search().limit(100).to_arrow()[column].to_pylist(), key=lambda v: (v is None, v))


def test_column_of_a_function_is_null_until_it_is_refreshed_and_fresh_for_new_rows(
    db: Any, table: Any, drive: Callable[..., Any]
) -> None:
    table.add_columns({"double": function(db, "twice")(x=col("x"))})
    assert values(table, "double") == [None] * 4
    result = drive(table.refresh_column_async("double"))
    assert (result.rows_assigned, result.rows_failed, result.rows_remaining) == (4, 0, 0)
    assert result.published_version == table.version and result.source_version < result.published_version
    assert values(table, "double") == [2, 4, 6, 8]
    again = drive(table.refresh_column_async("double"))
    assert (again.rows_assigned, again.published_version) == (0, None)
    table.add(pa.table({"x": pa.array([50], pa.int64()), "y": pa.array([1], pa.int64())}))
    assert drive(table.refresh_column_async("double")).rows_assigned == 1
    assert values(table, "double") == [2, 4, 6, 8, 100]
    for name in ("double", "twofold"):
        with pytest.raises(HttpError, match=name):
            db.drop_function("twice", version="1", namespace_path=["fn"])
        table.alter_columns({"path": "double", "rename": "twofold"}) if name == "double" else None


def test_rows_that_fail_are_null_recorded_and_tried_again(
    secured: Secured, db: Any, table: Any, drive: Callable[..., Any]
) -> None:
    client = connection(secured.url, {"header.x-api-key": secured.keys["administrator"]}).caller()
    table.add_columns({"r": function(db, "ratio")(x=col("x"), y=col("y"))})
    job = table.refresh_column_async("r")
    result = drive(job)
    assert (result.rows_assigned, result.rows_failed, result.rows_remaining) == (2, 2, 2)
    assert values(table, "r") == [0.5, 0.75, None, None]
    errors = table.function_errors(column="r")
    assert [(e.row_offset, e.error_type, e.function, e.function_version) for e in errors.records] == [
        (1, "ZeroDivisionError", "ratio", "1"),
        (3, "TypeError", "ratio", "1"),
    ]
    assert errors.records[0].job_id == job.id and not errors.truncated
    assert len(table.function_errors(job_id=job.id, limit=1).records) == 1
    assert table.function_errors(limit=1).truncated and table.function_errors(column="x").records == []
    again = drive(table.refresh_column_async("r"))
    assert (again.rows_assigned, again.rows_failed, again.published_version) == (0, 2, None)
    table.update(where="x = 2", values={"y": 1})
    assert drive(table.refresh_column_async("r")).rows_failed == 1
    assert values(table, "r") == [0.5, 0.75, 2.0, None]
    limits = {"batch_seconds": 300, "batch_mb": 1, "memory_mb": 4096, "retry_on": ["TypeError"], "retries": 1}
    for options, reason in (
        ({"on_error": "fail", **limits}, r"ratio failed on 1 of 1 rows: TypeError: .*_rowid = 3: with"),
        ({"requirements": ["numpy"]}, "whose definition says what it needs: leave requirements out"),
    ):
        arguments = {"table": table.name, "column": "r", **options}
        with pytest.raises(InvalidInputError, match=reason):
            drive(submit_job(client, find_job("backfill"), arguments))


def test_struct_fills_a_column_for_each_field_and_a_class_is_created_with_constants(
    db: Any, drive: Callable[..., Any], fresh: Callable[[str], str]
) -> None:
    table = db.create_table(fresh("texts"), pa.table({"text": ["Ab", "CDE"], "n": pa.array([1, 2], pa.int64())}))
    table.add_columns(function(db, "words")(text=col("text")).rename(columns={"low": "lower"}))
    table.add_columns({"scaled": function(db, "scale")(x=col("n"), factor=10.0)})
    for column, assigned in (("lower", 2), ("size", 0), ("scaled", 2)):  # one call fills all columns of a struct
        assert drive(table.refresh_column_async(column)).rows_assigned == assigned
    assert table.search().limit(9).to_arrow().select(["lower", "size", "scaled"]).to_pylist() == [
        {"lower": "ab", "size": 2, "scaled": 10.5},
        {"lower": "cde", "size": 3, "scaled": 20.5},
    ]
    table.add(pa.table({"text": ["f", None], "n": pa.array([3, 4], pa.int64())}))
    failed = drive(table.refresh_column_async("size"))
    assert (failed.rows_assigned, failed.rows_failed) == (1, 1)
    again = drive(table.refresh_column_async("lower"))
    assert (again.rows_assigned, again.rows_failed) == (0, 1)  # only what failed is tried again
    assert values(table, "lower") == ["ab", "cde", "f", None] and values(table, "size") == [1, 2, 3, None]


def test_function_fills_columns_of_a_branch(secured: Secured, table: Any, db: Any, drive: Callable[..., Any]) -> None:
    branch = table.branches.create("dev")
    branch.add_columns({"double": function(db, "twice")(x=col("x"))})
    branch.add(pa.table({"x": pa.array([50], pa.int64()), "y": pa.array([1], pa.int64())}))
    result = drive(branch.refresh_column_async("double"))
    assert (result.rows_assigned, result.published_version) == (5, branch.version)
    assert values(branch, "double") == [2, 4, 6, 8, 100]
    assert "double" not in table.schema.names


def test_secret_reaches_the_function_through_its_jobs_driver_alone(
    secured: Secured, db: Any, drive: Callable[..., Any], fresh: Callable[[str], str]
) -> None:
    db.create_secret("api", SECRET, namespace_path=["fn"])
    bound = db.create_function(
        definitions.greeting,
        namespace_path=["fn"],
        secrets=[EnvVarSecret("api", env_variable="API_KEY", secret_namespace_path=["fn"])],
    )
    table = db.create_table(fresh("names"), pa.table({"name": ["Ann", None]}))
    table.add_columns({"greeting": bound(name=col("name"))})
    job = table.refresh_column_async("greeting")
    drive(job)
    assert values(table, "greeting") == [f"hello Ann {SECRET}", f"hello None {SECRET}"]
    kept = kept_lines(Path(str(secured.server.root)) / "catalog.db")
    assert not [text for text in [*kept, *secured.server.log] if SECRET in text]
    with secured.http("administrator") as http:
        ended = http.post(f"/tiltyard/v1/job/{job.id}/function", json={"owner": "anybody"})
        assert (ended.status_code, ended.json()["code"]) == (409, 14)


def test_value_of_a_secret_is_not_written_once_its_registrant_has_lost_the_right(
    secured: Secured, db: Any, drive: Callable[..., Any], fresh: Callable[[str], str]
) -> None:
    name, grants, ann = fresh("team"), Admin(secured.http("administrator")), connect(secured, "ann")
    db.create_namespace([name])
    db.create_secret("api", SECRET, namespace_path=[name])
    grants.grant("ann", "all", [name])
    secrets = [EnvVarSecret("api", env_variable="API_KEY", secret_namespace_path=[name])]
    bound = ann.create_function(definitions.greeting, namespace_path=[name], secrets=secrets)
    table = ann.create_table("names", pa.table({"name": ["Ann"]}), namespace_path=[name])
    table.add_columns({"greeting": bound(name=col("name"))})
    grants.call(
        "RevokePrivileges",
        {"object_kind": "namespace", "id": [name], "grantee": "ann", "privileges": ["manage_secrets", "administer"]},
    )
    db.alter_secret("api", f"{SECRET}-new", namespace_path=[name])
    with pytest.raises(PermissionDeniedError, match="ann, who registered this function"):
        drive(table.refresh_column_async("greeting"))
    assert values(table, "greeting") == [None]
    grants.grant("ann", "manage_secrets", [name])
    drive(table.refresh_column_async("greeting"))
    assert values(table, "greeting") == [f"hello Ann {SECRET}-new"]


def test_values_of_a_registrant_who_loses_the_right_meanwhile_are_not_committed(
    secured: Secured,
    db: Any,
    drive: Callable[..., Any],
    fresh: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, grants, ann = fresh("team"), Admin(secured.http("administrator")), connect(secured, "ann")
    db.create_namespace([name])
    db.create_secret("api", SECRET, namespace_path=[name])
    grants.grant("ann", "all", [name])
    secrets = [EnvVarSecret("api", env_variable="API_KEY", secret_namespace_path=[name])]
    bound = ann.create_function(definitions.greeting, namespace_path=[name], secrets=secrets)
    table = ann.create_table("names", pa.table({"name": ["Ann"]}), namespace_path=[name])
    table.add_columns({"greeting": bound(name=col("name"))})
    run_tasks = backfill.run_tasks

    def revoke_and_run(*arguments: Any, **options: Any) -> Any:
        revoked = {"grantee": "ann", "privileges": ["manage_secrets", "administer"]}
        grants.call("RevokePrivileges", {"object_kind": "namespace", "id": [name], **revoked})
        return run_tasks(*arguments, **options)

    monkeypatch.setattr(backfill, "run_tasks", revoke_and_run)
    with pytest.raises(PermissionDeniedError, match="ann, who registered this function"):
        drive(table.refresh_column_async("greeting"))
    assert values(table, "greeting") == [None]


def test_function_runs_for_those_alone_who_may_run_it(
    secured: Secured, db: Any, drive: Callable[..., Any], fresh: Callable[[str], str]
) -> None:
    name, grants, ann = fresh("shared"), Admin(secured.http("administrator")), connect(secured, "ann")
    db.create_namespace([name])
    table = db.create_table("t", pa.table({"x": pa.array([1], pa.int64())}), namespace_path=[name])
    grants.grant("ann", "read,write,alter,run_udfs", [name])
    grants.grant("ann", "use", ["fn"])
    bound = function(db, "twice")(x=col("x"))
    hers = ann.open_table("t", namespace_path=[name])
    with pytest.raises(HttpError, match="run_udfs"):
        hers.add_columns({"double": bound})
    table.add_columns({"double": bound})
    job = hers.refresh_column_async("double")
    with pytest.raises(PermissionDeniedError, match="run_udfs"):
        drive(job)
    grants.grant("ann", "run_udfs", ["fn"])
    assert drive(hers.refresh_column_async("double")).rows_assigned == 1
    assert not hers.function_errors().records
    grants.call("SetTablePolicy", {"id": [name, "t"], "name": "some", "filter": "x > 1"})
    for call in (hers.function_errors, lambda: hers.refresh_column_async("double")):
        with pytest.raises(HttpError, match="403"):
            call()


def test_where_refreshes_the_rows_that_meet_it(
    secured: Secured, db: Any, table: Any, drive: Callable[..., Any]
) -> None:
    table.add_columns({"double": function(db, "twice")(x=col("x"))})
    with secured.http("administrator") as http:
        body = {"column": "double", "where": "x > 2", "concurrency": 2}
        job_id = http.post(f"/v1/table/{table.name}/backfill_column", json=body).json()["job_id"]
    drive(db.open_job(job_id))
    described = db.open_job(job_id).result
    assert described["rows_assigned"] == 2 and described["rows_remaining"] == 2
    assert values(table, "double") == [6, 8, None, None]


def test_sql_columns_are_declared_and_refreshed_by_both_clients(
    secured: Secured, table: Any, drive: Callable[..., Any]
) -> None:
    table.add_columns(computed={"total": "x + coalesce(y, 0)"})
    assert table.refresh_column_async("total").wait().rows_assigned == 4  # by the server's own worker
    assert values(table, "total") == [2, 3, 4, 7]

    async def run() -> str:
        key = secured.keys["administrator"]
        db = await lancedb.connect_async("db://tilt", api_key=key, host_override=secured.url)
        opened = await db.open_table(table.name)
        await opened.add_columns(computed={"more": "x + 1"})
        job = await opened.refresh_column_async("more")
        assert not (await opened.function_errors()).records
        return str(job.id)

    assert asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda f: f["application"]["function"].update(version="9"), 404),
        (lambda f: f["application"]["function"].update(manifest_digest="sha256:0"), 404),
        (lambda f: f["application"]["inputs"][0]["value"].update(path="none"), 404),
        (lambda f: f["application"]["inputs"][0]["value"].update(path="text"), 400),
        (lambda f: f["application"]["inputs"].clear(), 400),
        (lambda f: f["application"].update(initialization={"x": 1}), 400),
        (lambda f: f["outputs"][0].update(output_name="other"), 400),
        (lambda f: f["outputs"][0].update(result_field="other"), 400),
        (lambda f: f.update(binding_metadata_version=2), 406),
        (lambda f: f.pop("application"), 400),
    ],
)
def test_binding_that_does_not_fit_is_refused(
    secured: Secured, db: Any, fresh: Callable[[str], str], change: Callable[[Any], Any], status: int
) -> None:
    name, version = fresh("refused"), function(db, "twice")
    db.create_table(name, pa.table({"x": pa.array([1], pa.int64()), "text": ["a"]}))
    fields = {
        "application": {
            "function": {
                "name": "twice",
                "namespace_path": ["fn"],
                "object_id": version.object_id,
                "location": version.location,
                "version": "1",
                "manifest_digest": version.image.manifest_digest,
            },
            "inputs": [{"parameter": "x", "kind": "column", "value": {"path": "x"}}],
        },
        "outputs": [{"result_field": "$value", "output_name": "double", "output_ordinal": 0}],
        "binding_metadata_version": 1,
    }
    change(fields)
    with secured.http("administrator") as http:
        body = {"new_columns": [{"name": "double", "all_null": True}], "function": fields}
        response = http.post(f"/v1/table/{name}/add_columns", json=body)
    assert response.status_code == status, response.text


@pytest.mark.extended
@pytest.mark.timeout(400)  # it starts a server and the driver of its worker, with a JVM
def test_worker_of_a_server_runs_a_function_with_its_secret(
    tmp_path: Path, environ: dict[str, str], fresh: Callable[[str], str]
) -> None:
    settings = {
        "TILTYARD_UDFS": "true",
        "TILTYARD_SECRET_KEYS": '["env:FUNCTION_KEYS"]',
        "FUNCTION_KEYS": base64.b64encode(os.urandom(32)).decode(),
    }
    server = ServerProcess(tmp_path, "--spark", "local[1]", environ={**environ, **settings})
    try:
        db = lancedb.connect("db://tilt", api_key="any", host_override=server.url)
        db.create_namespace(["fn"])
        db.create_secret("api", SECRET, namespace_path=["fn"])
        secrets = [EnvVarSecret("api", env_variable="API_KEY", secret_namespace_path=["fn"])]
        bound = db.create_function(definitions.greeting, namespace_path=["fn"], secrets=secrets)
        table = db.create_table(fresh("names"), pa.table({"name": ["Ann", "Bo"]}))
        table.add_columns({"greeting": bound(name=col("name"))})
        job = table.refresh_column_async("greeting")
        assert job.wait().rows_assigned == 2
        assert values(table, "greeting") == [f"hello {name} {SECRET}" for name in ("Ann", "Bo")]
        files = [path for path in (tmp_path / "_spark-events").rglob("*") if path.is_file()]
        events = [path.read_text(errors="replace") for path in files]
        kept = kept_lines(tmp_path / "catalog.db")
        assert events and not [text for text in [*kept, *events, *server.log] if SECRET in text]
    finally:
        server.stop()


@pytest.mark.extended
@pytest.mark.usefixtures("driven")
def test_function_that_never_returns_ends_with_its_canceled_job(db: Any, table: Any) -> None:
    endless = db.create_function(definitions.forever, namespace_path=["fn"])
    table.add_columns({"never": endless(x=col("x"))})
    before = _hosts()
    job = table.refresh_column_async("never")
    wait_for(lambda: _hosts() - before, 120)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.wait()
    wait_for(lambda: not _hosts() - before, 60)


def _hosts() -> set[str]:
    """The processes that run functions."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if b"pipeline/functions/host.py" in path.read_bytes():
                found.add(path.parent.name)
    return found
