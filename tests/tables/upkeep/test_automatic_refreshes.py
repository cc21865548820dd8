"""Views and computed columns that refresh by themselves: in their interval, where stale, as who declared them."""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from msgspec import structs
from tests.tables.served import ask
from tests.tables.upkeep.test_upkeep import Kept

from tiltyard.column_refresh.freshness import ComputedColumn
from tiltyard.model.columns.computed_columns import ExpressionDeclaration
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import Principal, parse_privileges
from tiltyard.model.spec import models
from tiltyard.store.access.grants import SERVER
from tiltyard.store.jobs.jobs import JobFilter
from tiltyard.store.tables.upkeep import MAX_ENDED
from tiltyard.tables.rows.update_delete import update_table
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.columns import update_field_metadata
from tiltyard.tables.schema.computed_columns import BACKFILL
from tiltyard.tables.schema.expression_refresh import REFRESH_COLUMN
from tiltyard.tables.upkeep import automatic_refreshes, upkeep_job
from tiltyard.tables.views.materialized_views import REFRESH, create_materialized_view
from tiltyard.tables.views.select_views import REFRESH_SELECT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tiltyard.context import Context
    from tiltyard.store import TransactionRecord


class RefreshedTables(Kept):
    """Tables, with a view of one of them, or with computed columns."""

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.jobs: set[str] = set()

    def create_view(self, ctx: Context, query: str = "SELECT id FROM source", **options: Any) -> None:
        fields = {"kind": "select", "source_query": query, "output_schema": "", "with_no_data": True}
        create_materialized_view(ctx, models.CreateMaterializedViewRequest(id=["view"], **(fields | options)))

    def look(self) -> int:
        """Look at the tables, and run what they need; return how many refreshes there were until now.

        Grants that tests change are seen: for FRESH_SECONDS those of another process might not be.
        """
        self.ctx.rights_cache.refresh_next()
        self.later()
        for _ in range(3):
            self.worker.maintain_one()
        while self.worker.run_one():
            pass
        self.jobs |= {job.id for job in self.refreshes()}
        return len(self.jobs)

    def refreshes(self) -> list[TransactionRecord]:
        """Return the refreshes that the catalog still has."""
        return self.store.list_jobs(JobFilter((REFRESH, REFRESH_SELECT, REFRESH_COLUMN, BACKFILL)), None, 100)

    def cancel(self) -> None:
        """Cancel the refresh that waits."""
        [waiting] = [job for job in self.refreshes() if job.status is TransactionStatus.QUEUED]
        self.store.alter_transaction(waiting.id, lambda _, properties: (TransactionStatus.CANCELED, properties))

    def add_column(self, ctx: Context, name: str = "double", expression: str = "id * 2", **options: Any) -> None:
        entry = models.AddColumnsEntry(name=name, computed=expression)
        options = {"auto_refresh_enabled": True} | options
        alter_table_add_columns(ctx, models.AlterTableAddColumnsRequest(id=["source"], new_columns=[entry], **options))

    def values(self, name: str = "double") -> list[Any]:
        rows = self.server.open("source").to_table(columns=["id", name]).sort_by("id")
        values: list[Any] = rows[name].to_pylist()
        return values

    def noted(self) -> dict[str, Any]:
        """Return what looks have noted of what refreshes in the table."""
        seen = self.store.find_upkeep(self.store.describe_table(("source",)).id)
        assert seen is not None
        noted: dict[str, Any] = seen.state[automatic_refreshes.STATE]
        return noted

    @property
    def rows(self) -> int:
        return self.server.open("view").count_rows()


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RefreshedTables]:
    monkeypatch.setattr(automatic_refreshes, "MIN_REFRESH_SECONDS", 0.0)
    views = RefreshedTables(tmp_path / "root")
    views.create("source", pa.table({"id": range(3)}))
    yield views
    views.store.close()


@pytest.fixture
def tables(views: RefreshedTables, monkeypatch: pytest.MonkeyPatch) -> RefreshedTables:
    """Return tables whose columns are looked at each time: their intervals are whole seconds."""
    monkeypatch.setattr(automatic_refreshes, "DEFAULT_REFRESH_SECONDS", 0.001)
    return views


