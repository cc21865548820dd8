"""The log of outages: each cause once a minute, with its root and without secrets."""

from __future__ import annotations

import errno
import sqlite3

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
)

from tiltyard.runtime.outage_log import SILENCE_MS, OutageLog, StorageUnavailableError, SystemUnavailableError

ROOTS = ("/data", "/data/inner", "s3://lake/tables")
FULL = "LanceError(IO): No space left on device (os error 28), /home/runner/work/lance/src/writer.rs:190:9"


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def caused(error: LanceNamespaceError, cause: BaseException) -> LanceNamespaceError:
    error.__cause__ = cause
    return error


def test_report_logs_a_cause_once_a_minute_however_it_is_worded(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = OutageLog(ROOTS, "sqlite:////data/c.db", clock)
    for _ in range(50):
        outages.report(caused(StorageUnavailableError("away", "/data/t.lance"), OSError(FULL)))
        python = OSError(errno.ENOSPC, "No space left on device", "/data/x")
        outages.report(caused(StorageUnavailableError("away", "/data/t.lance"), python))
    assert caplog.messages == ["the root /data fails: LanceError(IO): No space left on device (os error 28)"]
    clock.now += SILENCE_MS
    outages.report(caused(StorageUnavailableError("away", "/data/t.lance"), OSError(FULL)))
    assert caplog.messages[1].endswith("(os error 28) (and 99 times more in the minute before)")
    clock.now += SILENCE_MS
    outages.report(caused(StorageUnavailableError("away", "/data/t.lance"), OSError(FULL)))
    assert caplog.messages[2] == caplog.messages[0]


def test_report_of_another_system_names_it_and_no_storage(caplog: pytest.LogCaptureFixture) -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    away = caused(SystemUnavailableError("The catalog 'lake' does not answer.", "The catalog 'lake'"), refused)
    OutageLog(ROOTS[:1], "sqlite:////data/c.db").report(caused(ServiceUnavailableError("refused"), away))
    assert caplog.messages == ["The catalog 'lake' fails: [Errno 111] Connection refused"]


def test_report_of_many_objects_is_one_cause(caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog(ROOTS, "sqlite:////data/c.db")
    for number in range(300):
        url = f"http://s3:9000/lake/tables/t{number}.lance"
        message = f"Generic S3 error: GET {url} in {number}ms: refused\n\nDebug source:\nx"
        outages.report(caused(StorageUnavailableError("away", "s3://lake/tables/t"), OSError(message)))
    expected = (
        "the root s3://lake/tables fails: Generic S3 error: GET http://s3:9000/lake/tables/t0.lance in 0ms: refused"
    )
    assert caplog.messages == [expected]


@pytest.mark.parametrize(
    ("error", "cause", "expected"),
    [
        (StorageUnavailableError("x", "/data/inner/t.lance"), OSError(FULL), "the root /data/inner fails: "),
        (StorageUnavailableError("x", "file:///data/t.lance"), OSError(FULL), "the root /data fails: "),
        (
            StorageUnavailableError("x", "s3://lake/tables/t"),
            OSError("timed out"),
            "the root s3://lake/tables fails: t",
        ),
        (
            StorageUnavailableError("x"),
            OSError(errno.EIO, "I/O error", "/data/inner/f"),
            "the root /data/inner fails: ",
        ),
        (StorageUnavailableError("x"), OSError(FULL), "one of the roots /data, /data/inner, s3://lake/tables fails: "),
        (ServiceUnavailableError("x"), sqlite3.OperationalError("disk I/O error"), "database postgresql://db:5432/t f"),
        (PermissionDeniedError("x"), OSError("LanceError(IO): AccessDenied"), "fails: LanceError(IO): AccessDenied"),
        (
            StorageUnavailableError("x", "s3://lake/tables/t"),
            OSError("GET https://a.example/t?sig=topsecret&x=1: 503\n  retries: 3"),
            "fails: GET https://a.example/t?… 503 retries: 3",
        ),
    ],
)
def test_report_has_the_root_and_the_systems_message(
    caplog: pytest.LogCaptureFixture, error: LanceNamespaceError, cause: BaseException, expected: str
) -> None:
    OutageLog(ROOTS, "postgresql://me:password@db:5432/t?sslmode=require").report(caused(error, cause))
    [message] = caplog.messages
    assert expected in message and "secret" not in message and "password" not in message and "\n" not in message


def test_report_ignores_errors_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog(ROOTS, "sqlite:////data/c.db")
    outages.report(ValueError("a mistake"))
    outages.report(caused(InvalidInputError("x"), ValueError("y")))
    outages.report(caused(PermissionDeniedError("x"), ValueError("y")))
    outages.report(ServiceUnavailableError("out of time"))
    assert caplog.messages == []


def test_report_bounds_the_causes_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog(ROOTS, "sqlite:////data/c.db")
    for number in range(1000):
        outages.report(caused(ServiceUnavailableError("x"), OSError(f"os error {number}")))
    assert len(outages._causes) <= 100 and len(caplog.messages) == 1000
