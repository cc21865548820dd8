"""A stream of a folder: each row once, the last of each key, whatever comes between."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    TableSchemaValidationError,
)

import tiltyard
from tests.streams.conftest import Put, RunStream
from tiltyard.contracts.checks import parse_check
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.streams import target as stream_target
from tiltyard.pipeline.streams.batches import BatchLimits, StreamBatch, with_sequence
from tiltyard.pipeline.streams.folder import FolderSource
from tiltyard.pipeline.streams.job import stream
from tiltyard.pipeline.streams.target import StreamOptions, StreamTable
from tiltyard.runtime.failpoints import FaultError, Point

LIMITS = BatchLimits(50_000, 1 << 20, 0.01)


def rows(films: Table, *columns: str) -> list[tuple[Any, ...]]:
    """All rows of the table, sorted."""
    found = films.dataset().to_table(columns=list(columns))
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True), key=str)


def ids(films: Table) -> list[int]:
    return sorted(films.dataset().to_table(columns=["id"])["id"].to_pylist())


def opened(films: Table, folder: Path, name: str = "films", **options: Any) -> tuple[StreamTable, FolderSource]:
    """A stream as a job opens it."""
    target = StreamTable(LocalRun(), films, StreamOptions(name, **options))
    return target, FolderSource(str(folder), {}, {}, dict(target.open() or {}))


def step(target: StreamTable, source: FolderSource) -> None:
    batch = source.read(target.schema, LIMITS, target.run.check)
    assert batch is not None
    target.apply(batch)


def test_stream_creates_the_table_and_appends_each_file_once(
    films: Table, put: Put, run_stream: RunStream, folder: Path
) -> None:
    put("1.jsonl", {"id": 1, "title": "a"}, {"id": 2, "title": "b"})
    figures = run_stream()
    assert (figures["rows"], figures["batches"], figures["lag"], figures["rejected"]) == (2, 1, 0, 0)
    put("0.jsonl", {"id": 1, "title": "a"})  # before the first by name, with a row that is there: it is appended
    assert run_stream()["rows"] == 1
    before = films.latest_version()
    assert run_stream()["rows"] == 0
    assert films.latest_version() == before, "nothing new commits nothing"
    assert ids(films) == [1, 1, 2]
    (edge,) = films.connection.caller().call("DescribeLineage", id=films.id)["edges"]
    assert (edge["source"], edge["job_kind"]) == (f"uri:{folder}", "stream")


def test_stream_of_files_with_another_delimiter_reads_each_by_it(
    films: Table, run_stream: RunStream, folder: Path
) -> None:
    for number, (delimiter, named) in enumerate(((";", ";"), ("|", "|"), ("\t", "\\t")), 1):
        (folder / f"{number}.csv").write_text(f"id{delimiter}title\n{number}{delimiter}a, b\n")
        assert run_stream(delimiter=named)["rows"] == 1
    (folder / "4.csv").write_text("id,title\n4,a\\, b\n")
    assert run_stream(escape="\\", null_value=["NA"])["rows"] == 1
    assert rows(films, "id", "title") == [(1, "a, b"), (2, "a, b"), (3, "a, b"), (4, "a, b")]


def test_stream_by_key_keeps_the_last_row_of_each_key(films: Table, put: Put, run_stream: RunStream) -> None:
    put("1.jsonl", {"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"})
    put("2.jsonl", {"id": 2, "v": "d"}, {"id": 3, "v": "e"})
    run_stream(on=["id"])
    put("3.jsonl", {"id": 3, "v": "f"}, {"id": 4, "v": "g"}, {"id": 4, "v": "h"})
    run_stream(on=["id"])
    assert rows(films, "id", "v") == [(1, "c"), (2, "d"), (3, "f"), (4, "h")]


def test_stream_by_a_key_of_two_columns_beside_another_writer(films: Table, put: Put, folder: Path) -> None:
    put("1.jsonl", {"id": 1, "half": "a", "v": 1}, {"id": 1, "half": "b", "v": 2})
    target, source = opened(films, folder, on=("id", "half"))
    step(target, source)
    other = pa.table({"id": [7], "half": ["a"], "v": [7]})
    lance.write_dataset(other, namespace_client=films.client, table_id=films.id, mode="append")
    put("2.jsonl", {"id": 7, "half": "a", "v": 8}, {"id": 1, "half": "a", "v": 9})
    step(target, source)
    assert rows(films, "id", "half", "v") == [(1, "a", 9), (1, "b", 2), (7, "a", 8)]


def test_a_row_that_another_writer_adds_while_a_batch_commits_is_replaced_too(
    films: Table, put: Put, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("1.jsonl", {"id": 1, "v": 1})
    target, source = opened(films, folder, on=("id",))
    step(target, source)
    put("2.jsonl", {"id": 2, "v": 20})

    def write(point: Point) -> None:
        if point is Point.BEFORE_RECORD:
            monkeypatch.undo()
            other = pa.table({"id": [2], "v": [2]})
            lance.write_dataset(other, namespace_client=films.client, table_id=films.id, mode="append")

    monkeypatch.setattr(stream_target, "reach", write)
    step(target, source)
    assert rows(films, "id", "v") == [(1, 1), (2, 20)]


def test_new_columns_are_added_and_null_in_older_rows(films: Table, put: Put, run_stream: RunStream) -> None:
    put("1.jsonl", {"id": 1})
    run_stream()
    put("2.jsonl", {"id": 2, "year": 1999, "empty": None}, {"id": 3})
    run_stream()
    assert films.dataset().schema.names == ["id", "year"], "a column without a value is no column"
    assert rows(films, "id", "year") == [(1, None), (2, 1999), (3, None)]


def test_rows_that_do_not_fit_are_kept_with_their_reasons_and_places(
    films: Table, put: Put, run_stream: RunStream, tmp_path: Path
) -> None:
    put("1.jsonl", {"id": 1, "v": 1.5})
    bad = {"drift": "reject", "rejects": str(tmp_path / "bad"), "on": ["id"]}
    run_stream(**bad)
    put("2.jsonl", {"id": 2, "v": "x"}, {"id": 3, "new": 1}, {"v": 2.5}, {"id": 4, "new": None})
    (tmp_path / "in" / "3.parquet").write_bytes(b"no parquet")
    assert run_stream(**bad)["rejected"] == 4
    assert rows(films, "id", "v") == [(1, 1.5), (4, None)]
    [file] = (tmp_path / "bad").iterdir()
    reasons = sorted(json.loads(line)["reason"] for line in file.read_text().splitlines())
    assert ["2.jsonl" in reason for reason in reasons] == [True, True, True, False]
    assert any("the table has no column 'new'" in reason for reason in reasons)
    assert any("id is null" in reason for reason in reasons)
    assert "3.parquet is not a Parquet file" in reasons[-1]


def test_a_row_that_does_not_fit_ends_the_stream_without_a_folder_and_loses_nothing(
    films: Table, put: Put, run_stream: RunStream, tmp_path: Path
) -> None:
    put("1.jsonl", {"id": 1})
    run_stream()
    put("2.jsonl", {"id": 2}, {"id": "two"})
    with pytest.raises(InvalidInputError, match=r"2\.jsonl, line 2.*--rejects"):
        run_stream()
    assert ids(films) == [1]
    run_stream(rejects=str(tmp_path / "bad"))
    assert ids(films) == [1, 2]


@pytest.mark.parametrize("on", [[], ["id"]], ids=["append", "upsert"])
def test_a_batch_that_fails_a_check_is_not_committed_and_ends_the_stream(
    films: Table, put: Put, run_stream: RunStream, on: list[str], tmp_path: Path
) -> None:
    options = {"on": on, "checks": ["not_null(v)", "unique(v)", "rejected == 0", "distribution(id, 100)"]}
    put("1.jsonl", {"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    assert run_stream(**options)["rows"] == 2
    data = sorted((Path(films.location().uri) / "data").iterdir())
    put("2.jsonl", {"id": 1 if on else 3, "v": "b"}, {"id": 4, "v": None}, {"id": 5, "v": "e"})
    failed = r"Nothing was published: not_null\(v\): 1 rows are not; unique\(v\): 1 keys are there more than once"
    with pytest.raises(InvalidInputError, match=failed):
        run_stream(**options)
    assert ids(films) == [1, 2] and sorted((Path(films.location().uri) / "data").iterdir()) == data
    with pytest.raises(InvalidInputError, match="there is no column 'w'"):
        run_stream(on=on, check=["not_null(w)"])
    assert run_stream(on=on, checks=["warn: not_null(v)", "rejected == 0"])["rows"] == 3


def test_unique_counts_no_row_that_the_batch_itself_deletes(films: Table) -> None:
    def batch(ids: list[int], values: list[str], deleted: list[int], position: int) -> StreamBatch:
        new, old = pa.record_batch({"id": ids, "v": values}), pa.record_batch({"id": pa.array(deleted, pa.int64())})
        numbers = pa.array(range(len(ids)), pa.int64()), pa.array(range(len(deleted)), pa.int64())
        deletes = [with_sequence(old, numbers[1])] if deleted else []
        return StreamBatch([with_sequence(new, numbers[0])], {"0": position}, str, deletes)

    target = StreamTable(LocalRun(), films, StreamOptions("films", ("id",), checks=(parse_check("unique(v)"),)))
    target.open()
    target.apply(batch([1, 2], ["a", "b"], [], 1))
    target.apply(batch([3], ["a"], [1], 2))
    assert rows(films, "id", "v") == [(2, "b"), (3, "a")]
    with pytest.raises(InvalidInputError, match=r"unique\(v\): 1 keys"):
        target.apply(batch([4], ["b"], [3], 3))


def test_a_table_is_created_by_the_first_row_that_can_be_read(
    films: Table, put: Put, run_stream: RunStream, folder: Path, tmp_path: Path
) -> None:
    (folder / "1.parquet").write_bytes(b"no parquet")
    bad = str(tmp_path / "bad")
    assert run_stream(rejects=bad) == {"rows": 0, "rejected": 1, "batches": 1, "lag": 0}
    target, source = opened(films, folder, rejects=bad)
    step(target, source)
    put("2.jsonl", {"id": 2})
    step(target, source)
    assert ids(films) == [2]


def test_large_files_are_read_piece_by_piece_and_resumed_between_them(
    films: Table, folder: Path, run_stream: RunStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"id": range(100)}), folder / "1.parquet", row_group_size=10)
    commits = iter(range(2))

    def stop(point: Point) -> None:
        if point is Point.AFTER_FINALIZE and next(commits, None) is None:
            raise FaultError("after the third batch")

    monkeypatch.setattr(stream_target, "reach", stop)
    with pytest.raises(FaultError):
        run_stream(batch_rows=15)
    assert ids(films) == list(range(60))
    monkeypatch.undo()
    run_stream(batch_rows=15)
    assert ids(films) == list(range(100))


@pytest.mark.parametrize("on", [[], ["id"]])
@pytest.mark.parametrize("point", [Point.BEFORE_RECORD, Point.AFTER_FINALIZE])
def test_a_batch_that_fails_is_taken_once(
    films: Table,
    put: Put,
    run_stream: RunStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on: list[str],
    point: Point,
) -> None:
    def fail(reached: Point) -> None:
        if reached is point:
            raise FaultError(point)

    bad = tmp_path / "bad"
    for number in range(3):
        put(f"{number}.jsonl", {"id": number}, *([{"id": f"bad {number}"}] if number else []))
        with monkeypatch.context() as patch:
            patch.setattr(stream_target, "reach", fail)
            with pytest.raises(FaultError):
                run_stream(on=on, rejects=str(bad))
    run_stream(on=on, rejects=str(bad))
    assert ids(films) == [0, 1, 2]
    lines = [line for file in bad.iterdir() for line in file.read_text().splitlines()]
    assert sorted(json.loads(json.loads(line)["row"])["id"] for line in lines) == ["bad 1", "bad 2"]


def test_a_process_that_was_taken_over_commits_nothing(films: Table, put: Put, folder: Path) -> None:
    put("1.jsonl", {"id": 1})
    first, first_source = opened(films, folder)
    step(first, first_source)
    put("2.jsonl", {"id": 2})
    second, second_source = opened(films, folder)
    step(second, second_source)
    with pytest.raises(ConcurrentModificationError, match="Another process writes"):
        step(first, first_source)
    with pytest.raises(ConcurrentModificationError, match="Another process writes"):
        first.record_position(first.position, ends=True)
    third, third_source = opened(films, folder)
    put("3.jsonl", {"id": 3})
    step(second, second_source)
    with pytest.raises(ConcurrentModificationError):  # opened before the second one's last commit
        step(third, third_source)
    assert ids(films) == [1, 2, 3]


def test_streams_of_other_names_write_the_same_table(films: Table, put: Put, run_stream: RunStream) -> None:
    put("1.jsonl", {"id": 1})
    run_stream(name="a")
    run_stream(name="b")
    run_stream(name="a")
    assert ids(films) == [1, 1]


def test_a_restore_takes_the_stream_back(films: Table, put: Put, run_stream: RunStream) -> None:
    put("1.jsonl", {"id": 1})
    version = run_stream()["version"]
    put("2.jsonl", {"id": 2})
    run_stream()
    films.dataset().checkout_version(version).restore()
    assert ids(films) == [1]
    assert run_stream()["rows"] == 1
    assert ids(films) == [1, 2]


def test_a_restore_to_the_middle_of_a_process_takes_the_stream_back(films: Table, put: Put, folder: Path) -> None:
    put("1.jsonl", {"id": 1})
    target, source = opened(films, folder)
    step(target, source)
    version = films.latest_version()
    put("2.jsonl", {"id": 2})
    step(target, source)
    films.dataset().checkout_version(version).restore()
    put("3.jsonl", {"id": 3})
    assert ids(films) == [1]
    again, again_source = opened(films, folder)
    step(again, again_source)
    assert ids(films) == [1, 2, 3]


def test_the_position_of_a_stream_that_ended_outlives_its_versions(
    films: Table, put: Put, run_stream: RunStream
) -> None:
    put("1.jsonl", {"id": 1})
    run_stream()
    lance.write_dataset(pa.table({"id": [7]}), namespace_client=films.client, table_id=films.id, mode="append")
    films.dataset().cleanup_old_versions(timedelta(0))
    put("2.jsonl", {"id": 2})
    run_stream()
    assert ids(films) == [1, 2, 7]


def test_a_position_that_was_collected_is_not_guessed(
    films: Table, put: Put, folder: Path, run_stream: RunStream
) -> None:
    put("1.jsonl", {"id": 1})
    target, source = opened(films, folder, str(folder))
    step(target, source)  # and its process is killed
    lance.write_dataset(pa.table({"id": [7]}), namespace_client=films.client, table_id=films.id, mode="append")
    films.dataset().cleanup_old_versions(timedelta(0))
    with pytest.raises(InvalidTableStateError, match="--name"):
        run_stream()


def test_a_canceled_stream_ends_at_once_and_goes_on_later(films: Table, put: Put, folder: Path) -> None:
    put("1.jsonl", {"id": 1})
    run = LocalRun()
    arguments = (run, films.connection, None, str(folder), str(films))
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            stream(*arguments, batch_seconds=60.0)
        except RunCanceledError as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    deadline = time.monotonic() + 60
    while run.figures.get("lag") != "0" and time.monotonic() < deadline:
        time.sleep(0.01)
    run.canceled.set()
    thread.join(60)
    assert len(failures) == 1
    put("2.jsonl", {"id": 2})
    stream(LocalRun(), *arguments[1:], available_now=True)
    assert ids(films) == [1, 2]


def test_small_commits_are_compacted_as_they_come(
    films: Table, put: Put, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_target, "FRAGMENTS_TO_COMPACT", 3)
    target, source = opened(films, folder, on=("id",))
    for number in range(29):
        put(f"{number:02}.jsonl", {"id": number % 20, "v": number})
        step(target, source)
    sizes = sorted(fragment.count_rows() for fragment in films.dataset().get_fragments())
    assert len(sizes) <= 6 and sizes[-1] > 3, sizes
    assert rows(films, "id", "v") == sorted(((i, i + 20 if i < 9 else i) for i in range(20)), key=str)


def test_runs_of_one_commit_are_compacted_as_they_end(
    films: Table, put: Put, run_stream: RunStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_target, "FRAGMENTS_TO_COMPACT", 3)
    for number in range(4):
        put(f"{number}.jsonl", {"id": number})
        run_stream()
    assert len(films.dataset().get_fragments()) == 2
    assert ids(films) == [0, 1, 2, 3]


def test_files_that_left_the_folder_are_forgotten(films: Table, put: Put, folder: Path) -> None:
    put("1.jsonl", {"id": 1})
    target, source = opened(films, folder)
    step(target, source)
    (folder / "1.jsonl").unlink()
    put("2.jsonl", {"id": 2})
    step(target, source)
    target.record_position(source.live_position(target.position), ends=True)
    assert len(opened(films, folder)[0].position) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_rows": 0}, "--batch-rows is 0"),
        ({"batch_seconds": 0.0}, "--batch-seconds is 0"),
        ({"name": ""}, "--name"),
        ({"delimiter": ";;", "rejects": "rejects"}, "--delimiter is one character"),
        ({"delimiter": ";", "format": "json", "rejects": "rejects"}, "--delimiter is for CSV files"),
        ({"escape": '"', "rejects": "rejects"}, "--escape is one character"),
        ({"on": ["nope"]}, "no column 'nope'"),
    ],
)
def test_wrong_options_are_refused(
    films: Table, put: Put, run_stream: RunStream, options: dict[str, Any], message: str
) -> None:
    put("1.jsonl", {"id": 1})
    run_stream()
    with pytest.raises(InvalidInputError, match=message):
        run_stream(**options)


def test_columns_of_types_and_names_that_no_cast_mends_reject_their_rows_alone(
    films: Table, put: Put, run_stream: RunStream, folder: Path, tmp_path: Path
) -> None:
    put("1.jsonl", {"id": 1, "v": 1, "at": "2020-01-01 00:00:00"})
    bad = {"rejects": str(tmp_path / "bad"), "on": ["id"]}
    run_stream(**bad)
    put("2.jsonl", {"id": 2, "v": {"a": 1}})
    put("3.jsonl", {"id": 3, "no\x00name": 1})
    moment = pa.array([0], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"id": [4], "at": moment}), folder / "4.parquet")
    put("5.jsonl", {"id": 5, "v": 5})
    assert run_stream(**bad)["rejected"] == 3
    assert rows(films, "id", "v") == [(1, 1), (5, 5)]
    text = "".join(file.read_text() for file in (tmp_path / "bad").iterdir())
    assert "column 'v' is struct" in text and "time without a zone" in text and "3.jsonl" in text


def set_contract(films: Table, *checks: str, on_failure: Any = "fail") -> None:
    lake = tiltyard.connect(dict(films.connection.properties)["root"])
    lake.table(str(films)).set_contract(checks, on_failure=on_failure)


def test_rows_that_the_contract_rejects_are_parked_and_those_that_it_refuses_end_the_stream(
    films: Table, put: Put, run_stream: RunStream, tmp_path: Path
) -> None:
    put("1.jsonl", {"id": 1, "title": "a"})
    run_stream()
    set_contract(films, "expect(id > 0)", on_failure="reject")
    put("2.jsonl", {"id": 2, "title": "b"}, {"id": -2, "title": "c"})
    assert run_stream()["rejected"] == 1
    (file,) = Path(films.location().uri).glob("_rejects/*.jsonl")
    assert json.loads(file.read_text()) == {"reason": "expect(id > 0)", "row": {"id": -2, "title": "c"}}
    put("3.jsonl", {"id": 3, "title": "d"}, {"id": -3, "title": "e"})
    assert run_stream(rejects=str(tmp_path / "bad"), on=["id"])["rejected"] == 1
    assert len(list((tmp_path / "bad").iterdir())) == 1
    set_contract(films, "expect(id > 0)")
    put("4.jsonl", {"id": 4, "title": "f"}, {"id": -4, "title": "g"})
    with pytest.raises((InvalidInputError, TableSchemaValidationError), match=r"id = -4"):
        run_stream(on=["id"])
    assert ids(films) == [1, 2, 3]
