"""How appends are committed is chosen in one place, which says why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tiltyard.model.branches import MAIN, Branch
from tiltyard.runtime.cache import lasting_facts
from tiltyard.storage.writing import manifest_key
from tiltyard.tables.rows import append_routes
from tiltyard.tables.rows.append_routes import (
    MAX_AT_ONCE_BYTES,
    MAX_QUEUED_BYTES,
    find_made_manifest,
    why_not_at_once,
    why_not_made_here,
    why_not_queued,
)

SMALL = pa.table({"a": [1]})
LARGE = pa.table({"a": pa.array(range(MAX_QUEUED_BYTES // 8 + 1))})


def _target(*, contended: bool = True, location: str = "s3://bucket/t", branch: Branch = MAIN, **fields: Any) -> Any:
    record = {
        "id": 1,
        "managed": True,
        "declared": False,
        "primary_key": None,
        "contract": None,
        "mount_id": None,
        **fields,
    }
    contention = SimpleNamespace(is_contended=lambda key: contended)
    ctx = SimpleNamespace(services=SimpleNamespace(contention=contention))
    return SimpleNamespace(ctx=ctx, record=SimpleNamespace(**record), key="t#", location=location, branch=branch)


def test_why_not_queued_small_appends_of_a_contended_table_are() -> None:
    assert why_not_queued(_target(), [SMALL, SMALL], {1}) is None


@pytest.mark.parametrize(
    ("target", "rows", "tables", "why"),
    [
        (_target(contended=False), [SMALL], {1}, "no other server"),
        (_target(managed=False), [SMALL], {1}, "straight to storage"),
        (_target(declared=True), [SMALL], {1}, "no version yet"),
        (_target(primary_key="{}"), [SMALL], {1}, "key is checked here"),
        (_target(contract="{}"), [SMALL], {1}, "contract is checked here"),
        (_target(mount_id=3), [SMALL], {1}, "below a mount"),
        (_target(), [SMALL, SMALL], {1, 2}, "another table"),
        (_target(), [SMALL, None], {1}, "in files already"),
        (_target(), [SMALL, LARGE], {1}, "more than 262144 bytes"),
    ],
)
def test_why_not_queued_others_are_told_why(target: Any, rows: list[Any], tables: set[int], why: str) -> None:
    assert why in str(why_not_queued(target, rows, tables))


@pytest.mark.parametrize(
    ("target", "read_version", "manifest", "recorded", "why"),
    [
        (_target(), 4, b"", 4, None),
        (_target(managed=False), 4, b"", 4, "straight to storage"),
        (_target(location="/data/t"), 4, b"", 4, "on a disk"),
        (_target(branch=Branch("b")), 4, b"", 4, "on a branch"),
        (_target(), 4, None, 4, "the latest manifest"),
        (_target(), 3, b"", 4, "an earlier version"),
        (_target(), 4, b"", 5, "another commit"),
        (_target(), 4, b"", None, "another commit"),
    ],
)
def test_why_not_made_here_is_told(  # a case of the table
    target: Any,
    read_version: int,
    manifest: bytes | None,
    recorded: int | None,
    why: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latest = None if recorded is None else SimpleNamespace(version=recorded)
    monkeypatch.setattr(append_routes, "recorded_latest", lambda *_: latest)
    found = why_not_made_here(target, 4, read_version, manifest)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("target", "rows", "why"),
    [
        (_target(), [pa.table({"a": [1]})], None),
        (_target(location="/data/t"), [pa.table({"a": [1]})], "on a disk"),
        (_target(managed=False), [pa.table({"a": [1]})], "straight to storage"),
        (_target(branch=Branch("b")), [pa.table({"a": [1]})], "on a branch"),
        (_target(), [pa.table({"a": [1]}), None], "in files already"),
        (_target(), [pa.table({"a": ["x" * MAX_AT_ONCE_BYTES]})], "more than"),
    ],
)
def test_why_not_at_once_is_told(target: Any, rows: list[Any], why: str | None) -> None:
    found = why_not_at_once(target, rows)
    assert found is None if why is None else why in str(found)


def test_made_manifest_is_that_of_the_latest_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting_facts.put(manifest_key("memory://t/_versions/4.manifest-a"), b"made")
    latest = SimpleNamespace(version=4, staged_path="_versions/4.manifest-a")
    monkeypatch.setattr(append_routes, "recorded_latest", lambda *_: latest)
    assert find_made_manifest(_target(), 4) == b"made"
    assert find_made_manifest(_target(), 3) is None
    latest.staged_path = "_versions/4.manifest-b"
    assert find_made_manifest(_target(), 4) is None