def test_view_is_refreshed_where_its_source_has_changed(views: RefreshedTables) -> None:
    views.create_view(views.ctx, auto_refresh=True, auto_refresh_interval_seconds=0.001)
    assert (views.look(), views.rows) == (1, 3)
    assert (views.look(), views.rows) == (1, 3)
    views.insert("source", pa.table({"id": [3]}))
    assert (views.look(), views.rows) == (2, 4)
    assert views.look() == 2


def test_view_of_a_fixed_version_is_refreshed_once(views: RefreshedTables) -> None:
    vectors = pa.array([[0.0, 0.0], [5.0, 5.0], [0.0, 0.01]], pa.list_(pa.float32(), 2))
    views.create("points", pa.table({"id": range(3), "vector": vectors}))
    views.to_commit("points").create_index("vector", "IVF_FLAT", metric="l2", num_partitions=1)
    query = "SELECT * FROM vector_dedup('points', 2, 'vector', 0.1)"
    views.create_view(views.ctx, query, auto_refresh=True, auto_refresh_interval_seconds=0.001)
    assert (views.look(), views.rows) == (1, 2)
    views.insert("points", pa.table({"id": [3], "vector": vectors.slice(0, 1)}))
    assert (views.look(), views.rows) == (1, 2), "the version that it reads is the same"


def test_view_is_refreshed_no_sooner_than_its_interval_ends(views: RefreshedTables) -> None:
    views.create_view(views.ctx, auto_refresh=True)
    assert views.look() == 1
    views.insert("source", pa.table({"id": [3]}))
    assert (views.look(), views.rows) == (1, 3), "a minute has not passed"
    planned = views.store.find_upkeep(views.store.describe_table(("view",)).id)
    assert planned is not None
    seconds = (planned.due_at - planned.state[automatic_refreshes.STATE]["view"]["at"]) / 1000
    assert seconds == automatic_refreshes.DEFAULT_REFRESH_SECONDS, "it is looked at again then, without a commit"


def test_view_that_spark_refreshes_waits_for_a_worker_once_where_a_source_has_changed(views: RefreshedTables) -> None:
    views.create("other", pa.table({"id": range(3)}))
    schema = base64.b64encode(pa.schema([("id", pa.int64())]).serialize().to_pybytes()).decode()
    query = {"kind": "query", "output_schema": schema}
    views.create_view(
        views.ctx, "SELECT id FROM source UNION ALL SELECT id FROM other", **query, auto_refresh=True,
        auto_refresh_interval_seconds=0.001,
    )  # fmt: skip
    assert views.look() == 1
    views.insert("other", pa.table({"id": [3]}))
    assert views.look() == 1, "no worker of Spark has taken the first one yet"
    views.cancel()
    assert (views.look(), views.look()) == (2, 2), "it reads what came meanwhile"
    views.cancel()
    assert views.look() == 2
    views.insert("source", pa.table({"id": [3]}))
    assert views.look() == 3


def test_view_that_does_not_refresh_by_itself_is_left_alone(views: RefreshedTables) -> None:
    views.create_view(views.ctx, auto_refresh=False, auto_refresh_interval_seconds=0.001)
    views.insert("source", pa.table({"id": [3]}))
    assert (views.look(), views.rows) == (0, 0)


def test_refresh_that_waits_is_not_queued_again_and_reads_what_came_meanwhile(views: RefreshedTables) -> None:
    views.create_view(views.ctx, auto_refresh=True, auto_refresh_interval_seconds=0.001)
    for number in range(3, 6):
        views.insert("source", pa.table({"id": [number]}))
        views.later()
        for _ in range(3):
            views.worker.maintain_one()
    assert len(views.store.list_jobs(JobFilter((REFRESH_SELECT,)), None, 100)) == 1
    assert (views.look(), views.rows) == (1, 6)
    assert views.look() == 2, "its source has another version than when it was queued"
    assert views.look() == 2


