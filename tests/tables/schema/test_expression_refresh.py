"""Refreshes of SQL columns by the server's worker: each value is computed once, beside writers, crashes and cancels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import ServiceUnavailableError
from tests.tables.served import Server, ask

from tiltyard.column_refresh import refresh
from tiltyard.model import jobs
from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Derivation
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.spec import models
from tiltyard.store import TransactionRecord
from tiltyard.tables.schema import expression_refresh
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.computed_columns import alter_table_backfill_columns
from tiltyard.worker import Worker


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with a table of four fragments of 250 rows, and a column of SQL."""
    server = Server(tmp_path)
    server.create("t", rows(range(1000)), max_rows_per_file=250)
    column = [{"name": "y", "computed": "x * 2"}]
    alter_table_add_columns(server.ctx, ask(models.AlterTableAddColumnsRequest, id="t", new_columns=column))
    yield server
    server.services.close()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that were computed."""
    counts: list[int] = []
    compute = expression_refresh._WorkerHost._compute

    def counted(self: Any, batch: pa.RecordBatch) -> Any:
        counts.append(batch.num_rows)
        return compute(self, batch)

    monkeypatch.setattr(expression_refresh._WorkerHost, "_compute", counted)
    return counts


def rows(ids: range) -> pa.Table:
    return pa.table({"id": list(ids), "x": [10 * number for number in ids]})


def submit(server: Server, **fields: Any) -> str:
    request = ask(models.AlterTableBackfillColumnsRequest, id="t", column="y", **fields)
    return alter_table_backfill_columns(server.ctx, request).job_id


def run(server: Server, job_id: str) -> TransactionRecord:
    assert Worker(server.services, 0).run_one()
    return server.services.store.describe_transaction(job_id)


def values(server: Server) -> dict[int, int | None]:
    found = server.open("t").to_table().to_pydict()
    return dict(zip(found["id"], found["y"], strict=True))


def data_files(server: Server) -> set[str]:
    return {path.name for path in (Path(server.open("t").uri) / "data").iterdir()}


def used_files(dataset: lance.LanceDataset) -> set[str]:
    return {file.path for fragment in dataset.get_fragments() for file in fragment.metadata.files}


def before_commit(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], Any]) -> None:
    """Let one action after the other run before a commit."""
    commit, pending = expression_refresh.commit_next, iter(actions)

    def late(*arguments: Any) -> Any:
        for action in pending:
            action()
            break
        return commit(*arguments)

    monkeypatch.setattr(expression_refresh, "commit_next", late)


@pytest.mark.parametrize(
    ("write", "expected", "more"),
    [
        (lambda t: t.insert(rows(range(5000, 5001))), {5000: None}, 0),
        (lambda t: t.delete("id = 3"), {}, 0),
        (lambda t: t.update({"x": "7"}, where="id = 3"), {3: 14}, 1),
        (lambda t: t.optimize.compact_files(), {}, 1000),
        (lambda t: t.add_columns({"other": "x + 1"}), {}, 0),
    ],
    ids=["append", "delete", "update", "compaction", "column"],
)
def test_refresh_beside_a_writer_computes_what_changed_again(
    server: Server,
    computed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[lance.LanceDataset], Any],
    expected: dict[int, int | None],
    more: int,
) -> None:
    before_commit(monkeypatch, lambda: write(server.open("t")))
    record = run(server, submit(server))
    assert record.status is TransactionStatus.SUCCEEDED, record.error
    wanted = {number: 20 * number for number in range(1000)} | expected
    if 3 in wanted and server.open("t").count_rows("id = 3") == 0:
        del wanted[3]
    assert values(server) == wanted
    assert sum(computed) == 1000 + more
    assert int(record.properties["rows"]) == 1000 + more % 1000  # but for those that a compaction has replaced
    store = server.services.store
    (made,) = store.lineage_of(store.describe_table(("t",)).id, "", None, 10)
    assert (made.kind, made.job, made.columns) == (
        "backfill", record.id, (ColumnOrigin("y", (ColumnInput(0, "x", Derivation.TRANSFORMED),)),)
    )  # fmt: skip


def test_refresh_that_is_struck_between_its_commits_goes_on_from_them(
    server: Server, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(jobs, "RETRY_MS", 0)

    def strike() -> None:
        raise ServiceUnavailableError("away")

    before_commit(monkeypatch, lambda: None, strike)
    job_id = submit(server)
    assert run(server, job_id).status is TransactionStatus.QUEUED
    assert sum(value is not None for value in values(server).values()) == 250
    record = run(server, job_id)
    assert record.status is TransactionStatus.SUCCEEDED
    assert values(server) == {number: 20 * number for number in range(1000)}
    assert (record.properties["rows"], record.properties["fragments"]) == ("1000", "4")  # of both attempts
    assert sum(computed) == 1250  # the fragment whose commit was struck is computed again
    again = run(server, submit(server))
    assert again.properties["rows"] == "0" and sum(computed) == 1250


def test_refresh_that_is_canceled_stops_and_leaves_no_files(
    server: Server, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, store = submit(server), server.services.store
    fill = expression_refresh._WorkerHost._fill_fragment

    def canceled(*arguments: Any) -> Any:
        store.alter_transaction(
            job_id, lambda status, properties: (TransactionStatus.CANCELED, properties), altered_by="me"
        )
        return fill(*arguments)

    monkeypatch.setattr(expression_refresh._WorkerHost, "_fill_fragment", canceled)
    version = server.open("t").version
    assert run(server, job_id).status is TransactionStatus.CANCELED
    assert sum(computed) == 250 and server.open("t").version == version
    assert data_files(server) == used_files(server.open("t"))


def test_refresh_that_fails_on_a_late_row_leaves_no_files(server: Server) -> None:
    server.open("t").update({"x": "9223372036854775807"}, where="id = 999")
    column = [{"name": "small", "computed": "arrow_cast(x, 'Int32')"}]
    alter_table_add_columns(server.ctx, ask(models.AlterTableAddColumnsRequest, id="t", new_columns=column))
    request = ask(models.AlterTableBackfillColumnsRequest, id="t", column="small")
    record = run(server, alter_table_backfill_columns(server.ctx, request).job_id)
    assert record.status is TransactionStatus.FAILED and "9223372036854775807" in (record.error or "")
    old = server.open("t").checkout_version(1)
    assert data_files(server) == used_files(server.open("t")) | used_files(old)


def test_refresh_of_a_column_that_was_dropped_meanwhile_fails_with_the_reason(server: Server) -> None:
    job_id = submit(server)
    server.open("t").drop_columns(["y"])
    record = run(server, job_id)
    assert record.status is TransactionStatus.FAILED and "dropped" in (record.error or "")


def test_refresh_where_keeps_values_of_other_rows_and_spans_batches(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expression_refresh, "BATCH_ROWS", 64)
    server.open("t").delete("id % 7 = 0")
    run(server, submit(server, where="id % 3 = 1"))
    expected = {number: 20 * number if number % 3 == 1 else None for number in range(1000) if number % 7}
    assert values(server) == expected
    server.open("t").update({"x": "x + 1"}, where="id BETWEEN 100 AND 110")
    run(server, submit(server))
    assert values(server) == {n: 20 * n + (2 if 100 <= n <= 110 else 0) for n in range(1000) if n % 7}
