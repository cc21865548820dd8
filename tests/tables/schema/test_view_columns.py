"""Columns that are added to a materialized view: refreshes go on and compute them, and they can be dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from tests.tables.schema.test_select_views import ROWS, View
from tests.tables.served import ask

from tiltyard.model.columns.computed_columns import UdfDeclaration
from tiltyard.model.spec import models
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.columns import alter_table_alter_columns, alter_table_drop_columns
from tiltyard.tables.schema.computed_columns import alter_table_backfill_columns


def add_column(view: View, name: str, **how: str) -> None:
    request = {"id": "v", "new_columns": [{"name": name, **how}]}
    alter_table_add_columns(view.server.ctx, ask(models.AlterTableAddColumnsRequest, **request))


def rows(view: View) -> list[dict[str, Any]]:
    return sorted(view.server.open("v").to_table().to_pylist(), key=lambda row: row["id"])


def test_refresh_of_a_view_with_added_columns_computes_those_of_sql_in_its_commit(tmp_path: Path) -> None:
    view = View(tmp_path, "SELECT id, name FROM t WHERE id < 1000")
    view.refresh()
    add_column(view, "plain", expression="id + 1")
    add_column(view, "twice", computed="ID * 2")
    add_column(view, "label", computed="concat(name, '/', cast(twice as string))")
    view.source.insert(ROWS.slice(0, 3).set_column(0, "id", [[100, 101, 102]]))
    before = view.server.open("v").version
    added = view.refresh()
    assert (added["mode"], added["rows"], view.server.open("v").version) == ("incremental", "3", before + 1)
    assert "left_null" not in added
    new = rows(view)[100:]
    assert [(row["plain"], row["twice"], row["label"]) for row in new] == [
        (None, 200, "row 0/200"), (None, 202, "row 1/202"), (None, 204, "row 2/204"),
    ]  # fmt: skip
    view.source.update({"name": "'changed'"}, where="id IN (2, 101)")  # the view's old rows differ in added columns
    view.source.delete("id = 100")
    changed = view.refresh()
    assert (changed["mode"], changed["rows"], changed["removed"]) == ("incremental", "2", "3")
    assert [row["label"] for row in rows(view) if row["id"] in (2, 101)] == ["changed/4", "changed/202"]
    full = view.refresh(full=True)
    assert full["mode"] == "full"
    assert [(row["twice"], row["label"]) for row in rows(view)] == [
        (2 * row["id"], f"{row['name']}/{2 * row['id']}") for row in rows(view)
    ]


def test_backfill_of_an_added_column_and_its_drop_leave_refreshes_incremental(tmp_path: Path) -> None:
    view = View(tmp_path, "SELECT id, name FROM t")
    view.refresh()
    add_column(view, "twice", computed="id * 2")
    request = ask(models.AlterTableBackfillColumnsRequest, id="v", column="twice")
    alter_table_backfill_columns(view.server.ctx, request)
    assert view.server.run_jobs() == ["Succeeded"]
    assert rows(view)[7]["twice"] == 14
    assert view.refresh()["mode"] == "unchanged"
    view.source.delete("id = 0")
    assert view.refresh()["mode"] == "incremental"
    alter_table_drop_columns(view.server.ctx, ask(models.AlterTableDropColumnsRequest, id="v", columns=["twice"]))
    view.source.delete("id = 1")
    assert view.refresh()["mode"] == "incremental"
    view.check(columns=["id", "name"])


def test_drop_and_rename_of_a_column_that_a_views_query_makes_are_refused(tmp_path: Path) -> None:
    view = View(tmp_path, "SELECT id, name FROM t")
    view.refresh()
    with pytest.raises(InvalidInputError, match="The view's query makes the column 'name': create another view"):
        alter_table_drop_columns(view.server.ctx, ask(models.AlterTableDropColumnsRequest, id="v", columns=["name"]))
    alterations = [{"path": "name", "rename": "title"}]
    with pytest.raises(InvalidInputError, match="The view's query makes the column 'name': create another view"):
        alter_table_alter_columns(
            view.server.ctx, ask(models.AlterTableAlterColumnsRequest, id="v", alterations=alterations)
        )


def test_refresh_whose_added_column_fails_on_a_row_names_the_column(tmp_path: Path) -> None:
    view = View(tmp_path, "SELECT id, name FROM t")
    add_column(view, "number", computed="cast(name as int)")
    failed = view.run()
    assert failed.status == "Failed"
    assert "number: SQL that computes an added column fails on a row of the view" in str(failed.error)


def test_refresh_leaves_columns_of_code_null_and_what_reads_them_and_names_both(tmp_path: Path) -> None:
    view = View(tmp_path, "SELECT id, name FROM t")
    declaration = UdfDeclaration(name="f", version="1", code="AA==", inputs=("id",))
    view.server.open("v").add_columns([pa.field("coded", pa.int64(), metadata=declaration.metadata())])
    add_column(view, "more", computed="coded + id")
    add_column(view, "twice", computed="id * 2")
    assert view.refresh()["left_null"] == "coded,more"
    assert rows(view)[3] == {"id": 3, "name": "row 3", "coded": None, "more": None, "twice": 6}
