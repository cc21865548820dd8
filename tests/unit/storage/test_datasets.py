"""Shared datasets: whatever happened to a table since it was opened, they are its latest version."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import TableBranchNotFoundError

from tests.services.s3 import s3_server
from tiltyard.model.branches import MAIN, Branch
from tiltyard.storage import datasets
from tiltyard.storage.caches import shared_snapshots
from tiltyard.storage.datasets import Datasets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.s3 import S3Server

ROW = pa.table({"a": [1]})


@pytest.fixture(scope="module")
def objects() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def append(location: str, times: int = 1) -> None:
    for _ in range(times):
        lance.write_dataset(ROW, location, mode="append")


def clean_up(location: str) -> None:
    lance.dataset(location).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)


@pytest.fixture
def location(tmp_path: Path) -> str:
    lance.write_dataset(ROW, tmp_path / "t.lance")
    return str(tmp_path / "t.lance")


@pytest.fixture
def opened() -> Datasets:
    return Datasets(1 << 20, 1 << 20)


@pytest.mark.parametrize("commits", [1, 2, 7, datasets._MAX_STEPS, datasets._MAX_STEPS + 3])
def test_open_for_reading_after_commits_of_others_has_the_last(opened: Datasets, location: str, commits: int) -> None:
    assert opened.open_for_reading(location).version == 1
    append(location, commits)
    latest = opened.open_for_reading(location)
    assert latest.version == 1 + commits and latest.count_rows() == 1 + commits
    assert opened.open_for_reading(location) is latest


def test_open_for_reading_opens_nothing_anew_for_a_few_commits(
    opened: Datasets, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.open_for_reading(location)
    append(location, 3)

    def opens(*_: object, **__: object) -> lance.LanceDataset:
        raise AssertionError("opened anew")

    monkeypatch.setattr(opened, "open_for_writing", opens)
    assert opened.open_for_reading(location).version == 4


def test_cache_keeps_the_snapshot_that_a_reader_has_opened_of_the_same_version(opened: Datasets, location: str) -> None:
    opened.open_snapshot(location)
    committed = lance.write_dataset(ROW, location, mode="append")
    read = opened.open_snapshot(location)
    assert opened.cache(location, MAIN, committed) is read
    append(location)  # a version that no reader has opened
    committed = lance.dataset(location)
    assert opened.cache(location, MAIN, committed).dataset is committed
    shutil.rmtree(location)
    lance.write_dataset(ROW, location)
    append(location, 2)  # another table's version of the same number
    replaced = lance.dataset(location)
    assert opened.cache(location, MAIN, replaced).dataset is replaced


def test_open_for_reading_of_a_branch_moves_on_along_it(opened: Datasets, location: str) -> None:
    branch = lance.dataset(location).create_branch("b")
    before = opened.open_for_reading(location, Branch("b"))
    lance.write_dataset(ROW, branch, mode="append")
    append(location, 5)
    assert opened.open_for_reading(location, Branch("b")).version == before.version + 1
    assert opened.open_for_reading(location).version == 6


@pytest.mark.parametrize("kept", ["tag", "branch"])
def test_open_for_reading_of_a_kept_version_sees_those_beyond_a_gap(opened: Datasets, location: str, kept: str) -> None:
    """Clean-up leaves what has a tag or a branch, and takes the versions right behind it."""
    if kept == "tag":
        lance.dataset(location).tags.create("kept", 1)
    else:
        lance.dataset(location).create_branch("kept")
    assert opened.open_for_reading(location).version == 1
    append(location, 3)
    clean_up(location)
    assert opened.open_for_reading(location).version == 4
    append(location, 2)
    assert opened.open_for_reading(location).version == 6


def test_open_for_reading_of_a_tagged_table_lists_its_versions_once(
    opened: Datasets, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance.dataset(location).tags.create("kept", 1)
    monkeypatch.setattr(shared_snapshots, "_SETTLED_NS", 0)
    seen: list[lance.LanceDataset] = []
    says = shared_snapshots._lance_says_latest
    monkeypatch.setattr(shared_snapshots, "_lance_says_latest", lambda handle: seen.append(handle) or says(handle))
    for _ in range(5):
        assert opened.open_for_reading(location).version == 1
    assert len(seen) == 1
    append(location)
    assert opened.open_for_reading(location).version == 2
    assert opened.open_for_reading(location).version == 2
    assert len(seen) == 2


def test_open_for_reading_of_a_table_made_again_in_its_place_has_the_new_one(opened: Datasets, location: str) -> None:
    append(location, 2)
    assert opened.open_for_reading(location).version == 3
    lance.LanceDataset.drop(location, {"ignore_not_found": "false"})
    lance.write_dataset(pa.table({"b": ["x"]}), location)
    assert opened.open_for_reading(location).schema.names == ["b"]


def test_open_for_reading_of_a_table_replaced_by_a_copy_has_the_copy(
    opened: Datasets, location: str, tmp_path: Path
) -> None:
    lance.write_dataset(pa.table({"a": [1, 2, 3]}), tmp_path / "copy.lance")
    assert opened.open_for_reading(location).count_rows() == 1
    shutil.rmtree(location)
    shutil.copytree(tmp_path / "copy.lance", location)
    assert opened.open_for_reading(location).count_rows() == 3


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_open_for_reading_of_a_branch_that_was_made_anew_has_the_new_one(
    opened: Datasets, location: str, request: pytest.FixtureRequest, where: str
) -> None:
    options: dict[str, str] = {}
    if where == "s3":
        objects: S3Server = request.getfixturevalue("objects")
        location, options = f"{objects.new_bucket('branches')}/t.lance", objects.options
        lance.write_dataset(ROW, location, storage_options=options)
        opened.options_of = lambda _: options
    for rows in (2, 3):
        branch = lance.dataset(location, storage_options=options).create_branch("dev")
        branch.insert(pa.table({"a": range(rows)}), mode="append")
        assert [opened.open_for_reading(location, Branch("dev")).count_rows() for _ in range(2)] == [1 + rows] * 2
        lance.dataset(location, storage_options=options).branches.delete("dev")
        time.sleep(1)  # a branch is known by the second that it was made in
    with pytest.raises(TableBranchNotFoundError):
        opened.open_for_reading(location, Branch("dev"))


def test_bytes_of_the_session_are_those_that_it_counts(tmp_path: Path) -> None:
    opened = Datasets(1 << 20, 1 << 20)
    lance.write_dataset(pa.table({"a": range(100)}), tmp_path).create_scalar_index("a", "BTREE")
    assert opened.session_bytes == 0
    lance.dataset(str(tmp_path), session=opened.session).to_table(filter="a = 5")
    assert opened.session.index_cache_size_bytes() > 0
    # What `size_bytes` adds are the two caches themselves.
    assert 0 <= opened.session.size_bytes() - opened.session_bytes < 1024
