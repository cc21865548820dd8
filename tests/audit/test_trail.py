"""The audit trail, the content of its records and its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import ServiceUnavailableError

from tests.audit.conftest import eventually
from tests.store.test_audit import NOON, record
from tiltyard.audit import object_ids, redact_context, to_entry, trail
from tiltyard.audit.trail import AuditLevel, AuditLines, AuditTrail
from tiltyard.config import ConfigError, Settings
from tiltyard.model.modes import Outcome
from tiltyard.model.spec import models
from tiltyard.store import AuditFilter, AuditRecord, Store, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class FlakyStore(Store):
    """A store whose database is unavailable for a while."""

    __slots__ = ("away", "tries")

    def add_audit(self, records: Sequence[AuditRecord]) -> None:
        self.tries += 1
        if self.away:
            raise ServiceUnavailableError("The catalog's database is away")
        super().add_audit(records)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FlakyStore]:
    with open_store(f"sqlite:///{tmp_path}/catalog.db") as open_catalog:
        flaky = FlakyStore(open_catalog._database, open_catalog._clock)
        flaky.away = False
        flaky.tries = 0
        yield flaky


def ids(store: Store) -> list[str]:
    return [entry.id for entry in store.list_audit(AuditFilter(), None, 1000)][::-1]


def test_write_returns_once_the_record_is_durable(store: FlakyStore) -> None:
    audit = AuditTrail(store, AuditLevel.ALL)
    audit.write([record(NOON, "a"), record(NOON, "b")]).result(10)
    assert ids(store) == ["a", "b"]
    audit.close()


def test_enqueue_is_written_soon_and_at_close(store: FlakyStore) -> None:
    audit = AuditTrail(store, AuditLevel.ALL)
    audit.enqueue(record(NOON, "a"))
    assert eventually(lambda: ids(store)) == ["a"]
    audit.enqueue(record(NOON, "b"))
    audit.close()
    assert ids(store) == ["a", "b"]


def test_write_while_the_database_is_away_is_refused_then_made_good(
    store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditTrail(store, AuditLevel.ALL)
    store.away = True
    with pytest.raises(ServiceUnavailableError, match="was done, but its audit record"):
        audit.write([record(NOON, "a")]).result(10)
    assert "record_id='a'" in caplog.text
    assert audit.gauges()["audit records waiting"] == 1
    store.away = False
    assert eventually(lambda: ids(store)) == ["a"]
    audit.close()


def test_write_whose_caller_goes_away_is_written_and_so_is_what_follows(store: FlakyStore) -> None:
    audit = AuditTrail(store, AuditLevel.ALL)
    assert not audit.write([record(NOON, "a")]).cancel()
    audit.write([record(NOON, "b")]).result(10)
    audit.close()
    assert ids(store) == ["a", "b"]


def test_record_that_no_database_takes_is_dropped_and_holds_back_no_other(
    store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditTrail(store, AuditLevel.ALL)
    with pytest.raises(ServiceUnavailableError):
        audit.write([record(NOON, "a", object="lone \ud800")]).result(10)
    eventually(lambda: audit.gauges()["audit records lost"] == 1)
    audit.write([record(NOON, "b")]).result(10)
    audit.close()
    assert ids(store) == ["b"] and "cannot be written, and are dropped" in caplog.text


@pytest.mark.parametrize("raw", ["a\u0000b", "lone \ud800", "x" * 100_000, "\n\u202e"])
def test_object_ids_are_fit_for_every_database(store: FlakyStore, raw: str) -> None:
    (name,) = object_ids(models.DescribeTableRequest(id=[raw]))
    assert name.isprintable() and len(name) <= 2048


def test_enqueue_beyond_the_queues_size_is_dropped_and_counted(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trail, "MAX_QUEUED", 3)
    audit = AuditTrail(store, AuditLevel.ALL)
    store.away = True
    for number in range(5):
        audit.enqueue(record(NOON, str(number)))
    assert audit.gauges() == {"audit records waiting": 3, "audit records lost": 2}
    assert "are being dropped" in caplog.text
    store.away = False
    audit.close()
    assert len(ids(store)) == 3


def test_close_writes_what_the_database_refused_until_then(store: FlakyStore, caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditTrail(store, AuditLevel.ALL)
    store.away = True
    with pytest.raises(ServiceUnavailableError):
        audit.write([record(NOON, "a")]).result(10)
    eventually(lambda: "audit records are not written yet: The catalog's database is away" in caplog.text)
    eventually(lambda: any(entry.levelname == "WARNING" for entry in caplog.records))  # it waits to try again
    tries = store.tries
    eventually(lambda: store.tries >= tries + 2)
    assert [entry.levelname for entry in caplog.records].count("WARNING") == 1
    store.away = False
    audit.close()
    assert ids(store) == ["a"]


@pytest.mark.parametrize(
    ("level", "outcome", "changes", "expected"),
    [
        (AuditLevel.OFF, Outcome.OK, True, False),
        (AuditLevel.OFF, Outcome.REFUSED, False, False),
        (AuditLevel.CHANGES, Outcome.OK, True, True),
        (AuditLevel.CHANGES, Outcome.FAILED, True, True),
        (AuditLevel.CHANGES, Outcome.OK, False, False),
        (AuditLevel.CHANGES, Outcome.REFUSED, False, True),
        (AuditLevel.ALL, Outcome.OK, False, True),
    ],
)
def test_should_record_follows_the_level(
    store: FlakyStore, level: AuditLevel, outcome: Outcome, changes: bool, expected: bool
) -> None:
    assert AuditTrail(store, level).should_record(outcome, changes) is expected


@pytest.mark.parametrize(
    ("settings", "level"),
    [({}, "off"), ({"auth": True}, "changes"), ({"audit": "All"}, "all"), ({"auth": True, "audit": "off"}, "off")],
)
def test_level_of_auto_is_changes_where_callers_are_asked_who(settings: dict[str, Any], level: str) -> None:
    assert AuditLevel.of(Settings(**settings)) == level


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (models.DescribeTableRequest(id=["a", "b"]), ("a$b",)),
        (models.DescribeNamespaceRequest(id=[]), ("$",)),
        (models.RenameTableRequest(id=["a", "b"], new_table_name="c"), ("a$b", "a$c")),
        (models.RenameTableRequest(id=["a", "b"], new_table_name="c", new_namespace_id=["d"]), ("a$b", "d$c")),
        (models.RenameTableRequest(id=["a", "b"], new_table_name="b", new_namespace_id=[]), ("a$b", "b")),
        (
            models.BatchCommitTablesRequest(
                operations=[
                    models.CommitTableOperation(declare_table=models.DeclareTableRequest(id=["a", "t"])),
                    models.CommitTableOperation(deregister_table=models.DeregisterTableRequest(id=["a", "u"])),
                ]
            ),
            ("a$t", "a$u"),
        ),
        (
            models.BatchCreateTableVersionsRequest(
                entries=[models.CreateTableVersionEntry(id=["t"], version=1, manifest_path="m")] * 2
            ),
            ("t",),
        ),
        (models.ListAuditRecordsRequest(object="x"), ()),
        (None, ()),
    ],
)
def test_object_ids_are_all_ids_of_a_request_without_duplicates(request_: Any, expected: tuple[str, ...]) -> None:
    assert object_ids(request_) == expected


def test_redact_context_hides_secrets_and_cuts_what_is_long() -> None:
    entries = {"job": "nightly", "api_token": "t0p", "X-Secret": "s", "long": "x" * 1000}
    assert redact_context(entries) == {"job": "nightly", "api_token": "…", "X-Secret": "…", "long": "x" * 255 + "…"}
    assert len(redact_context({str(number): "" for number in range(100)})) == 32


@pytest.mark.parametrize(
    "value",
    [
        "asked with tilt_0f3c9a6b12d4e578_" + "A" * 43,
        "Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2ln",
        "ASIA" + "Z" * 16,
        "https://account.dfs.core.windows.net/c/t?sv=2024&sig=abc",
        "-----BEGIN PRIVATE KEY-----",
    ],
    ids=["key", "token", "access-key", "signature", "private-key"],
)
def test_redact_context_hides_what_looks_like_a_secret_whatever_its_name(value: str) -> None:
    assert redact_context({"note": value, "job": "tilt_shift eyJ"}) == {"note": "…", "job": "tilt_shift eyJ"}


def test_lines_go_on_in_a_new_file_when_the_old_one_is_moved(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    lines = AuditLines(str(file))
    lines.write([to_entry(record(NOON, "a")), to_entry(record(NOON, "b"))])
    file.rename(tmp_path / "old.jsonl")
    lines.write([to_entry(record(NOON, "c"))])
    assert [json.loads(line)["record_id"] for line in file.read_text().splitlines()] == ["c"]
    assert len((tmp_path / "old.jsonl").read_text().splitlines()) == 2
    assert file.stat().st_mode & 0o027 == 0


def test_lines_that_cannot_be_written_are_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = AuditLines(str(folder / "audit.jsonl"))
    (folder / "audit.jsonl").unlink()
    folder.rmdir()
    lines.write([to_entry(record(NOON))])
    assert lines.lost == 1
    assert "1 audit records are not in" in caplog.text
    with pytest.raises(ConfigError, match="cannot be written"):
        AuditLines(str(folder / "audit.jsonl"))
