"""A branch compared with main, and its columns promoted to main."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import TableBranchNotFoundError
from tests.tables.served import Server, ask

from tiltyard.model.spec import models
from tiltyard.runtime import failpoints
from tiltyard.tables.rows import merge, update_delete  # noqa: F401  # registers them
from tiltyard.tables.versions.branch_diff import diff_table_branch
from tiltyard.tables.versions.branches import create_table_branch, delete_table_branch
from tiltyard.tables.versions.cherry_pick import cherry_pick_table_branch

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.table({"id": pa.array(range(6), pa.int64()), "x": pa.array(range(6), pa.float64())})


class Fork:
    """The table `t` of six rows in three fragments, one row deleted, and its branch `dev`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.main = server.create("t", ROWS, max_rows_per_file=2)
        self.main.delete("id = 1")
        server.ctx.store.describe_table(("t",))
        create_table_branch(server.ctx, ask(models.CreateTableBranchRequest, id="t", name="dev"))

    @property
    def dev(self) -> lance.LanceDataset:
        return self.server.open("t").checkout_version(("dev", None))

    def latest(self) -> lance.LanceDataset:
        return self.server.open("t")

    def diff(self, branch: str = "dev") -> models.DiffTableBranchResponse:
        return diff_table_branch(self.server.ctx, ask(models.DiffTableBranchRequest, id="t", from_branch=branch))

    def pick(self, branch: str = "dev", **fields: Any) -> models.CherryPickTableBranchResponse:
        request = ask(models.CherryPickTableBranchRequest, id="t", from_branch=branch, **fields)
        return cherry_pick_table_branch(self.server.ctx, request)

    def data_files(self) -> set[str]:
        return {path.name for path in Path(self.latest().uri, "data").iterdir()}


@pytest.fixture
def fork(server: Server) -> Fork:
    return Fork(server)


def codes(diff: Any) -> list[str]:
    return [error.code for error in diff.errors]


def test_cherry_pick_of_a_new_column_adds_it_to_main_in_one_commit(fork: Fork) -> None:
    fork.dev.add_columns({"d": "x * 2"})
    diff = fork.diff()
    assert [(column.name, column.dataType, column.nullable) for column in diff.addedColumns] == [("d", "double", True)]
    assert (diff.parentVersion, diff.mainVersion, diff.branchVersion, diff.baseMoved) == (2, 2, 3, False)
    assert (diff.rowCountMain, diff.rowCountBranch, codes(diff)) == (5, 5, [])
    assert (diff.rowSummary.unchanged, diff.rowSummary.newOnBase, diff.rowSummary.deltaAvailable) == (5, 0, True)
    preview = fork.pick(dry_run=True)
    assert (preview.status, preview.preview.promotedColumns, preview.mainVersionAfter) == ("ready", ["d"], None)
    assert fork.latest().version == 2
    picked = fork.pick()
    assert (picked.status, picked.mainVersionAfter) == ("cherryPicked", 3)
    main = fork.latest()
    assert main.version == 3
    assert main.to_table().to_pydict()["d"] == [0.0, 4.0, 6.0, 8.0, 10.0]
    again = fork.pick()
    assert (again.status, codes(again.diff), again.preview.promotedColumns) == ("failed", ["nothingToApply"], [])


def test_promoted_columns_outlive_their_branch_and_take_later_changes(fork: Fork) -> None:
    fork.dev.add_columns({"d": "x * 2", "e": "id + 1"})
    fork.dev.drop_columns(["e"])
    struct = "named_struct('low', id, 'high', named_struct('top', x))"
    fork.dev.add_columns({"s": struct})
    assert fork.pick().preview.promotedColumns == ["d", "s"]
    delete_table_branch(fork.server.ctx, ask(models.DeleteTableBranchRequest, id="t", name="dev"))
    main = fork.latest()
    main.insert(pa.table({"id": pa.array([9], pa.int64())}))
    main.delete("id = 0")
    main.update({"d": "d + 0.5"}, where="id = 2")
    main.add_columns({"later": "s.high.top"})
    rows = main.to_table().sort_by("id").to_pydict()
    assert rows["d"] == [4.5, 6.0, 8.0, 10.0, None]
    assert rows["later"] == [2.0, 3.0, 4.0, 5.0, None]
    assert rows["s"][0] == {"low": 2, "high": {"top": 2.0}}
    main.validate()