def test_refresh_that_failed_is_not_repeated_at_once(views: RefreshedTables) -> None:
    views.create_view(
        views.ctx,
        "SELECT 1 / id AS inverse FROM source",
        auto_refresh=True,
        auto_refresh_interval_seconds=0.001,
    )
    assert views.look() == 1
    views.insert("source", pa.table({"id": [3]}))
    assert views.look() == 1


def test_view_whose_creator_may_not_read_its_source_any_more_is_not_refreshed(views: RefreshedTables) -> None:
    ann = structs.replace(views.ctx, principal=Principal("ann"))
    views.store.grant("principal:ann", SERVER, 0, parse_privileges(["create", "read", "write"]), "test")
    views.create_view(ann, auto_refresh=True, auto_refresh_interval_seconds=0.001)
    assert (views.look(), views.rows) == (1, 3)
    views.store.revoke("principal:ann", SERVER, 0, parse_privileges(["create", "write"]))
    views.insert("source", pa.table({"id": [3]}))
    assert (views.look(), views.rows) == (1, 3)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_interval_that_is_none_is_refused(views: RefreshedTables, seconds: float) -> None:
    with pytest.raises(InvalidInputError, match="auto_refresh_interval_seconds"):
        views.create_view(views.ctx, auto_refresh=True, auto_refresh_interval_seconds=seconds)


def test_column_is_refreshed_where_rows_lack_their_values(tables: RefreshedTables) -> None:
    tables.add_column(tables.ctx)
    assert (tables.look(), tables.values()) == (1, [0, 2, 4])
    assert tables.look() == 1, "its own commit is no reason for another"
    tables.insert("source", pa.table({"id": [3]}))
    assert (tables.look(), tables.values()) == (2, [0, 2, 4, 6])
    update_table(tables.ctx, ask(models.UpdateTableRequest, id="source", updates=[["id", "9"]], predicate="id = 3"))
    assert (tables.look(), tables.values()) == (3, [0, 2, 4, 18])
    assert tables.look() == 3


def test_column_that_reads_a_computed_one_is_refreshed_after_it(tables: RefreshedTables) -> None:
    tables.add_column(tables.ctx)
    tables.add_column(tables.ctx, "more", "double + 1")
    for _ in range(3):
        tables.look()
    assert (tables.values(), tables.values("more")) == ([0, 2, 4], [1, 3, 5])
    before = tables.look()
    assert tables.look() == before


def test_few_refreshes_stay_once_they_have_ended_and_what_was_noted_stays(tables: RefreshedTables) -> None:
    tables.add_column(tables.ctx)
    tables.create_view(tables.ctx, auto_refresh=True, auto_refresh_interval_seconds=0.001)
    for number in range(3, 8):
        tables.insert("source", pa.table({"id": [number]}))
        tables.look()
    assert len(tables.jobs) >= 8
    assert Counter(job.kind for job in tables.refreshes()) == dict.fromkeys((REFRESH_COLUMN, REFRESH_SELECT), MAX_ENDED)
    table = tables.store.describe_table(("source",))
    noted = tables.noted()
    upkeep_job._queue(tables.ctx, table, "a test")
    while tables.worker.run_one():
        pass
    assert tables.noted() == noted


def test_column_that_is_not_to_refresh_by_itself_is_left_alone_until_it_is(tables: RefreshedTables) -> None:
    tables.add_column(tables.ctx, auto_refresh_enabled=False)
    assert (tables.look(), tables.values()) == (0, [None] * 3)
    enabled = {"computed_column.auto_refresh_enabled": "true"}
    tables.to_commit("source").update_field_metadata({"double": enabled})  # whoever writes the table can do that
    assert (tables.look(), tables.values()) == (0, [None] * 3)
    update = models.UpdateFieldMetadataEntry(path="double", metadata=enabled)
    update_field_metadata(tables.ctx, models.UpdateFieldMetadataRequest(id=["source"], updates=[update]))
    assert (tables.look(), tables.values()) == (1, [0, 2, 4])


