"""An erasure follows rows into tables that were made from them, parked rows and messages of functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import msgspec
import pyarrow as pa
import pytest
from tests.tables.erasure.test_erasure import VALUE, add, erase, people, planted
from tests.tables.served import Server, ask

from tiltyard.contracts.checked_rows import FOLDER, encode_reject
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Derivation
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.model.spec import models
from tiltyard.store.tables.lineage import LineageRecord
from tiltyard.tables.erasure.parked_rows import erase_parked_rows
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
    server: Server, table: TableRecord, *sources: TableRecord, columns: Origins | None, kind: str = "ingest"
) -> None:
    """Record that a table was made from others."""
    origins = tuple(LineageSource(each.name, each.location, 1) for each in sources)
    lineage = CommitLineage(kind, "job", origins, columns=columns)
    ids = tuple(each.id for each in sources)
    record = LineageRecord.of(lineage, table.id, MAIN.key, 1, replaces=True, source_ids=ids, principal="ann")
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


def refresh(server: Server) -> Mapping[str, str]:
    request = ask(models.RefreshMaterializedViewRequest, id="view")
    job_id = refresh_materialized_view(server.ctx, request).job_id
    assert Worker(server.services, 0).run_one()
    return server.services.store.describe_transaction(job_id).properties


def test_a_materialized_view_loses_the_rows_and_is_refreshed_as_before(catalog: Server) -> None:
    table = add(catalog, "people", people(0, 20))
    query = "SELECT user, mail, about FROM people WHERE user > 3"
    fields = {"id": ["view"], "kind": "select", "source_query": query, "output_schema": ""}
    create_materialized_view(catalog.ctx, msgspec.convert(fields, models.CreateMaterializedViewRequest))
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
    [columns(Derivation.TRANSFORMED), columns(name="person"), None],
    ids=["transformed", "renamed", "unknown"],
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


def test_a_table_that_was_made_from_others_too_is_left_and_named(catalog: Server) -> None:
    table, other, both = (add(catalog, name, people(0, 20)) for name in ("people", "other", "both"))
    derive(catalog, both, table, other, columns=columns())
    report = erase(catalog)
    assert [text.partition(" ")[0] for text in report["unresolved"]] == ["both"]
    assert catalog.open("both").count_rows() == 20


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