def test_column_that_main_has_gained_meanwhile_gets_no_field_id_of_its_own_twice(fork: Fork) -> None:
    create_table_branch(fork.server.ctx, ask(models.CreateTableBranchRequest, id="t", name="other"))
    fork.dev.add_columns({"d": "x * 2"})
    other = fork.latest().checkout_version(("other", None))
    other.add_columns({"gone": "x", "e": "x * 3"})
    assert fork.pick().status == fork.pick("other").status == "cherryPicked"
    assert fork.latest().to_table(columns=["d", "e"]).to_pydict() == {
        "d": [0.0, 4.0, 6.0, 8.0, 10.0],
        "e": [0.0, 6.0, 9.0, 12.0, 15.0],
    }


def test_indexes_of_the_branch_are_listed_and_stay_there(fork: Fork) -> None:
    fork.dev.create_scalar_index("id", "BTREE")
    diff = fork.diff()
    assert [(index.indexName, index.columns, index.status) for index in diff.addedIndexes] == [
        ("id_idx", ["id"], "done")
    ]
    assert codes(diff) == ["noColumnChanges"]
    fork.dev.add_columns({"d": "x"})
    assert fork.pick().status == "cherryPicked"
    assert fork.latest().describe_indices() == []


def change_rows(fork: Fork, where: str) -> None:
    (fork.latest() if where == "main" else fork.dev).insert(ROWS.slice(0, 1))


def delete_rows(fork: Fork, where: str) -> None:
    (fork.latest() if where == "main" else fork.dev).delete("id = 2")


def update_rows(fork: Fork, where: str) -> None:
    (fork.latest() if where == "main" else fork.dev).update({"x": "0.5"}, where="id = 2")


@pytest.mark.parametrize(
    ("change", "where", "expected", "rows"),
    [
        (change_rows, "main", ["baseMoved", "rowCountMismatch"], (5, 1, 0)),
        (change_rows, "dev", ["rowsChanged", "rowCountMismatch"], (5, 0, 1)),
        (delete_rows, "main", ["baseMoved", "rowCountMismatch"], (4, 0, 1)),
        (delete_rows, "dev", ["rowsChanged", "rowCountMismatch"], (4, 1, 0)),
        (update_rows, "main", ["baseMoved"], (4, 1, 1)),
        (update_rows, "dev", ["rowsChanged"], (4, 1, 1)),
    ],
)
def test_other_rows_on_either_side_keep_columns_from_being_promoted(
    fork: Fork, change: Callable[[Fork, str], None], where: str, expected: list[str], rows: tuple[int, int, int]
) -> None:
    fork.dev.add_columns({"d": "x * 2"})
    change(fork, where)
    picked = fork.pick()
    summary = picked.diff.rowSummary
    assert (picked.status, codes(picked.diff)) == ("failed", expected)
    assert (summary.unchanged, summary.newOnBase, summary.newOnBranch) == rows
    assert summary.staleRecompute == summary.newOnBase
    assert "d" not in fork.latest().schema.names


def test_both_sides_with_a_new_fragment_of_one_id_have_different_rows(fork: Fork) -> None:
    fork.dev.add_columns({"d": "x * 2"})
    change_rows(fork, "main")
    change_rows(fork, "dev")
    diff = fork.diff()
    assert codes(diff) == ["baseMoved", "rowsChanged"]
    assert (diff.rowSummary.unchanged, diff.rowSummary.newOnBase, diff.rowSummary.newOnBranch) == (5, 1, 1)


