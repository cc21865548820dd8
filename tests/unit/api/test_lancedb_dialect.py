"""lancedb's dialect: which requests speak it, error statuses, deadlines."""

from __future__ import annotations

import time

import pytest
from lance_namespace.errors import ErrorCode, InvalidInputError

from tiltyard.api.deadlines import Deadline, DeadlineExceededError, earliest
from tiltyard.api.exchange import is_lancedb_request
from tiltyard.api.lancedb import dialect
from tiltyard.api.lancedb.databases import DATABASE_HEADER
from tiltyard.model.operations import Handler, never
from tiltyard.model.spec import operations

NAMED = {DATABASE_HEADER: b"db"}


@pytest.mark.parametrize(
    ("path", "query", "headers", "expected"),
    [
        (b"/v1/table/t/describe", b"", NAMED, True),
        (b"/v1/table/t/describe/", b"", {}, True),
        (b"/v1/table/t/describe", b"", {}, False),
        (b"/v1/table/", b"limit=10", NAMED, True),
        (b"/v1/table/", b"", {}, False),
        (b"/v1/table/t/tags/list", b"delimiter=%24", NAMED, False),
        (b"/v1/table/t/tags/list", b"limit=2&delimiter=$", NAMED, False),
        (b"/v1/table/t/tags/list", b"delimiter=.", NAMED, True),
    ],
)
def test_is_lancedb_request_is_true_of_lancedb_alone(
    path: bytes, query: bytes, headers: dict[bytes, bytes], expected: bool
) -> None:
    assert is_lancedb_request(path, query, headers) is expected


@pytest.mark.parametrize(
    ("standard", "code", "late", "expected"),
    [
        (404, ErrorCode.TABLE_NOT_FOUND, False, 404),
        (404, ErrorCode.TABLE_TAG_NOT_FOUND, False, 404),
        (404, ErrorCode.TABLE_VERSION_NOT_FOUND, False, 404),
        (404, ErrorCode.TABLE_COLUMN_NOT_FOUND, False, 400),
        (409, ErrorCode.TABLE_ALREADY_EXISTS, False, 400),
        (409, ErrorCode.CONCURRENT_MODIFICATION, False, 409),
        (409, ErrorCode.CONCURRENT_MODIFICATION, True, 408),
        (503, ErrorCode.SERVICE_UNAVAILABLE, True, 408),
        (504, ErrorCode.SERVICE_UNAVAILABLE, False, 408),
        (500, ErrorCode.INTERNAL, True, 500),
        (404, ErrorCode.TABLE_NOT_FOUND, True, 404),
        (406, ErrorCode.UNSUPPORTED, False, 501),
        (404, ErrorCode.UNSUPPORTED, False, 501),
        (405, ErrorCode.UNSUPPORTED, False, 405),
    ],
)
def test_status_is_one_that_lancedb_understands(standard: int, code: ErrorCode, late: bool, expected: int) -> None:
    assert dialect.error_status(standard, code, NAMED, late=late) == expected


def test_a_path_with_a_slash_at_its_end_is_no_call_of_lancedb_by_that_alone() -> None:
    assert dialect.error_status(404, ErrorCode.UNSUPPORTED, {}) == 404


def test_deadline_is_what_the_header_says() -> None:
    query, merge = operations()["QueryTable"], operations()["MergeInsertIntoTable"]
    queries, others = Handler(print, never, None, query=True), Handler(print, never, None)
    assert dialect.read_deadline(query, queries, {}) is None
    deadline = dialect.read_deadline(merge, others, {b"x-request-timeout-ms": b"2500"})
    assert deadline is not None
    assert (deadline.seconds, deadline.work) == (2.5, "merge insert")
    with pytest.raises(DeadlineExceededError, match="merge insert timed out"):
        dialect.read_deadline(merge, others, {b"x-request-timeout-ms": b"0"})
    for header in (b"", b"-1", b"1.5", b"1" * 19, "\u0661".encode()):
        with pytest.raises(InvalidInputError, match="whole number"):
            dialect.read_deadline(query, queries, {b"x-request-timeout-ms": header})


def test_earliest_takes_the_deadline_that_comes_first() -> None:
    soon, later = Deadline(1.0, time.monotonic() + 1), Deadline(9.0, time.monotonic() + 9)
    assert earliest(soon, later) is earliest(later, soon) is earliest(None, soon) is earliest(soon, None) is soon
    assert earliest(None, None) is None
