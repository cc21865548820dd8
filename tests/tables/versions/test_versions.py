"""Versions, tags, branches and statistics of real tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import Tags
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)
from tests.tables.served import Server, ask

from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import models
from tiltyard.tables.schema import stats
from tiltyard.tables.versions import branches, tags, versions

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.table({"a": [1, 2, 3]})


class Table:
    """The operations, on the table `t`, which has five versions."""

    def __init__(self, server: Server) -> None:
        self.server = server
        dataset = server.create("t", ROWS)
        for _ in range(4):
            dataset.insert(ROWS)

    def call(self, function: Callable[..., Any], **fields: Any) -> Any:
        name = "".join(part.title() for part in function.__name__.split("_"))
        kind = getattr(models, f"{name}Request")
        return function(self.server.ctx, ask(kind, **{"id": "t", **fields}))

    def list(self, **fields: Any) -> list[int]:
        return [entry.version for entry in self.call(versions.list_table_versions, **fields).versions]

    def restore(self, version: int, **fields: Any) -> None:
        self.call(versions.restore_table, version=version, **fields)

    @property
    def dataset(self) -> lance.LanceDataset:
        return self.server.open("t")


@pytest.fixture
def table(server: Server) -> Table:
    return Table(server)


def test_list_versions_in_both_directions(table: Table) -> None:
    assert table.list() == [1, 2, 3, 4, 5]
    assert table.list(descending=True) == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(("down", "pages"), [(False, [[1, 2], [3, 4], [5]]), (True, [[5, 4], [3, 2], [1]])])
def test_list_versions_pages_end_without_a_token(table: Table, down: bool, pages: list[list[int]]) -> None:
    listed, token = [], None
    while not listed or token:
        page = table.call(versions.list_table_versions, limit=2, page_token=token, descending=down)
        listed.append([entry.version for entry in page.versions])
        token = page.page_token
    assert listed == pages


def test_list_versions_latest_alone_after_a_cleanup_has_no_token(table: Table) -> None:
    page = table.call(versions.list_table_versions, limit=1, descending=True)
    assert [entry.version for entry in page.versions] == [5]
    assert page.page_token
    for version in range(1, 5):
        path = f"{table.dataset.uri}/_versions/{2**64 - 1 - version}.manifest"
        table.server.services.storage.delete_files([path])
    page = table.call(versions.list_table_versions, limit=1, descending=True)
    assert ([entry.version for entry in page.versions], page.page_token) == ([5], None)


def test_list_versions_tells_where_the_manifest_is(table: Table) -> None:
    entry = table.call(versions.list_table_versions, limit=1).versions[0]
    assert entry.manifest_path == f"{table.dataset.uri}/_versions/{2**64 - 2}.manifest".lstrip("/")
    assert entry.manifest_size > 0
    assert entry.timestamp_millis > 1_600_000_000_000
    assert entry.metadata["total_rows"] == "3"


def test_list_versions_of_a_declared_table_is_empty(table: Table) -> None:
    table.server.declare("declared")
    assert table.list(id="declared") == []
    with pytest.raises(TableVersionNotFoundError):
        table.call(versions.describe_table_version, id="declared")
    with pytest.raises(InvalidTableStateError):
        table.restore(1, id="declared")


def test_describe_version_one_the_latest_or_none(table: Table) -> None:
    assert table.call(versions.describe_table_version, version=2).version.version == 2
    assert table.call(versions.describe_table_version).version.version == 5
    with pytest.raises(TableVersionNotFoundError):
        table.call(versions.describe_table_version, version=99)


def test_restore_makes_a_new_version_of_an_old_one(table: Table) -> None:
    table.restore(2)
    assert (table.dataset.version, table.dataset.count_rows()) == (6, 6)
    with pytest.raises(TableVersionNotFoundError):
        table.restore(99)
    with pytest.raises(InvalidInputError):
        table.restore(0)


def test_versions_of_a_branch_are_its_own(table: Table) -> None:
    table.call(branches.create_table_branch, name="dev", from_version=2)
    table.dataset.checkout_version(("dev", None)).insert(ROWS)
    assert table.list(branch="dev")[-1] == 3
    entry = table.call(versions.describe_table_version, branch="dev", version=3).version
    assert "/tree/dev/_versions/" in entry.manifest_path
    table.restore(2, branch="dev")
    assert table.dataset.checkout_version(("dev", None)).count_rows() == 6
    assert table.dataset.version == 5
    with pytest.raises(TableBranchNotFoundError):
        table.list(branch="nope")


def test_tags_are_made_moved_listed_and_taken_away(table: Table) -> None:
    table.call(tags.create_table_tag, tag="b", version=2)
    table.call(tags.create_table_tag, tag="a", version=1)
    assert table.call(tags.get_table_tag_version, tag="b").version == 2
    table.call(tags.update_table_tag, tag="b", version=3)
    response = table.call(tags.list_table_tags)
    assert {name: tag.version for name, tag in response.tags.items()} == {"a": 1, "b": 3}
    assert all(tag.manifestSize > 0 for tag in response.tags.values())
    first = table.call(tags.list_table_tags, limit=1)
    second = table.call(tags.list_table_tags, limit=1, page_token=first.page_token)
    assert [list(first.tags), list(second.tags), second.page_token] == [["a"], ["b"], None]
    table.call(tags.delete_table_tag, tag="a")
    assert list(table.call(tags.list_table_tags).tags) == ["b"]


def test_tags_that_cannot_be_are_refused(table: Table) -> None:
    table.call(tags.create_table_tag, tag="a", version=1)
    with pytest.raises(TableTagAlreadyExistsError):
        table.call(tags.create_table_tag, tag="a", version=2)
    with pytest.raises(TableVersionNotFoundError):
        table.call(tags.create_table_tag, tag="b", version=99)
    with pytest.raises(TableVersionNotFoundError):
        table.call(tags.update_table_tag, tag="a", version=99)
    with pytest.raises(InvalidInputError):
        table.call(tags.create_table_tag, tag="no/good", version=1)
    for name, reason in (("t" * 201, "too long"), ("ä", "ASCII")):
        with pytest.raises(InvalidInputError, match=reason):
            table.call(tags.create_table_tag, tag=name, version=1)
    table.call(tags.create_table_tag, tag="t" * 200, version=1)
    for function, fields in [
        (tags.update_table_tag, {"version": 1}),
        (tags.delete_table_tag, {}),
        (tags.get_table_tag_version, {}),
    ]:
        with pytest.raises(TableTagNotFoundError):
            table.call(function, tag="nope", **fields)


@pytest.mark.parametrize("first, refused", [(5, False), (4, True)])
def test_tag_that_comes_to_be_while_it_is_written_is_ours_if_it_names_the_same(
    table: Table, monkeypatch: pytest.MonkeyPatch, first: int, refused: bool
) -> None:
    """Lance sends a tag again if the connection broke after the object store had it, and finds it there."""
    create = Tags.create

    def twice(self: Tags, tag: str, target: Any) -> None:
        create(self, tag, (None, first))
        create(self, tag, target)

    monkeypatch.setattr(Tags, "create", twice)
    with pytest.raises(TableTagAlreadyExistsError) if refused else nullcontext():
        table.call(tags.create_table_tag, tag="a", version=5)
    assert table.call(tags.get_table_tag_version, tag="a").version == first


def test_tag_of_a_branch_says_so(table: Table) -> None:
    table.call(branches.create_table_branch, name="dev", from_version=2)
    table.dataset.checkout_version(("dev", None)).insert(ROWS)
    table.call(tags.create_table_tag, tag="a", version=3, branch="dev")
    response = table.call(tags.get_table_tag_version, tag="a")
    assert (response.version, response.branch) == (3, "dev")


def test_branches_are_made_from_versions_and_branches(table: Table) -> None:
    table.call(branches.create_table_branch, name="one", from_version=2)
    table.call(branches.create_table_branch, name="two", from_branch="one")
    contents = table.call(branches.list_table_branches).branches
    assert {name: (branch.parentBranch, branch.parentVersion) for name, branch in contents.items()} == {
        "one": (None, 2),
        "two": ("one", 2),
    }
    assert all(branch.createAt > 0 and branch.manifestSize > 0 for branch in contents.values())
    with pytest.raises(InvalidInputError, match="begin at the branch 'one': delete those first"):
        table.call(branches.delete_table_branch, name="one")
    table.call(branches.delete_table_branch, name="two")
    table.call(tags.create_table_tag, tag="a", version=2, branch="one")
    with pytest.raises(InvalidInputError, match="begin at the branch 'one': delete those first"):
        table.call(branches.delete_table_branch, name="one")
    assert list(table.call(branches.list_table_branches).branches) == ["one"]


def test_branch_that_several_make_at_once_exists_for_all_but_one(table: Table) -> None:
    def make(_: int) -> bool:
        with suppress(TableBranchAlreadyExistsError):
            table.call(branches.create_table_branch, name="dev")
            return True
        return False

    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(make, range(4))) == [False, False, False, True]
        table.call(branches.delete_table_branch, name="dev")


def test_branches_that_cannot_be_are_refused(table: Table) -> None:
    table.call(branches.create_table_branch, name="one")
    for name in ("one", "main"):
        with pytest.raises(TableBranchAlreadyExistsError):
            table.call(branches.create_table_branch, name=name)
    with pytest.raises(InvalidInputError, match="too long"):
        table.call(branches.create_table_branch, name="b" * 201)
    with pytest.raises(InvalidInputError, match="ASCII"):
        table.call(branches.create_table_branch, name="bücher")
    table.call(branches.create_table_branch, name="b" * 200)
    with pytest.raises(TableBranchNotFoundError):
        table.call(branches.create_table_branch, name="x", from_branch="nope")
    with pytest.raises(TableVersionNotFoundError):
        table.call(branches.create_table_branch, name="x", from_version=99)
    with pytest.raises(TableBranchNotFoundError):
        table.call(branches.delete_table_branch, name="nope")
    with pytest.raises(InvalidInputError):
        table.call(branches.delete_table_branch, name="main")


@pytest.mark.parametrize("main", [None, "", "main"])
def test_operations_take_main_however_it_is_written(table: Table, main: str | None) -> None:
    table.call(branches.create_table_branch, name="one", from_branch=main, from_version=2)
    assert table.list(branch="one")[-1] == 2
    table.call(tags.create_table_tag, tag="first", branch=main, version=1)
    assert table.call(tags.get_table_tag_version, tag="first").branch is None
    assert table.list(branch=main) == [1, 2, 3, 4, 5]
    assert table.call(versions.describe_table_version, branch=main, version=3).version.version == 3
    table.restore(1, branch=main)
    assert table.list()[-1] == 6


def test_stats_are_integers_of_the_real_fragments(server: Server) -> None:
    dataset = server.create("t", pa.table({"a": range(10)}))
    dataset.insert(pa.table({"a": range(5)}))
    dataset.delete("a = 9")
    dataset.create_scalar_index("a", "BTREE")
    response = stats.get_table_stats(server.ctx, ask(models.GetTableStatsRequest, id="t"))
    assert (response.num_rows, response.num_indices) == (14, 1)
    folder = Path(dataset.uri)
    files = [path for part in ("data", "_indices") for path in (folder / part).rglob("*") if path.is_file()]
    assert response.total_bytes == sum(path.stat().st_size for path in files)
    assert (response.fragment_stats.num_fragments, response.fragment_stats.num_small_fragments) == (2, 2)
    lengths = response.fragment_stats.lengths
    assert (lengths.min, lengths.max, lengths.mean, lengths.p25, lengths.p99) == (5, 9, 7, 5, 9)
    assert all(isinstance(getattr(lengths, name), int) for name in lengths.__struct_fields__)


def test_stats_of_a_table_without_rows_are_zero(server: Server) -> None:
    server.create("t", pa.table({"a": pa.array([], pa.int64())}))
    response = stats.get_table_stats(server.ctx, ask(models.GetTableStatsRequest, id="t"))
    assert (response.num_rows, response.fragment_stats.num_fragments, response.fragment_stats.lengths.max) == (0, 0, 0)


def test_list_leaves_out_a_version_that_is_cleaned_up_meanwhile(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = versions._readers

    def cleaned(*arguments: Any) -> Any:
        for number, read in readings(*arguments):
            if number == 2:
                folder = Path(table.dataset.uri) / "_versions"
                (folder / f"{2**64 - 1 - number}.manifest").unlink()
            yield number, read

    monkeypatch.setattr(versions, "_readers", cleaned)
    assert table.list() == [1, 3, 4, 5]


def test_list_of_which_all_is_cleaned_up_meanwhile_does_not_say_that_there_is_no_data(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_existing_version", lambda *_: None)
    with pytest.raises(TableVersionNotFoundError, match="cleaned up"):
        table.list(descending=True, limit=1)


def test_list_versions_with_changes_is_never_answered_on_the_event_loop(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each version did is read from files, and may compare the ids of many rows."""
    _, handler = bound_operations()["ListTableVersions"]
    assert handler is not None
    decide = handler.inline
    newest = {"id": "t", "descending": True, "limit": 1}
    with monkeypatch.context() as patch:
        patch.setattr(versions, "_latest_recorded", lambda *_: models.TableVersion(version=5, manifest_path=""))
        assert decide(table.server.ctx, ask(models.ListTableVersionsRequest, **newest)) is not None
        assert decide(table.server.ctx, ask(models.ListTableVersionsRequest, **newest, load_changes=True)) is None
    (entry,) = table.call(versions.list_table_versions, **newest, load_changes=True).versions
    assert (entry.metadata["operation"], entry.metadata["inserted_rows"]) == ("append", "3")