def test_columns_that_differ_are_said_with_both_definitions(fork: Fork) -> None:
    fork.dev.alter_columns({"path": "x", "nullable": True, "name": "y"})
    fork.dev.add_columns(pa.field("x", pa.int32()))
    diff = fork.diff()
    assert [(change.name, change.main.dataType, change.branch.dataType) for change in diff.changedColumns] == [
        ("x", "double", "int32")
    ]
    assert codes(diff) == ["columnChanged"]
    fork.dev.drop_columns(["id"])
    removed = fork.diff()
    assert [column.name for column in removed.removedColumns] == ["id"] and "columnRemoved" in codes(removed)


def test_column_that_main_has_dropped_is_not_brought_back(fork: Fork) -> None:
    fork.dev.add_columns({"d": "x * 2"})
    fork.latest().drop_columns(["x"])
    diff = fork.diff()
    assert [column.name for column in diff.addedColumns] == ["x", "d"]
    assert codes(diff) == ["baseMoved"] and diff.baseMoved


def test_computed_column_whose_inputs_are_others_by_now_says_so(fork: Fork) -> None:
    declared = {"tiltyard.computed.expression": "x * 2"}
    fork.dev.add_columns(pa.field("d", pa.float64(), metadata=declared))
    fork.latest().drop_columns(["x"])
    assert codes(fork.diff()) == ["baseMoved", "inputColumnDependency"]


def test_metadata_and_files_marked_as_fresh_come_along(fork: Fork) -> None:
    declared = {"tiltyard.computed.expression": "x * 2", "unit": "m"}
    fork.dev.add_columns(pa.field("d", pa.float64(), metadata=declared))
    assert fork.pick().status == "cherryPicked"
    assert fork.latest().schema.field("d").metadata == {key.encode(): text.encode() for key, text in declared.items()}
    assert fork.latest().to_table()["d"].to_pylist() == [None] * 5


def test_branch_of_a_branch_and_one_without_changes_have_nothing_to_promote(fork: Fork) -> None:
    assert codes(fork.diff()) == ["nothingToApply"]
    create_table_branch(fork.server.ctx, ask(models.CreateTableBranchRequest, id="t", name="second", from_branch="dev"))
    fork.latest().checkout_version(("second", None)).add_columns({"d": "x"})
    diff = fork.diff("second")
    assert codes(diff) == ["parentNotMain"] and not diff.rowSummary.deltaAvailable
    with pytest.raises(TableBranchNotFoundError):
        fork.diff("nope")
    with pytest.raises(TableBranchNotFoundError):
        fork.pick("main")


def test_blobs_are_not_promoted(fork: Fork) -> None:
    fork.dev.add_columns(pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}))
    assert fork.pick().status == "notImplemented"


def test_append_between_comparison_and_commit_fails_the_cherry_pick_and_leaves_no_file(
    fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork.dev.add_columns({"d": "x * 2"})
    reached: list[str] = []

    def append(point: Any) -> None:
        if not reached:
            reached.append(str(point))
            change_rows(fork, "main")

    monkeypatch.setattr("tiltyard.storage.writing.reach", append)
    before = fork.data_files()
    picked = fork.pick()
    assert reached and (picked.status, codes(picked.diff)) == ("failed", ["baseMoved", "rowCountMismatch"])
    assert len(fork.data_files() - before) == 1


def test_cherry_pick_that_ends_before_its_commit_changes_nothing(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    fork.dev.add_columns({"d": "x * 2"})

    def end(point: Any) -> None:
        raise failpoints.FaultError("ended")

    with monkeypatch.context() as patch:
        patch.setattr("tiltyard.storage.writing.reach", end)
        with pytest.raises(failpoints.FaultError):
            fork.pick()
    assert fork.latest().version == 2
    assert fork.pick().status == "cherryPicked"