def test_column_that_is_switched_off_is_not_refreshed_by_metadata_alone_again(tables: RefreshedTables) -> None:
    def update(enabled: str) -> None:
        entry = models.UpdateFieldMetadataEntry(
            path="double", metadata={"computed_column.auto_refresh_enabled": enabled}
        )
        update_field_metadata(tables.ctx, models.UpdateFieldMetadataRequest(id=["source"], updates=[entry]))

    tables.add_column(tables.ctx)
    tables.add_column(tables.ctx, "same")  # of the same expression: it goes on
    update("false")
    assert (tables.look(), tables.values(), tables.values("same")) == (1, [None] * 3, [0, 2, 4])
    tables.to_commit("source").update_field_metadata({"same": {"computed_column.auto_refresh_enabled": "false"}})
    update("true")
    update("false")
    tables.to_commit("source").update_field_metadata({"double": {"computed_column.auto_refresh_enabled": "true"}})
    assert (tables.look(), tables.values()) == (1, [None] * 3), "a writer past the server switches nothing on"
    update("true")
    assert (tables.look(), tables.values()) == (2, [0, 2, 4])


def test_column_whose_definer_may_not_write_any_more_is_not_refreshed(
    tables: RefreshedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic_refreshes, "FAILED_REFRESH_SECONDS", 0.0)
    ann = structs.replace(tables.ctx, principal=Principal("ann"))
    tables.store.grant("principal:ann", SERVER, 0, parse_privileges(["alter", "write"]), "test")
    tables.add_column(ann)
    assert (tables.look(), tables.values()) == (1, [0, 2, 4])
    assert [job.requested_by for job in tables.refreshes()] == ["ann"]
    tables.store.revoke("principal:ann", SERVER, 0, parse_privileges(["alter"]))  # what stays
    tables.insert("source", pa.table({"id": [3]}))
    assert (tables.look(), tables.values()) == (1, [0, 2, 4, None])
    tables.store.grant("principal:ann", SERVER, 0, parse_privileges(["write"]), "test")
    assert (tables.look(), tables.values()) == (2, [0, 2, 4, 6])


def test_column_of_a_large_table_is_refreshed_by_spark_once_at_a_time(tmp_path: Path) -> None:
    tables = RefreshedTables(tmp_path / "root", column_refresh_rows=0)
    tables.create("source", pa.table({"id": range(3)}))
    tables.add_column(tables.ctx)
    for _ in range(2):
        tables.later()
        tables.worker.maintain_one()
        noted = tables.noted()["column double"]
        assert [(job.kind, job.id) for job in tables.refreshes()] == [(BACKFILL, noted["jobs"][0])]
        tables.sql(f"UPDATE upkeep SET state = replace(state, '{noted['at']}', '0')")
    tables.store.close()


def test_rows_that_stay_without_a_value_are_a_reason_only_after_commits_of_others(tmp_path: Path) -> None:
    declared = pa.field("double", pa.int64(), metadata=ExpressionDeclaration("id * 2").metadata())
    schema = pa.schema([pa.field("id", pa.int64()), declared])
    nulls = pa.table({"id": range(3), "double": pa.nulls(3, pa.int64())}, schema=schema)
    dataset = lance.write_dataset(nulls, tmp_path / "rows")
    column = ComputedColumn.of(dataset, "double", ["id"], ExpressionDeclaration("id * 2").identity)
    any_: Any = None

    def look(seen: int | None) -> tuple[Any, bool]:
        return automatic_refreshes.RefreshedColumn(any_, dataset, column, 0.0, any_).look(seen)

    assert look(None) == (1, True)
    lance.write_dataset(nulls, dataset.uri, mode="append")
    dataset = lance.dataset(dataset.uri)
    assert (look(1), look(2)) == ((2, True), (2, False))
    dataset.optimize.compact_files()
    refreshed = {"tiltyard.column_refresh": "{}"}  # of another column, or of this one, on which its function failed
    operation = lance.LanceOperation.Update(updated_fragments=[], new_fragments=[], removed_fragment_ids=[])
    transaction = lance.Transaction(int(dataset.version), operation, transaction_properties=refreshed)
    dataset = lance.LanceDataset.commit(dataset.uri, transaction)
    assert (look(2), look(1)) == ((5, False), (5, True))
