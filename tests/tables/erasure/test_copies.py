"""An erasure follows rows into tables that were made from them, parked rows and messages of functions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError
from tests.tables.erasure.test_erasure import (
    VALUE,
    KilledError,
    add,
    erase,
    files_with,
    people,
    planted,
    report_of,
    request,
    root_of,
)
from tests.tables.served import Server, ask

import tiltyard
from tiltyard.catalog.tables import drop_table
from tiltyard.cli import main
from tiltyard.contracts.checked_rows import FOLDER, encode_reject
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Derivation
from tiltyard.model.jobs import JOBS, Job
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.spec import models
from tiltyard.store.tables.erasures import ERASE
from tiltyard.store.tables.lineage import LineageRecord
from tiltyard.tables.erasure.parked_rows import erase_parked_rows
from tiltyard.tables.versions import clone
from tiltyard.tables.versions.branches import create_table_branch
from tiltyard.tables.versions.tags import create_table_tag
from tiltyard.tables.views.materialized_views import create_materialized_view, refresh_materialized_view
from tiltyard.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.model.columns.lineage import Origins
    from tiltyard.store import TableRecord


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "root", gc_safety_days=0.0)
    yield running
    running.services.close()


def derive(
    server: Server,
    table: TableRecord,
    *sources: TableRecord,
    columns: Origins | None,
    kind: str = "ingest",
    version: int = 1,
    replaces: bool = True,
) -> None:
    """Record that a table was made from others."""
    origins = tuple(LineageSource(each.name, each.location, 1) for each in sources)
    lineage = CommitLineage(kind, kind, origins, columns=columns)
    ids = tuple(each.id for each in sources)
    record = LineageRecord.of(lineage, table.id, MAIN.key, version, replaces=replaces, source_ids=ids, principal="ann")
    server.services.store.add_lineage(record)


def columns(how: Derivation = Derivation.DIRECT, name: str = "user") -> Origins:
    return (
        ColumnOrigin(name, (ColumnInput(0, "user", how),)),
        ColumnOrigin("mail", (ColumnInput(0, "mail"),)),
    )


def test_a_table_with_the_columns_of_the_condition_is_erased_from_and_what_was_made_of_it(catalog: Server) -> None:
    table, view, deeper = (add(catalog, name, people(0, 20)) for name in ("people", "view", "deeper"))
    derive(catalog, view, table, columns=columns(), kind="refresh")
    derive(catalog, deeper, view, columns=columns())
    report = erase(catalog)
    assert report["outcome"] == "complete" and planted(catalog) == []
    assert {each["name"]: (each["kind"], each["rows"]) for each in report["tables"]} == {
        "people": ("table", 1), "view": ("derived", 1), "deeper": ("derived", 1)
    }  # fmt: skip
    assert catalog.open("deeper").count_rows() == 19


def refresh(server: Server, name: str = "view") -> Mapping[str, str]:
    wish = ask(models.RefreshMaterializedViewRequest, id=name)
    job_id = refresh_materialized_view(server.ctx, wish).job_id
    assert Worker(server.services, 0).run_one()
    return server.services.store.describe_transaction(job_id).properties


def test_a_materialized_view_loses_the_rows_and_is_refreshed_as_before(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    create_view(catalog, "view", "SELECT user, mail, about FROM people WHERE user > 3")
    assert refresh(catalog)["rows"] == "16"
    lance.dataset(table.location).insert(people(20, 30))
    assert refresh(catalog)["rows"] == "10"
    catalog.open("view").create_scalar_index("mail", "BTREE")
    assert any("view-" in path for path in planted(catalog))
    report = erase(catalog)
    assert report["unresolved"] == [] and planted(catalog) == []
    assert [(each["name"], each["kind"], each["rows"]) for each in report["tables"]] == [
        ("view", "derived", 1), ("people", "table", 1)
    ]  # fmt: skip
    refresh(catalog)
    lance.dataset(table.location).insert(people(30, 35))
    refresh(catalog)
    assert sorted(catalog.open("view").to_table()["user"].to_pylist()) == [4, 5, 6, *range(8, 35)]
    assert planted(catalog) == []


@pytest.mark.parametrize(
    "made_of",
    [
        columns(Derivation.TRANSFORMED),
        (*columns(), ColumnOrigin("phone", (ColumnInput(0, "phone", Derivation.AGGREGATED),))),
        (ColumnOrigin("user", (ColumnInput(0, "user"), ColumnInput(0, "phone"))),),
        (ColumnOrigin("mail", (ColumnInput(0, "user"),)),),
        columns(name="person"),
        None,
    ],
    ids=["transformed", "aggregated", "of two columns", "another type", "not there", "unknown"],
)
def test_a_table_whose_condition_is_not_known_is_left_and_named_with_what_was_made_of_it(
    catalog: Server, made_of: Origins | None
) -> None:
    table, view, deeper = (add(catalog, name, people(0, 20)) for name in ("people", "view", "deeper"))
    derive(catalog, view, table, columns=made_of)
    derive(catalog, deeper, view, columns=columns())
    report = erase(catalog)
    assert report["outcome"] == "incomplete"
    assert sorted(text.partition(" ")[0] for text in report["unresolved"]) == ["deeper", "view"]
    assert catalog.open("view").count_rows() == 20


def test_columns_with_other_names_are_erased_by_these_and_rows_of_a_join_leave_with_the_row_of_the_table(
    catalog: Server,
) -> None:
    table, other = add(catalog, "people", people(0, 20)), add(catalog, "other", people(100, 110))
    rows = people(0, 20)
    joined = pa.table({"person": rows["user"], "the user": rows["mail"], "user": [7] * 20})
    both, deeper = add(catalog, "both", joined), add(catalog, "deeper", joined.rename_columns(["of", "to", "user"]))
    derive(
        catalog, both, table, other,
        columns=(
            ColumnOrigin("person", (ColumnInput(0, "user"),)),
            ColumnOrigin("the user", (ColumnInput(0, "mail"),)),
            ColumnOrigin("user", (ColumnInput(1, "user"),)),
        ),
    )  # fmt: skip
    renamed = ColumnOrigin("of", (ColumnInput(0, "person"),)), ColumnOrigin("to", (ColumnInput(0, "the user"),))
    derive(catalog, deeper, both, columns=renamed)
    report = erase(catalog, predicate=f"user = 7 AND `mail` <> '{VALUE[1:]} user' AND length(mail) > 0")
    assert report["unresolved"] == [] and planted(catalog) == []
    assert {each["name"]: (each["kind"], each["rows"]) for each in report["tables"]} == {
        "people": ("table", 1), "both": ("derived", 1), "deeper": ("derived", 1)
    }  # fmt: skip
    assert catalog.open("both").count_rows() == 19 == catalog.open("deeper").count_rows()
    assert catalog.open("other").count_rows() == 10


@pytest.mark.parametrize("condition", ["user IS NULL", "coalesce(user, 7) = 7", "NOT (coalesce(user, 1) = 1)"])
def test_a_condition_that_selects_nulls_is_none_on_a_join_which_may_have_made_them(
    catalog: Server, condition: str
) -> None:
    table, other, both = (add(catalog, name, people(0, 20)) for name in ("people", "other", "both"))
    derive(catalog, both, table, other, columns=columns())
    lance.dataset(both.location).insert(people(20, 21).set_column(0, "user", pa.array([None], pa.int64())))
    report = erase(catalog, predicate=condition)
    assert [text.partition(" ")[0] for text in report["unresolved"]] == ([] if "NOT" in condition else ["both"])
    assert catalog.open("both").count_rows("user IS NULL") == 1


def test_rows_of_two_tables_that_are_erased_from_leave_by_the_conditions_of_both(catalog: Server) -> None:
    table, middle = add(catalog, "people", people(0, 20)), add(catalog, "middle", people(0, 20))
    rows = people(0, 20).append_column("of", pa.array([*range(1, 20), 0], pa.int64()))
    both = add(catalog, "both", rows)
    derive(catalog, middle, table, columns=columns())
    derive(catalog, both, table, middle, columns=(*columns(), ColumnOrigin("of", (ColumnInput(1, "user"),))))
    assert erase(catalog)["outcome"] == "complete"
    assert catalog.open("both").count_rows() == 18 and planted(catalog) == []


def test_a_table_with_rows_of_elsewhere_is_left_and_named(catalog: Server) -> None:
    table, other, both = (add(catalog, name, people(0, 20)) for name in ("people", "other", "both"))
    derive(catalog, both, table, columns=columns())
    derive(catalog, both, other, columns=columns(), kind="upsert", version=2, replaces=False)
    report = erase(catalog)
    assert [text.partition(" ")[0] for text in report["unresolved"]] == ["both"]
    assert catalog.open("both").count_rows() == 20


def test_a_copy_whose_column_has_another_name_since_is_left_and_named(catalog: Server) -> None:
    table, view = add(catalog, "people", people(0, 20)), add(catalog, "view", people(0, 20))
    derive(catalog, view, table, columns=columns())
    for name, other in (("user", "old"), ("phone", "user")):
        lance.dataset(view.location).alter_columns({"path": name, "name": other})
    assert [text.partition(" ")[0] for text in erase(catalog)["unresolved"]] == ["view"]
    assert catalog.open("view").count_rows() == 20


def test_a_value_that_stays_in_a_copy_is_found_in_its_rows(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    rows = people(0, 20).append_column("partner", pa.array([VALUE] * 20))  # of a query that joins people with itself
    derive(catalog, add(catalog, "pairs", rows), table, columns=columns())
    report = erase(catalog)
    assert report["outcome"] == "incomplete"
    assert ("pairs", "column 'partner' of the branch 'main'") in [(e["table"], e["file"]) for e in report["found"]]


def test_branches_clones_and_dropped_copies_of_a_copy_are_erased_from_by_its_names(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    rows = people(0, 20).rename_columns(["person", "mail", "phone", "about", "city"])
    view, gone = add(catalog, "view", rows), add(catalog, "gone", rows)
    for each in view, gone:
        derive(catalog, each, table, columns=columns(name="person"))
    lance.dataset(view.location).create_branch("try", (None, None)).insert(rows)
    clone.clone_table(catalog.ctx, ask(models.CloneTableRequest, id="copy", source_location=view.location))
    catalog.open("copy").insert(rows)
    drop_table(catalog.ctx, ask(models.DropTableRequest, id="gone"))
    report = erase(catalog)
    assert report["unresolved"] == [] and planted(catalog) == []
    kinds = {each["name"]: (each["kind"], each["rows"]) for each in report["tables"]}
    assert kinds == {"people": ("table", 1), "view": ("derived", 3), "copy": ("clone", 2)}
    assert [each.partition(" ")[0] for each in report["dropped_tables_ended"]] == ["gone"]


def create_view(server: Server, name: str, query: str) -> None:
    fields = {"id": [name], "kind": "select", "source_query": query, "output_schema": ""}
    create_materialized_view(server.ctx, msgspec.convert(fields, models.CreateMaterializedViewRequest))


def test_a_view_in_which_the_condition_cannot_be_told_is_computed_anew_and_what_was_made_of_it(
    catalog: Server,
) -> None:
    table = add(catalog, "people", people(0, 20))
    create_view(catalog, "view", "SELECT concat('of ', mail) AS mail, city FROM people")
    create_view(catalog, "second", "SELECT mail AS address FROM view")
    refresh(catalog)
    refresh(catalog, "second")
    catalog.open("view").create_scalar_index("mail", "BTREE")
    catalog.open("second").create_scalar_index("address", "INVERTED")
    create_table_tag(catalog.ctx, ask(models.CreateTableTagRequest, id="view", tag="release", version=2))
    assert any("view-" in path for path in planted(catalog)) and any("second-" in path for path in planted(catalog))
    with pytest.raises(InvalidInputError, match="the tag 'release' of view"):
        request(catalog)
    report = erase(catalog, end_protected=True)
    assert report["unresolved"] == [] and planted(catalog) == []
    own, view, second = report["tables"]
    assert [(each["name"], each["kind"]) for each in report["tables"]] == [
        ("people", "table"), ("view", "view"), ("second", "view")
    ]  # fmt: skip
    assert view["tags_ended"] == ["release"] and view["indexes_rebuilt"] == ["mail_idx"] and view["versions_ended"] > 2
    assert second["versions_ended"] > 2 and own["rows"] == 1
    assert catalog.open("view").count_rows() == 19 == catalog.open("second").count_rows()
    lance.dataset(table.location).insert(people(30, 35))
    refresh(catalog)
    assert catalog.open("view").count_rows() == 24 and planted(catalog) == []


def test_branches_and_clones_of_a_view_that_is_computed_anew_are_named_with_what_to_do(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    create_view(catalog, "view", "SELECT concat('of ', mail) AS mail FROM people")
    refresh(catalog)
    create_table_branch(catalog.ctx, ask(models.CreateTableBranchRequest, id="view", name="try"))
    view = catalog.services.store.describe_table(("view",))
    clone.clone_table(catalog.ctx, ask(models.CloneTableRequest, id="copy", source_location=view.location))
    report = erase(catalog)
    assert report["outcome"] == "incomplete"
    told = " ".join(report["unresolved"])
    assert "view: the branch 'try' was made from the view as it was before: delete the branch" in told
    assert "copy is a clone of a table in which the condition cannot be told: drop it" in told
    assert catalog.open("view").count_rows() == 19 and catalog.open("copy").count_rows() == 20
    assert catalog.open("view").checkout_version(("try", None)).count_rows() == 20


def test_a_view_that_cannot_be_computed_anew_is_named_with_the_reason(catalog: Server) -> None:
    catalog.services.close()
    limited = Server(root_of(catalog), gc_safety_days=0.0, view_refresh_rows=19)
    try:
        add(limited, "people", people(0, 19))
        create_view(limited, "view", "SELECT concat('of ', mail) AS mail FROM people")
        refresh(limited)
        limited.open("people").insert(people(19, 30))
        report = erase(limited)
        assert report["outcome"] == "incomplete"
        assert report["unresolved"][0].startswith("view could not be computed anew, and has rows that were made of")
        assert "(view_refresh_rows)" in report["unresolved"][0] and limited.open("view").count_rows() == 19
    finally:
        limited.services.close()


def test_parked_rows_that_match_are_removed_and_the_others_stay(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    rows = people(5, 9).to_pylist()
    folder = Path(table.location, FOLDER)
    folder.mkdir()
    (folder / "a-0.jsonl").write_bytes(b"".join(encode_reject("too old", row) for row in rows))
    (folder / "b-0.jsonl").write_bytes(encode_reject("too old", rows[0]))
    report = erase(catalog)
    assert report["outcome"] == "complete" and planted(catalog) == []
    assert report["tables"][0]["parked_rows"] == 1
    left = b"".join(path.read_bytes() for path in folder.iterdir())
    assert left.count(b"too old") == 4 and b"user8@example.org" in left and (folder / "b-0.jsonl").exists()


def test_parked_rows_on_which_the_condition_cannot_be_computed_are_named(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    folder = Path(table.location, FOLDER)
    folder.mkdir()
    (folder / "a-0.jsonl").write_bytes(encode_reject("no number", {"user": "seven", "mail": VALUE}) + b"not JSON\n")
    schema: pa.Schema = people(0, 1).schema
    removed, unsettled = erase_parked_rows(catalog.ctx, table, schema, "user = 7")
    assert (removed, unsettled) == (0, [f"{FOLDER}/a-0.jsonl"])
    report: dict[str, Any] = erase(catalog)
    assert report["outcome"] == "incomplete"
    assert [each["file"] for each in report["found"]] == [f"{FOLDER}/a-0.jsonl"]


def write_rejects(server: Server, folder: Path, *rows: Any, rejected: int, table: str = "people") -> str:
    """Record a job that has written rejected rows to a folder; return its id."""
    record = server.services.store.describe_table((table,))

    def work(catalog: Any) -> str:
        payload = {"arguments": {"table": table, "rejects": f"{folder}/"}}
        properties = {"rejected": str(rejected)}
        return str(catalog.create_transaction("ingest", record.id, payload, properties, TransactionStatus.SUCCEEDED).id)

    number: str = server.services.store.transact(work)
    folder.mkdir(exist_ok=True)
    if rows:
        (folder / f"{number}-0-0.jsonl").write_bytes(b"".join(encode_reject("no number", row) for row in rows))
    return number


def test_rejected_rows_that_a_job_has_put_into_a_folder_are_removed_and_others_of_that_folder_stay(
    catalog: Server,
) -> None:
    add(catalog, "people", people(0, 20))
    folder = root_of(catalog) / "rejects"
    number = write_rejects(catalog, folder, *people(6, 9).to_pylist(), rejected=3)
    alone = write_rejects(catalog, folder, *people(7, 8).to_pylist(), rejected=1)
    foreign = folder / "of-another-program.jsonl"
    foreign.write_bytes(encode_reject("no number", people(7, 8).to_pylist()[0]))
    report = erase(catalog)
    assert report["unresolved"] == [] and report["tables"][0]["parked_rows"] == 2
    assert files_with(folder, VALUE.encode()) == [foreign.name]
    left = b"".join(path.read_bytes() for path in folder.glob(f"{number}-*"))
    assert left.count(b"no number") == 2 and b"user8@example.org" in left
    assert [path.read_bytes() for path in folder.glob(f"{alone}-*")] == [b""]
    assert erase(catalog)["unresolved"] == []


def test_rejected_rows_of_a_job_that_cannot_be_told_or_found_are_named(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    folder = root_of(catalog) / "rejects"
    renamed = write_rejects(catalog, folder, {"number": 7, "mail": VALUE}, rejected=1)
    gone = write_rejects(catalog, folder, rejected=2)
    write_rejects(catalog, folder, rejected=0)
    elsewhere = write_rejects(catalog, root_of(catalog).parent / "elsewhere", rejected=1)
    [told] = erase(catalog)["unresolved"]
    assert f"{folder}/{renamed}-0-0.jsonl" in told and f"{folder}/{gone}-*.jsonl (not found from this server)" in told
    assert f"elsewhere/{elsewhere}-*.jsonl (not below the roots of the server" in told
    assert str(told).count(".jsonl") == 3


def test_backups_that_have_the_rows_are_listed_with_what_ends_them(catalog: Server) -> None:
    add(catalog, "people", people(0, 20))
    target = root_of(catalog).parent / "backups"
    arguments = ["backup", str(target), "--root", str(root_of(catalog))]
    for _ in range(2):
        assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
    points = sorted(path.name for path in (target / "points").iterdir())
    [unseen] = erase(catalog)["backups"]
    assert unseen["backups"] == points and "allowed root" in unseen["problem"]
    catalog.services.close()
    catalog = Server(root_of(catalog), gc_safety_days=0.0, allowed_roots=(str(target),))
    report = erase(catalog)
    assert report["outcome"] == "complete"
    assert report["backups"] == [{"target": str(target), "backups": points, "newer": 0, "problem": "", "expire": {}}]
    told = report["to_check_by_hand"][0]
    assert f"2 backups at {target} have the rows: {points[0]} to {points[1]}" in told
    assert "prune" in told and "there are 0" in told
    pruned = CliRunner().invoke(main, ["backup", "prune", str(target), "--keep", "1"], catch_exceptions=False)
    assert pruned.exit_code == 0
    again = erase(catalog)["backups"]
    assert [each["backups"] for each in again] == [points[1:]]
    assert CliRunner().invoke(main, [*arguments, "--expire-days", "30"], catch_exceptions=False).exit_code == 0
    report = erase(catalog)
    [dates] = [each["expire"] for each in report["backups"]]
    assert list(dates) == sorted(path.name for path in (target / "points").iterdir())[1:]
    assert 29 < (min(dates.values()) / 1000 - time.time()) / 86_400 <= 30
    told = report["to_check_by_hand"][0]
    assert "1 of them expire, the last on" in told and "--expired" in told and "1 have no date of expiry" in told
    catalog.services.close()


def test_the_table_of_a_training_set_goes_with_its_snapshot(catalog: Server) -> None:
    add(catalog, "people", people(0, 40))
    lake = tiltyard.connect(root_of(catalog))
    for name, source in (("kept", "people"), ("other", "others")):
        if name == "other":
            add(catalog, source, people(40, 80))
        lake.training_set(name, source, splits={"train": 0.5, "val": 0.5}, by="user", seed=1)
    assert lake.table("kept").exists()
    report = erase(catalog, end_protected=True)
    assert report["unresolved"] == [] and planted(catalog) == []
    [figures] = report["tables"]
    assert figures["snapshots_ended"] == figures["training_sets_dropped"] == ["kept"]
    assert not lake.table("kept").exists() and [each.name for each in lake.training_sets()] == ["other"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_job_that_is_killed_while_it_computes_views_goes_on_there(catalog: Server, times: int) -> None:
    add(catalog, "people", people(0, 20))
    for name in "view", "second":
        create_view(catalog, name, "SELECT concat('of ', mail) AS mail FROM people")
        refresh(catalog, name)
    number, store, seen = request(catalog), catalog.services.store, [0]
    record = store.claim_transaction("first", 60_000)
    assert record is not None

    def die(properties: Mapping[str, str]) -> bool:
        seen[0] += properties.get("stage") == "views"
        if seen[0] == times:
            raise KilledError
        return True

    with pytest.raises(KilledError):
        JOBS[ERASE](catalog.ctx, Job(record.id, record.kind, record.table_id, record.payload, die))
    store.finish_transaction(record.id, "first", record.status.QUEUED)
    assert catalog.run_jobs() == ["Succeeded"]
    assert report_of(catalog, number)["unresolved"] == [] and planted(catalog) == []
    assert catalog.open("view").count_rows() == 19 == catalog.open("second").count_rows()
