"""What others may change between the reads of a publication's block and its end: nothing, unless it says so."""

# ruff: noqa: PT012 - what raises is the end of a block, whatever it holds

from __future__ import annotations

from typing import Any

import lance
import pytest
from lance_namespace import CountTableRowsRequest, DropTableRequest
from lance_namespace.errors import InvalidInputError, TableNotFoundError

import tiltyard
from tests.conformance.conftest import Raw
from tests.conformance.test_publish import ROWS, OutsideView, client, outside, write
from tests.histories.anomalies import Outcome
from tests.histories.publications import Lists, judge_publications, run_history

__all__ = ["client", "outside"]

ONE = ROWS.slice(2)


def count(namespace: Any, table_id: list[str]) -> int:
    return int(lance.dataset(namespace_client=namespace, table_id=table_id).count_rows())


def test_publish_whose_read_table_changes_names_it_and_publishes_nothing(client: Any, outside: OutsideView) -> None:
    outside.make("read", "written")
    outside.wait_until_settled()
    before = outside.files()
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as tables:
        assert count(tables, outside.id("read")) == 3
        write(client, outside.id("read"), "append", ONE)
        assert count(tables, outside.id("read")) == 3, "the block reads one version"
        write(tables, outside.id("written"), "append")
    assert conflict.value.tables == (tuple(outside.id("read")),)
    assert (outside.rows("read"), outside.rows("written")) == (4, 3)
    gone = [path for path in outside.files() - before if "/data/" in path]
    assert len(gone) == 1, "the row of the other writer"


def test_publish_of_two_blocks_that_read_what_the_other_writes_publishes_one(client: Any, outside: OutsideView) -> None:
    outside.make("a", "b")
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as first:
        assert count(first, outside.id("a")) == 3
        with tiltyard.publish(client) as second:
            assert count(second, outside.id("b")) == 3
            write(second, outside.id("a"), "append", ONE)
        write(first, outside.id("b"), "append", ONE)
    assert conflict.value.tables == (tuple(outside.id("a")),)
    assert (outside.rows("a"), outside.rows("b")) == (4, 3)


def test_publish_by_snapshot_lets_others_change_what_it_reads(client: Any, outside: OutsideView) -> None:
    outside.make("a", "b", "named")
    with tiltyard.publish(client, isolation="snapshot") as tables:
        assert count(tables, outside.id("a")) == 3
        write(client, outside.id("a"), "append", ONE)
        assert count(tables, outside.id("a")) == 4
        write(tables, outside.id("b"), "append", ONE)
    assert outside.rows("b") == 4
    publication = tiltyard.publish(client, isolation="snapshot", reads=[outside.id("named")])
    with pytest.raises(tiltyard.PublishConflictError) as conflict, publication as tables:
        write(client, outside.id("a"), "append", ONE)
        write(client, outside.id("named"), "append", ONE)
        write(tables, outside.id("b"), "append", ONE)
    assert conflict.value.tables == (tuple(outside.id("named")),)
    assert outside.rows("b") == 4


def test_publish_that_only_reads_finds_a_state_of_several_tables_that_never_was(
    client: Any, outside: OutsideView
) -> None:
    outside.make("a", "b")
    with tiltyard.publish(client) as tables:
        assert count(tables, outside.id("a")) == count(tables, outside.id("b"))
    assert tables.transaction_id, "both versions were checked at one moment"
    with pytest.raises(tiltyard.PublishConflictError), tiltyard.publish(client) as tables:
        count(tables, outside.id("a"))
        for name in ("a", "b"):
            write(client, outside.id(name), "append", ONE)
        count(tables, outside.id("b"))
    with tiltyard.publish(client) as tables:
        count(tables, outside.id("a"))
        write(client, outside.id("a"), "append", ONE)
    assert tables.transaction_id is None, "a version of one table is a state that was"


def test_publish_depends_on_what_the_server_reads_for_it(client: Any, outside: OutsideView) -> None:
    outside.make("a", "b")
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as tables:
        assert tables.count_table_rows(CountTableRowsRequest(id=outside.id("a"))).count == 3
        write(client, outside.id("a"), "append", ONE)
        write(tables, outside.id("b"), "append", ONE)
    assert conflict.value.tables == (tuple(outside.id("a")),)


