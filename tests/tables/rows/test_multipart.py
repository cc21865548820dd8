"""Multipart writes, as lancedb's remote client sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace import errors
from tests.tables.bodies import Streamed, rows, small
from tests.tables.rows.calls import begin_upload, complete_upload, data_files, insert
from tests.tables.served import Server, run_concurrently

from tiltyard.model.spec import models
from tiltyard.tables.rows.multipart import (
    abandon_stale_uploads,
    abort_multipart_write,
)


def abort(server: Server, upload: str) -> None:
    abort_multipart_write(server.ctx, models.AbortMultipartWriteRequest(id=["t"], upload_id=upload))


def ids(server: Server) -> list[int]:
    return sorted(server.open("t").to_table()["id"].to_pylist())


def test_multipart_append_is_one_version(server: Server) -> None:
    server.create("t", rows(1))
    upload = begin_upload(server)
    parts: list[Callable[[], Any]] = [
        lambda key=key: insert(server, Streamed(rows(10, key)), upload_id=upload, upload_part_id=str(key))
        for key in range(10, 50, 10)
    ]
    assert [result.num_inserted_rows for result in run_concurrently(parts)] == [10] * 4
    assert server.open("t").version == 1
    response = complete_upload(server, upload)
    assert (response.version, response.num_inserted_rows) == (2, 40)
    assert ids(server) == [0, *range(10, 50)]


def test_multipart_part_twice_counts_once(server: Server) -> None:
    server.create("t", rows(0))
    upload = begin_upload(server)
    for _ in range(2):
        insert(server, small(rows(3)), upload_id=upload, upload_part_id="a")
    complete_upload(server, upload)
    assert ids(server) == [0, 1, 2]
    assert len(data_files(server)) == 1


def test_multipart_complete_twice_is_one_version(server: Server) -> None:
    server.create("t", rows(0))
    upload = begin_upload(server)
    insert(server, small(rows(3)), upload_id=upload, upload_part_id="a")
    first = complete_upload(server, upload)
    insert(server, small(rows(1, 10)))
    assert complete_upload(server, upload).version == first.version == 2
    assert ids(server) == [0, 1, 2, 10]


@pytest.mark.parametrize("declared", [False, True])
def test_multipart_overwrite_replaces(server: Server, declared: bool) -> None:
    server.declare("t") if declared else server.create("t", pa.table({"other": [1]}))
    upload = begin_upload(server)
    for key in (0, 5):
        insert(server, small(rows(5, key)), upload_id=upload, upload_part_id=str(key), mode="overwrite")
    assert complete_upload(server, upload).version == (1 if declared else 2)
    assert ids(server) == list(range(10))
    assert not server.ctx.store.describe_table(("t",)).declared


def test_multipart_into_declared_filled_meanwhile_appends(server: Server) -> None:
    server.declare("t")
    upload = begin_upload(server)
    insert(server, small(rows(2)), upload_id=upload, upload_part_id="a")
    insert(server, small(rows(2, 2)))
    assert complete_upload(server, upload).version == 2
    assert ids(server) == [0, 1, 2, 3]


def test_multipart_branch_appends_there(server: Server) -> None:
    server.create("t", rows(1)).create_branch("b")
    upload = begin_upload(server, branch="b")
    insert(server, small(rows(1, 5)), upload_id=upload, branch="b")
    with pytest.raises(errors.TransactionNotFoundError):
        complete_upload(server, upload)
    complete_upload(server, upload, branch="b")
    assert server.open("t").checkout_version(("b", None)).to_table().num_rows == 2
    assert server.open("t").version == 1


def test_multipart_abort_deletes_the_files(server: Server) -> None:
    server.create("t", rows(1))
    upload = begin_upload(server)
    insert(server, small(rows(5)), upload_id=upload, upload_part_id="a")
    assert len(data_files(server)) == 2
    abort(server, upload)
    assert len(data_files(server)) == 1
    for after in (lambda: abort(server, upload), lambda: complete_upload(server, upload)):
        with pytest.raises(errors.TransactionNotFoundError):
            after()
    with pytest.raises(errors.TransactionNotFoundError):
        insert(server, small(rows(5)), upload_id=upload, upload_part_id="b")


def test_multipart_stale_is_abandoned(server: Server) -> None:
    server.create("t", rows(1))
    upload = begin_upload(server)
    insert(server, small(rows(5)), upload_id=upload)
    assert abandon_stale_uploads(server.ctx, 60_000) == 0
    assert abandon_stale_uploads(server.ctx, -1000) == 1
    assert len(data_files(server)) == 1


def test_multipart_without_or_with_unlike_parts_is_invalid(server: Server) -> None:
    server.create("t", rows(1))
    upload = begin_upload(server)
    with pytest.raises(errors.InvalidInputError, match="No part"):
        complete_upload(server, upload)
    insert(server, small(rows(1)), upload_id=upload, upload_part_id="a")
    insert(server, small(rows(1)), upload_id=upload, upload_part_id="b", mode="overwrite")
    with pytest.raises(errors.InvalidInputError, match="alike"):
        complete_upload(server, upload)


def test_multipart_bad_part_is_told_and_leaves_no_file(server: Server) -> None:
    server.create("t", rows(1))
    upload = begin_upload(server)
    with pytest.raises(errors.TableSchemaValidationError):
        insert(server, small(pa.table({"zz": [1]})), upload_id=upload)
    with pytest.raises(errors.InvalidInputError, match="complete"):
        insert(server, Streamed(rows(3000), breaks_off=True), upload_id=upload)
    assert len(data_files(server)) == 1


def test_multipart_of_another_table_is_not_found(server: Server) -> None:
    server.create("t", rows(1))
    server.create("u", rows(1))
    upload = begin_upload(server)
    with pytest.raises(errors.TransactionNotFoundError):
        insert(server, small(rows(1)), "u", upload_id=upload)
    assert len(data_files(server)) == 2
