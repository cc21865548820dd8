"""Refreshes of views of the kind `select`: what is computed of what was changed, and what the figures say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import msgspec
import pyarrow as pa
import pytest
from lance.blob import blob_array
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from tests.tables.served import Server, ask

from tiltyard.model.spec import models
from tiltyard.tables.versions.versions import list_table_versions
from tiltyard.tables.views import changed_view_rows, select_views
from tiltyard.tables.views.materialized_views import create_materialized_view, refresh_materialized_view
from tiltyard.worker import Worker

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "name": pa.array([f"row {number % 5}" for number in range(100)]).dictionary_encode(),
        "pair": pa.array([{"a": number, "b": [str(number)]} if number % 7 else None for number in range(100)]),
        "vector": pa.array([[float(number), 0.5] for number in range(100)], pa.list_(pa.float32(), 2)),
        "unread": ["x"] * 100,
    }
)


class View:
    """A server with the table `t`, and its view `v`."""

    def __init__(
        self, folder: Path, query: str, rows: pa.Table = ROWS, file_format: str = "2.2", **settings: Any
    ) -> None:
        self.server = Server(folder, **settings)
        self.server.create("t", rows, max_rows_per_file=40, data_storage_version=file_format)
        fields = {"id": ["v"], "kind": "select", "source_query": query, "output_schema": ""}
        create_materialized_view(self.server.ctx, msgspec.convert(fields, models.CreateMaterializedViewRequest))

    @property
    def source(self) -> lance.LanceDataset:
        return self.server.open("t")

    def run(self, **fields: Any) -> Any:
        """Refresh the view; return the record of the job."""
        request = ask(models.RefreshMaterializedViewRequest, id="v", **fields)
        job_id = refresh_materialized_view(self.server.ctx, request).job_id
        assert Worker(self.server.services, 0).run_one()
        return self.server.services.store.describe_transaction(job_id)

    def refresh(self, **fields: Any) -> Mapping[str, str]:
        """Refresh the view; return the figures."""
        record = self.run(**fields)
        assert record.status == "Succeeded", record.error
        return dict(record.properties)

    def check(self, columns: Any = None, condition: str | None = None) -> None:
        """Check that the view has the rows of its query."""
        expected = self.source.to_table(columns=columns, filter=condition).to_pylist()
        assert sorted(map(str, self.server.open("v").to_table().to_pylist())) == sorted(map(str, expected))

    def files(self) -> set[str]:
        folder = Path(self.server.services.store.describe_table(("v",)).location)
        return {str(path) for part in ("data", "_deletions") for path in (folder / part).glob("*")}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., View]]:
    views: list[View] = []

    def make(query: str, *arguments: Any, **settings: Any) -> View:
        views.append(View(tmp_path / str(len(views)), query, *arguments, **settings))
        return views[-1]

    yield make
    for view in views:
        view.server.services.close()


def test_updated_deleted_and_added_rows_alone_are_computed(make: Callable[..., View]) -> None:
    view = make("SELECT * FROM t WHERE id % 2 = 0")
    assert view.refresh()["rows"] == "50"
    view.server.open("v").create_scalar_index("id", "BTREE")
    view.source.update({"name": "'changed'"}, where="id IN (2, 3, 60)")
    view.source.update({"id": "id + 1"}, where="id IN (11, 20)")  # into the view, and out of it
    view.source.delete("id >= 90 AND id < 94")
    view.source.insert(ROWS.slice(0, 1))  # once more
    figures = view.refresh()
    assert figures["mode"] == "incremental"
    assert figures["reason"] == "rows of t were changed or deleted: these alone are computed"
    assert (figures["rows"], figures["removed"]) == ("4", "5")
    view.check(condition="id % 2 = 0")
    assert [index.name for index in view.server.open("v").describe_indices()] == ["id_idx"]
    request = ask(models.ListTableVersionsRequest, id="v", load_changes=True, descending=True, limit=3)
    newest = list_table_versions(view.server.ctx, request).versions
    assert [version.metadata["operation"] for version in newest] == ["refresh", "index", "refresh"]
    assert view.refresh()["mode"] == "unchanged"
    view.source.optimize.compact_files()
    assert view.refresh()["reason"] == "no rows were added"
    view.source.delete("id = 0")  # both of them
    assert view.refresh()["removed"] == "2"
    view.check(condition="id % 2 = 0")


def test_changes_of_what_a_view_does_not_read_leave_it(make: Callable[..., View]) -> None:
    view = make("SELECT ID AS `number`, pair.a FROM t WHERE name <> 'row 1'")
    view.refresh()
    view.source.update({"unread": "'y'"}, where="id < 50")
    figures = view.refresh()
    assert (figures["mode"], figures["reason"]) == ("unchanged", "no rows that the view shows were changed")
    view.source.update({"name": "'row 1'"}, where="id = 2")
    assert (figures := view.refresh())["mode"] == "incremental"
    assert (figures["rows"], figures["removed"]) == ("0", "1")
    view.check({"number": "id", "a": "pair.a"}, "name <> 'row 1'")


def test_upserts_of_a_whole_table_are_rows_that_differ(make: Callable[..., View]) -> None:
    view = make("SELECT vector, unread FROM t")  # no column tells rows apart
    view.refresh()
    rows = view.source.to_table()
    changed = rows.set_column(4, "unread", pa.array(["y" if number < 3 else "x" for number in range(100)]))
    lance.write_dataset(changed, view.source.uri, mode="overwrite")
    figures = view.refresh()
    assert (figures["mode"], figures["rows"], figures["removed"]) == ("incremental", "3", "3")
    view.check(["vector", "unread"])


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT id FROM t LIMIT 5", "rows of t were changed or deleted, and the query has a LIMIT"),
        ("SELECT _rowid AS r, id FROM t", "rows were changed or deleted, and the query reads _rowid"),
        ("SELECT json_get_string(json, 'a') AS a FROM t",
         "rows were changed or deleted, and the column json is stored in another form than it is read"),
    ],
)  # fmt: skip
def test_queries_whose_changes_cannot_be_told_are_computed_again(
    make: Callable[..., View], query: str, reason: str
) -> None:
    json = pa.array(['{"a": "b"}'] * 100, pa.json_())
    view = make(query, ROWS.select(["id"]).append_column("json", json))
    view.refresh()
    view.source.delete("id = 1")
    figures = view.refresh()
    assert (figures["mode"], figures["reason"]) == ("full", reason)
    expected = len(view.source.to_table(limit=5 if "LIMIT" in query else None))
    assert (figures["rows"], view.server.open("v").count_rows()) == (str(expected), expected)


def test_more_changes_than_are_followed_make_a_full_refresh(
    make: Callable[..., View], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = make("SELECT vector FROM t", view_refresh_rows=150)
    view.refresh()
    view.source.delete("id = 1")
    monkeypatch.setattr(changed_view_rows, "MIN_CANDIDATES", 50)
    assert view.refresh()["reason"] == "1 rows of the view are to be removed, and more than 50 may be these"
    view.check(["vector"])
    monkeypatch.setattr(changed_view_rows, "MIN_CHANGED_ROWS", 3)
    view.source.delete("id < 11")
    assert view.refresh()["reason"] == "10 rows of t were changed, and at most 8 changes are followed"
    view.check(["vector"])
    view.source.insert(ROWS)
    view.source.delete("id = 20")
    record = view.run()
    assert record.status == "Failed" and "reads 187 rows, and a server's worker reads 150 at most" in record.error


def test_a_view_that_another_writer_changed_and_a_version_that_is_gone_make_a_full_refresh(
    make: Callable[..., View],
) -> None:
    view = make("SELECT id FROM t")
    view.refresh()
    view.server.open("v").delete("id = 5")
    view.source.delete("id = 6")
    assert view.refresh()["reason"] == "another writer changed the view (version 3: Delete)"
    view.check(["id"])
    view.source.delete("id = 7")
    view.source.cleanup_old_versions(retain_versions=1)
    assert view.refresh()["reason"] == "version 2 of t no longer exists"
    view.check(["id"])


@pytest.mark.parametrize("file_format", ["legacy", "2.0"])
def test_sources_in_earlier_formats_of_files_are_followed(make: Callable[..., View], file_format: str) -> None:
    view = make("SELECT id, vector FROM t", ROWS.select(["id", "vector"]), file_format)
    view.refresh()
    view.source.update({"id": "id + 1000"}, where="id < 3")
    figures = view.refresh()
    assert (figures["mode"], figures["rows"], figures["removed"]) == ("incremental", "3", "3")
    view.check(["id", "vector"])


def test_rows_are_evaluated_some_at_a_time(make: Callable[..., View], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_view_rows, "_BATCH_BYTES", 1)
    view = make("SELECT id, vector FROM t")
    view.refresh()
    for number in range(0, 60, 20):
        view.source.update({"vector": "[1.5, 2.5]"}, where=f"id = {number}")
    assert view.refresh()["rows"] == "3"
    view.check(["id", "vector"])


def test_a_refresh_that_fails_at_its_commit_leaves_no_file(
    make: Callable[..., View], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = make("SELECT id FROM t")
    view.refresh()
    view.source.update({"id": "id + 1000"}, where="id < 10")
    before = view.files()

    def fail(*_: Any) -> Any:
        raise InvalidInputError("the commit is refused")

    with monkeypatch.context() as patch:
        patch.setattr(select_views, "commit_next", fail)
        assert view.run().status == "Failed"
    assert view.files() == before
    figures = view.refresh()
    assert (figures["mode"], figures["rows"], figures["removed"]) == ("incremental", "10", "10")
    view.check(["id"])


def test_blobs_are_not_copied_into_a_view_and_may_lie_beside_its_columns(make: Callable[..., View]) -> None:
    blobs = blob_array([b"blob"] * 100)
    view = make("SELECT id FROM t", ROWS.select(["id"]).append_column(lance.blob.blob_field("blob"), blobs))
    view.refresh()
    view.source.delete("id = 1")
    assert view.refresh()["mode"] == "incremental"
    view.check(["id"])
    fields = {"id": ["w"], "kind": "select", "source_query": "SELECT id, blob FROM t", "output_schema": ""}
    with pytest.raises(UnsupportedOperationError, match="The column 'blob' has blobs"):
        create_materialized_view(view.server.ctx, msgspec.convert(fields, models.CreateMaterializedViewRequest))
