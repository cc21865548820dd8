"""An erased value is nowhere: not in versions, branches, indexes, clones or dropped tables; the report proves it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import msgspec
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    TableColumnNotFoundError,
    TransactionNotFoundError,
)
from tests.services.s3 import s3_server
from tests.tables.bodies import small
from tests.tables.served import Server, ask

import tiltyard
from tiltyard.catalog.tables import deregister_table, drop_table
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import Id
from tiltyard.model.jobs import JOBS, Job
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.model.spec import models
from tiltyard.store import Protection
from tiltyard.store.tables.erasures import ERASE
from tiltyard.store.tables.lineage import LineageRecord
from tiltyard.tables.erasure import operations
from tiltyard.tables.erasure.byte_search import search_file
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.update_delete import delete_from_table, update_table
from tiltyard.tables.versions import clone
from tiltyard.tables.versions.branches import create_table_branch
from tiltyard.tables.versions.snapshots import create_snapshot
from tiltyard.tables.versions.tags import create_table_tag
from tiltyard.tables.views.materialized_views import create_materialized_view
from tiltyard.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.store import TableRecord

VALUE = "zq7-erased-value@example.org"
NUMBER = 987_654_321_012_345
SHARED = "a city that others have"
WHERE = "user = 7"


def people(first: int, end: int) -> pa.Table:
    """Return rows of users, of whom the one with the number 7 has the values that are erased."""
    users = range(first, end)
    return pa.table(
        {
            "user": pa.array(users, pa.int64()),
            "mail": [VALUE if user == 7 else f"user{user}@example.org" for user in users],
            "phone": pa.array([NUMBER if user == 7 else user for user in users], pa.int64()),
            "about": [f"has the words {VALUE if user == 7 else 'of others'}" for user in users],
            "city": [SHARED] * len(users),
        }
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    running = Server(tmp_path / "root", gc_safety_days=0.0)
    yield running
    running.services.close()


def add(server: Server, name: str, rows: pa.Table, *, managed: bool = True) -> TableRecord:
    location = server.services.storage.new_location(Id((name,)))
    lance.write_dataset(rows, location)
    return server.services.store.insert_table((name,), location, {}, managed=managed)


def request(server: Server, **fields: Any) -> str:
    wish = {"id": "people", "predicate": WHERE, "values_of": ["mail", "phone", "about", "city"], **fields}
    return str(operations.erase_from_table(server.ctx, ask(models.EraseFromTableRequest, **wish)).erasure_id)


def erase(server: Server, **fields: Any) -> dict[str, Any]:
    """Erase, as a worker does; return the report."""
    number = request(server, **fields)
    assert server.run_jobs() == ["Succeeded"]
    return report_of(server, number)


def report_of(server: Server, number: str) -> dict[str, Any]:
    found = operations.describe_erasure(server.ctx, models.DescribeErasureRequest(erasure_id=number))
    assert found.signature_is_valid and found.report is not None
    report: dict[str, Any] = json.loads(found.report)
    assert report["outcome"] == found.erasure.outcome
    return report


def files_with(root: Path, *values: bytes) -> list[str]:
    files = [path for path in root.rglob("*") if path.is_file()]  # the catalog's database and its log, too
    return [str(path.relative_to(root)) for path in files if any(value in path.read_bytes() for value in values)]


def root_of(server: Server) -> Path:
    return Path(server.services.storage.root)


def planted(server: Server) -> list[str]:
    return files_with(root_of(server), VALUE.encode(), NUMBER.to_bytes(8, "little"))


def index(table: TableRecord, branch: str | None = None) -> None:
    dataset = lance.dataset(table.location)
    if branch:
        dataset = dataset.checkout_version((branch, None))
    dataset.create_scalar_index("mail", "BTREE", name="by_mail")
    dataset.create_scalar_index("about", "INVERTED", name="words")


@pytest.mark.parametrize("managed", [True, False])
def test_an_erased_value_is_nowhere_afterwards(catalog: Server, managed: bool) -> None:
    earlier = add(catalog, "people", people(0, 20))
    drop_table(catalog.ctx, ask(models.DropTableRequest, id="people"))
    table = add(catalog, "people", people(20, 40), managed=managed)
    create_table_tag(catalog.ctx, ask(models.CreateTableTagRequest, id="people", tag="before", version=1))
    lance.dataset(table.location).insert(people(0, 20))
    index(table)
    lance.dataset(table.location).create_branch("try", (None, None)).insert(people(40, 60))
    index(table, "try")
    lance.dataset(table.location).update({"city": f"'{SHARED}'"}, WHERE)
    clone.clone_table(catalog.ctx, ask(models.CloneTableRequest, id="copy", source_location=table.location))
    assert len(planted(catalog)) > 5
    report = erase(catalog)
    assert report["unresolved"] == [] and report["outcome"] == "complete"
    assert report["found"] == [] and planted(catalog) == []
    assert not Path(earlier.location).exists() and len(report["dropped_tables_ended"]) == 1
    copy, own = report["tables"]
    assert (copy["name"], copy["kind"], own["name"], own["kind"]) == ("copy", "clone", "people", "table")
    assert own["rows"] == 2 and own["versions_ended"] > 3 and own["rows_left"] == 0
    assert set(own["indexes_rebuilt"]) == {"by_mail", "words", "try: by_mail", "try: words"}
    assert report["values"]["held_by_other_rows"] == 1 and len(report["values"]["searched"]) == 3
    for name, branch, rows in (("people", None, 39), ("people", "try", 59), ("copy", None, 39)):
        dataset = catalog.open(name).checkout_version((branch, None))
        assert dataset.count_rows() == rows and dataset.count_rows("mail = 'user3@example.org'") == 1
        assert dataset.to_table(full_text_query="words").num_rows == rows
    kept = catalog.open("people").checkout_version("before")
    assert kept.version == 1 and kept.to_table().num_rows == 20


def test_the_report_has_neither_values_nor_the_condition_and_the_plan_is_gone(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    number = request(catalog, reference="request 4711", predicate=f"mail = '{VALUE}'")
    store = catalog.services.store
    assert VALUE in store.find_erasure(number).plan
    assert catalog.run_jobs() == ["Succeeded"]
    ended = store.find_erasure(number)
    assert ended.plan == "" and VALUE not in ended.report and str(NUMBER) not in ended.report
    report = report_of(catalog, number)
    assert report["reference"] == "request 4711" and any("Backups" in line for line in report["to_check_by_hand"])
    [entry] = operations.list_erasures(catalog.ctx, models.ListErasuresRequest()).erasures
    assert (entry.id, entry.outcome, entry.table) == (number, "complete", ["people"])
    assert planted(catalog) == []  # no transaction or manifest has the condition


def test_a_changed_report_has_no_valid_signature(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    number = request(catalog)
    catalog.run_jobs()
    erasure = catalog.services.store.find_erasure(number)
    assert operations.is_signed(catalog.ctx, erasure)
    changed = type(erasure)(**{**{name: getattr(erasure, name) for name in erasure.__struct_fields__}, "report": "{}"})
    assert not operations.is_signed(catalog.ctx, changed)


def state(root: Path) -> Mapping[str, float]:
    return {str(path): path.stat().st_mtime for path in root.rglob("*") if path.is_file() and ".db" not in path.name}


def test_tags_snapshots_and_holds_are_named_and_nothing_is_changed(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    create_table_tag(catalog.ctx, ask(models.CreateTableTagRequest, id="people", tag="release", version=1))
    create_snapshot(catalog.ctx, ask(models.CreateSnapshotRequest, name="audit", tables=[["people"]]))
    before = state(root_of(catalog))
    with pytest.raises(InvalidInputError, match=r"the snapshot 'audit' of people .*; the tag 'release' of people"):
        request(catalog)
    hold = Protection("table", table.id, "hold", "", "case 1", "ann", 0)
    catalog.services.store.set_protection(hold)
    with pytest.raises(PermissionDeniedError, match=r"legal hold \(set by ann: case 1\)"):
        request(catalog, end_protected=True)
    assert state(root_of(catalog)) == before
    assert catalog.services.store.list_erasures(None, 9) == []
    catalog.services.store.lift_protection("table", table.id, "hold")
    report = erase(catalog, end_protected=True)
    assert report["outcome"] == "complete" and planted(catalog) == []
    assert report["tables"][0]["tags_ended"] == ["release"] and report["tables"][0]["snapshots_ended"] == ["audit"]
    assert catalog.services.store.find_snapshot("audit") is None


def test_a_branch_or_a_clone_with_another_name_of_the_column_is_named_and_nothing_is_changed(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    create_table_branch(catalog.ctx, ask(models.CreateTableBranchRequest, id="people", name="old_names"))
    lance.dataset(table.location).alter_columns({"path": "user", "name": "number"})
    with pytest.raises(InvalidInputError, match=r"the branch 'old_names' of people: .*number.* Nothing was changed"):
        request(catalog, predicate="number = 7")
    lance.dataset(table.location).branches.delete("old_names")
    clone.clone_table(catalog.ctx, ask(models.CloneTableRequest, id="copy", source_location=table.location))
    copy = next(root_of(catalog).glob("copy-*"))
    lance.dataset(copy).alter_columns({"path": "number", "name": "user"})
    with pytest.raises(InvalidInputError, match=r"the branch 'main' of copy: .*number.* Nothing was changed"):
        request(catalog, predicate="number = 7")
    assert lance.dataset(table.location).count_rows("number = 7") == 1


def test_a_branch_on_which_another_column_has_the_name_makes_the_outcome_incomplete(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    create_table_branch(catalog.ctx, ask(models.CreateTableBranchRequest, id="people", name="old_names"))
    for name, other in (("user", "old"), ("phone", "user"), ("old", "phone")):
        lance.dataset(table.location).alter_columns({"path": name, "name": other})
    report = erase(catalog, predicate=f"user = {NUMBER}", values_of=["mail"])
    assert report["outcome"] == "incomplete" and report["tables"][0]["rows"] == 1
    assert "people: 'user' on the branch 'old_names' (version 1) is not the column" in report["unresolved"][0]


def test_a_dropped_table_under_a_hold_is_refused_by_name(catalog: Server) -> None:
    earlier = add(catalog, "people", people(0, 20))
    drop_table(catalog.ctx, ask(models.DropTableRequest, id="people"))
    add(catalog, "people", people(0, 20))
    catalog.services.store.set_protection(Protection("table", earlier.id, "hold", "", "case 2", "ann", 0))
    with pytest.raises(PermissionDeniedError, match="The dropped table people"):
        request(catalog)


def test_a_deregistered_table_with_the_rows_is_refused_by_name(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    deregister_table(catalog.ctx, ask(models.DeregisterTableRequest, id="people"))
    add(catalog, "people", people(0, 20))
    before = state(root_of(catalog))
    with pytest.raises(InvalidInputError, match="people was deregistered, and has these rows"):
        request(catalog)
    assert state(root_of(catalog)) == before


def test_in_python_an_erasure_is_a_run_and_its_report_is_read_again(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    lake = tiltyard.connect(root_of(catalog))
    run = lake.table("people").erase(WHERE, values_of="mail,phone", reference="request 4711", wait=False)
    assert [each.outcome for each in lake.erasures()] == ["running"] and lake.erasure(run.id).report() is None
    assert catalog.run_jobs() == ["Succeeded"]
    report = lake.erasure(run.id).report()
    assert run.wait().status == "Succeeded" and report is not None
    assert (report["outcome"], report["reference"]) == ("complete", "request 4711")


@pytest.mark.extended
def test_on_an_object_store_an_erased_value_is_nowhere_either(tmp_path: Path) -> None:
    with s3_server() as objects:
        settings: dict[str, Any] = {"storage_options": objects.options, "gc_safety_days": 0.0}
        root: Any = f"{objects.new_bucket('erasure')}/tables"
        server = Server(root, db=f"sqlite:///{tmp_path}/catalog.db", **settings)
        try:
            storage, store = server.services.storage, server.services.store
            location = storage.new_location(Id(("people",)))
            dataset = lance.write_dataset(people(0, 20), location, storage_options=objects.options)
            dataset.insert(people(20, 40))
            dataset.create_scalar_index("mail", "BTREE")
            store.insert_table(("people",), location, {}, managed=True)
            create_table_branch(server.ctx, ask(models.CreateTableBranchRequest, id="people", name="try"))
            create_table_tag(server.ctx, ask(models.CreateTableTagRequest, id="people", tag="release", version=1))
            views = {"view": "concat('of ', mail) AS mail", "renamed": "user AS person, mail AS address"}
            for name, query in views.items():
                wish = {"kind": "select", "source_query": f"SELECT {query} FROM people", "output_schema": ""}
                fields = {"id": [name], **wish, "with_no_data": False}
                create_materialized_view(server.ctx, msgspec.convert(fields, models.CreateMaterializedViewRequest))
            assert server.run_jobs() == ["Succeeded", "Succeeded"]
            files = storage.files(root)

            def holding() -> list[str]:
                paths = [entry.path for entry in files.walk(root)]
                value = [(VALUE.encode(), "value")]
                return [path for path in paths if search_file(files, f"{root}/{path}", value)]  # some just went

            assert {path.partition("-")[0] for path in holding()} == {"people", "view", "renamed"}
            report = erase(server, supersede_tags=True)
            assert report["unresolved"] == [] and holding() == []
            assert {each["name"]: each["kind"] for each in report["tables"]} == {
                "people": "table", "renamed": "derived", "view": "view"
            }  # fmt: skip
            release = lance.dataset(location, version="release", storage_options=objects.options)
            assert release.count_rows() == 19
            left = lance.dataset(location, storage_options=objects.options)
            assert left.count_rows() == 39 == left.checkout_version(("try", None)).count_rows()
        finally:
            server.services.close()


class KilledError(BaseException):
    """The process of a worker is gone."""


@pytest.mark.parametrize("stage", ["values", "files", "index words", "old versions", "garbage", "versions"])
def test_a_killed_job_goes_on_where_it_stopped(catalog: Server, stage: str) -> None:
    table = add(catalog, "people", people(0, 20))
    lance.dataset(table.location).insert(people(20, 40))
    index(table)
    number = request(catalog)
    store = catalog.services.store
    record = store.claim_transaction("first", 60_000)
    assert record is not None

    def die(properties: Mapping[str, str]) -> bool:
        if properties.get("stage") == stage:
            raise KilledError
        return True

    with pytest.raises(KilledError):
        JOBS[ERASE](catalog.ctx, Job(record.id, record.kind, record.table_id, record.payload, die))
    assert store.find_erasure(number).ended_at is None
    store.finish_transaction(record.id, "first", record.status.QUEUED)
    assert catalog.run_jobs() == ["Succeeded"]
    report = report_of(catalog, number)
    assert report["outcome"] == "complete" and planted(catalog) == []
    assert report["tables"][0]["rows"] == 1 and catalog.open("people").count_rows() == 39


@pytest.mark.parametrize("managed", [True, False])
def test_what_writers_commit_meanwhile_stays(catalog: Server, managed: bool) -> None:
    index(add(catalog, "people", people(0, 20), managed=managed))
    ended, acknowledged = threading.Event(), list[int]()

    def write() -> None:
        for user in range(100, 1000):
            if ended.is_set():
                return
            wish = ask(models.InsertIntoTableRequest, id="people")
            insert_into_table(catalog.ctx, wish, small(people(user, user + 1)))
            changed = ask(models.UpdateTableRequest, id="people", predicate="user = 3", updates=[["city", f"'{user}'"]])
            update_table(catalog.ctx, changed)
            acknowledged.append(user)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        report = erase(catalog)
        ended.set()
        writing.result()
    assert report["unresolved"] == [] and planted(catalog) == [] and acknowledged
    rows = catalog.open("people").to_table(columns=["user", "city"]).to_pylist()
    assert sorted(row["user"] for row in rows) == [each for each in [*range(20), *acknowledged] if each != 7]
    assert [row["city"] for row in rows if row["user"] == 3] == [str(acknowledged[-1])]


def test_a_canceled_erasure_keeps_nothing_of_what_it_was_asked_for(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    number = request(catalog)
    store = catalog.services.store
    store.alter_transaction(number, lambda status, properties: (status.CANCELED, properties))
    assert store.end_left_erasures(10) == 1
    ended = store.find_erasure(number)
    assert (ended.outcome, ended.plan, ended.report) == ("stopped", "", "")
    assert catalog.open("people").count_rows() == 20


def test_a_job_that_is_refused_logs_why_and_no_trace(catalog: Server, caplog: pytest.LogCaptureFixture) -> None:
    table, store = add(catalog, "people", people(0, 20)), catalog.services.store
    number = request(catalog)
    store.set_protection(Protection("table", table.id, "hold", "", "case 1", "ann", 0))
    assert Worker(catalog.services, 0).run_one()
    assert (
        store.describe_transaction(number).status.value == "Failed" and store.find_erasure(number).outcome == "stopped"
    )
    [told] = [each for each in caplog.records if number in each.message and each.levelname == "ERROR"]
    assert "legal hold (set by ann: case 1)" in told.message and told.exc_info is None
    assert catalog.open("people").count_rows() == 20


def test_rows_that_were_deleted_before_leave_old_versions_and_files(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    index(table)
    delete_from_table(catalog.ctx, ask(models.DeleteFromTableRequest, id="people", predicate=WHERE))
    assert planted(catalog)
    report = erase(catalog)
    assert report["outcome"] == "complete" and planted(catalog) == []
    assert report["tables"][0]["rows"] == 0


def test_a_table_made_from_it_makes_the_outcome_incomplete(catalog: Server) -> None:
    table, derived = add(catalog, "people", people(0, 20)), add(catalog, "report", people(0, 20))
    source = LineageSource("people", table.location, 1)
    lineage = CommitLineage("ingest", "job", (source,))
    record = LineageRecord.of(lineage, derived.id, MAIN.key, 1, replaces=True, source_ids=(table.id,), principal="ann")
    catalog.services.store.add_lineage(record)
    report = erase(catalog)
    assert report["outcome"] == "incomplete"
    [told] = report["unresolved"]
    assert told.startswith("report was made from these tables, and lineage does not say which of its rows")
    assert told.endswith("or make it again (tiltyard rebuild) and erase its old versions.")


def test_what_cannot_be_erased_from_is_refused(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    for fields, error in (
        ({"predicate": " "}, InvalidInputError),
        ({"predicate": "nobody = 7"}, TableColumnNotFoundError),
        ({"values_of": ["nothing"]}, InvalidInputError),
        ({"reference": "x" * 501}, InvalidInputError),
        ({"predicate": "random() < 0.5"}, InvalidInputError),
        ({"predicate": "user = 7 OR `uuid`() = 'x'"}, InvalidInputError),
        ({"predicate": "city > 'a' AND user < length(CAST(current_date AS STRING))"}, InvalidInputError),
        ({"predicate": "user >= 0 AND _rowid = 1"}, InvalidInputError),
        ({"predicate": "`_RowAddr` = 1"}, InvalidInputError),
    ):
        with pytest.raises(error):
            request(catalog, **fields)
    with pytest.raises(TransactionNotFoundError):
        operations.describe_erasure(catalog.ctx, models.DescribeErasureRequest(erasure_id="none"))
