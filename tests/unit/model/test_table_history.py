"""Transactions of a table's versions, read one by one; and the bug of pylance that the reader works around."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation

from tiltyard.change_feed.table_history import read_transaction, read_transactions
from tiltyard.model.views.definitions import ViewLineage
from tiltyard.tables.commits.idempotency_marks import REQUESTS, marked_rows

ROWS = pa.table({"id": [1, 2, 3]})
CANNOT_READ_REWRITTEN_INDEXES = ["14.0.2"]
"""Versions of pylance that cannot read a compaction's commit. If yours can, the work-around is no longer needed: raise
the lower bound in pyproject.toml above these, and delete this list and `table_history._default_missing_fields`."""


@pytest.fixture
def compacted(tmp_path: Path) -> lance.LanceDataset:
    """A table whose version 4 is a compaction that remapped an index; version 3 is Lance's own, for the new ids."""
    dataset = lance.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=2)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    assert dataset.version == 4
    return dataset


def test_pylance_cannot_read_a_compaction_that_remapped_an_index(
    compacted: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    constructor: Any = LanceOperation.RewrittenIndex.__init__
    monkeypatch.setattr(constructor, "__defaults__", None)  # as pylance has it
    read = [lambda: compacted.read_transaction(4), lambda: compacted.get_transactions(1)]
    for entry in read:
        if lance.__version__ in CANNOT_READ_REWRITTEN_INDEXES:
            with pytest.raises(TypeError, match="RewrittenIndex"):
                entry()
        else:
            entry()
            pytest.fail(
                f"pylance {lance.__version__} reads it: the work-around in tiltyard.change_feed.table_history can go."
            )


def test_read_transaction_of_a_compaction_that_remapped_an_index_tells_its_fragments(
    compacted: lance.LanceDataset,
) -> None:
    transaction = read_transaction(compacted, 4)
    assert transaction is not None
    assert isinstance(transaction.operation, LanceOperation.Rewrite)
    assert [len(list(group.old_fragments)) for group in transaction.operation.groups] == [2]
    assert len(list(transaction.operation.rewritten_indices)) == 1


def test_read_transactions_goes_back_over_a_compaction_newest_first(compacted: lance.LanceDataset) -> None:
    kinds = [(version, type(entry.operation).__name__) for version, entry in read_transactions(compacted)]
    assert (kinds[0], kinds[2:]) == ((4, "Rewrite"), [(2, "CreateIndex"), (1, "Overwrite")])
    assert [version for version, _ in read_transactions(compacted, since=2)] == [4, 3]
    assert [version for version, _ in read_transactions(compacted, since=-5)] == [4, 3, 2, 1]


def test_read_transactions_ends_where_versions_were_cleaned_up(compacted: lance.LanceDataset) -> None:
    compacted.tags.create("kept", 1)
    compacted.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    assert [version for version, _ in read_transactions(compacted)] == [4]
    assert read_transaction(compacted, 3) is None


def test_read_transactions_of_a_branch_ends_where_it_left_main(compacted: lance.LanceDataset) -> None:
    branch = compacted.create_branch("b")
    branch.insert(ROWS)
    kinds = [type(entry.operation).__name__ for _, entry in read_transactions(branch)]
    assert kinds == ["Append", "Clone"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"sources": 1}', '{"sources": {"a": [1]}, "definition": "", "cut": false}']
)
def test_what_a_view_was_made_of_is_not_known_where_a_client_wrote_anything_else(text: str) -> None:
    assert ViewLineage.from_properties({"tiltyard.view.made": text}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"id": "3"}', '{"id": {}}', "[" * 100_000])
def test_marks_that_a_client_wrote_otherwise_are_none(text: str) -> None:
    transaction = lance.Transaction(1, LanceOperation.Append([]), transaction_properties={REQUESTS: text})
    assert marked_rows(transaction, "id") is None


def test_a_dataset_whose_history_is_read_can_be_used_by_other_threads(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    for _ in range(20):
        dataset.insert(ROWS)
    is_read = threading.Event()

    def read_history() -> None:
        for _ in range(4):
            assert [version for version, _ in read_transactions(dataset)] == list(range(21, 0, -1))

    def use() -> None:
        while not is_read.is_set():
            assert dataset.version == 21

    with ThreadPoolExecutor(5) as pool:
        users = [pool.submit(use) for _ in range(2)]
        try:
            for reader in [pool.submit(read_history) for _ in range(3)]:
                reader.result()
        finally:
            is_read.set()
        for user in users:
            user.result()