@pytest.mark.parametrize("change", ["dropped", "replaced"])
def test_publish_whose_read_table_is_dropped_or_replaced_names_it(
    client: Any, outside: OutsideView, change: str
) -> None:
    outside.make("a", "b")
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as tables:
        assert count(tables, outside.id("a")) == 3
        client.drop_table(DropTableRequest(id=outside.id("a")))
        if change == "replaced":
            outside.make("a")
        write(tables, outside.id("b"), "append", ONE)
    assert conflict.value.tables == (tuple(outside.id("a")),)
    assert outside.rows("b") == 3


def test_publish_that_reads_an_older_version_by_its_number_depends_on_nothing(
    client: Any, outside: OutsideView
) -> None:
    outside.make("a", "b")
    with tiltyard.publish(client) as tables:
        assert lance.dataset(namespace_client=tables, table_id=outside.id("a"), version=1).count_rows() == 3
        write(client, outside.id("a"), "append", ONE)
        write(tables, outside.id("b"), "append", ONE)
    assert outside.rows("b") == 4


def test_publish_that_reads_an_unmanaged_table_compares_it_at_the_end(
    client: Any, outside: OutsideView, raw: Raw
) -> None:
    outside.make("b")
    off = {"properties": {"tiltyard.managed_versioning": "false"}}
    raw.post(f"/v1/table/{outside.namespace}$plain/declare", off)
    lance.write_dataset(ROWS, outside.location("plain"), storage_options=outside.options)
    with tiltyard.publish(client) as tables:
        assert count(tables, outside.id("plain")) == 3
        write(tables, outside.id("b"), "append", ONE)
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as tables:
        assert count(tables, outside.id("plain")) == 3
        lance.write_dataset(ONE, outside.location("plain"), storage_options=outside.options, mode="append")
        write(tables, outside.id("b"), "append", ONE)
    assert conflict.value.tables == (tuple(outside.id("plain")),)
    assert outside.rows("b") == 4


def test_publish_by_an_unknown_isolation_or_of_a_missing_table_is_refused(client: Any, outside: OutsideView) -> None:
    with pytest.raises(InvalidInputError, match=r"'snapshots' is none: choose from serializable, snapshot"):
        tiltyard.publish(client, isolation="snapshots")
    with pytest.raises(TableNotFoundError), tiltyard.publish(client, reads=[outside.id("missing")]):
        raise AssertionError


def test_batch_commit_checks_versions_as_its_own_operation(raw: Raw, client: Any, outside: OutsideView) -> None:
    outside.make("a")
    path = "/v1/table/batch-commit"

    def check(**fields: Any) -> Any:
        return raw.post(path, {"operations": [{"check_table_version": {"id": outside.id("a"), **fields}}]})

    passed = check(version=1)
    assert passed.status_code == 200, passed.text
    assert passed.json()["results"] == [{"check_table_version": {"version": 1}}]
    write(client, outside.id("a"), "append", ONE)
    changed = check(version=1)
    assert (changed.status_code, changed.json()["code"]) == (409, 14), changed.text
    assert "has version 2 by now, and version 1 was read" in changed.json()["error"]
    assert check(version=2, location="elsewhere").status_code == 409
    assert check(version=2, branch="none").status_code == 200, "nothing was ever committed to it"
    missing = raw.post(path, {"operations": [{"check_table_version": {"id": ["none"], "version": 1}}]})
    assert (missing.status_code, missing.json()["code"]) == (404, 4)
    assert check().status_code == 400, "a version is required"


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_publish_in_random_histories_has_the_anomalies_of_its_isolation_alone(
    client: Any, outside: OutsideView, isolation: str
) -> None:
    lists = Lists([outside.id(f"list{number}") for number in range(3)], isolation)
    history, final = run_history(client, lists, threads=4, transactions=8, seed=1)
    assert sum(entry.outcome is Outcome.PUBLISHED and bool(entry.appends) for entry in history) > 8, "they came through"
    assert not judge_publications(lists, history, final)
