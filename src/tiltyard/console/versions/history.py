"""The history of a table: what each version changed, and who made it, as far as the audit tells its reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import UnsupportedOperationError

from tiltyard.calls.in_process_caller import find_handler
from tiltyard.change_feed.version_change import ROW_COUNTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.console.page_calls import PageCalls
    from tiltyard.model.ids import Id

VERSIONS_AT_ONCE = 50
MAX_RECORDS = 1000
"""Records of the audit that are read for one page of versions."""
CLOCK_MS = 2
"""How far the clocks of a commit and of its audit record may differ: both are cut to milliseconds."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version: what its transaction did, and its `call` and `author` where the audit tells its reader.

    `counts` has how many rows it inserted, updated and deleted, or wrote and removed; None for what is not known.
    """

    number: int
    millis: int | None
    rows: int | None
    operation: str
    counts: Mapping[str, int | None]
    tags: Sequence[str]
    call: str | None = None
    author: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A page of versions, newest first, and the token of the next page; `has_audit` where its reader sees the audit."""

    versions: Sequence[Version]
    cursor: str
    has_audit: bool


def read_history(calls: PageCalls, path: Id, branch: str | None, cursor: str, tags: Mapping[str, Any]) -> History:
    """Read a page of versions of a branch. Raises what ListTableVersions raises."""
    listed = calls.call(
        "ListTableVersions",
        id=list(path),
        branch=branch,
        descending=True,
        limit=VERSIONS_AT_ONCE,
        load_changes=True,
        page_token=cursor or None,
    )
    entries = listed.versions
    records = _changes_in_audit(calls, path, entries)
    versions = [_version(entry, _names(tags, branch, entry.version), records or ()) for entry in entries]
    return History(versions, listed.page_token or "", has_audit=records is not None)


def _names(tags: Mapping[str, Any], branch: str | None, number: int) -> list[str]:
    return sorted(
        name for name, tag in tags.items() if tag.version == number and (tag.branch or None) == (branch or None)
    )


def _version(entry: Any, tags: Sequence[str], records: Sequence[Any]) -> Version:
    made_by = [record for record in records if is_within(record, entry.timestamp_millis)]
    only = made_by[0] if len({(record.operation, record.principal) for record in made_by}) == 1 else None
    metadata = entry.metadata or {}
    return Version(
        entry.version,
        entry.timestamp_millis,
        _count(entry, "total_rows"),
        " ".join(text for text in (metadata.get("operation"), metadata.get("operation_detail")) if text),
        {name: _count(entry, f"{name}_rows") for name in ROW_COUNTS},
        tags,
        only.operation if only is not None else None,
        only.principal if only is not None else None,
    )


def _count(entry: Any, name: str) -> int | None:
    text = (entry.metadata or {}).get(name, "")
    return int(text) if text.isdecimal() else None


def _changes_in_audit(calls: PageCalls, path: Id, entries: Sequence[Any]) -> list[Any] | None:
    """Return the audit's records of changes of the table in the time of these versions; None where not allowed."""
    moments = [entry.timestamp_millis for entry in entries if entry.timestamp_millis is not None]
    if not moments:
        return []
    listed = calls.attempt(
        "ListAuditRecords", object=str(path), until_millis=max(moments) + CLOCK_MS, limit=MAX_RECORDS
    )
    if listed is None:
        return None
    return [record for record in listed.records if record.object == str(path) and is_change(record)]


def is_change(record: Any) -> bool:
    """Whether an audit record is of an operation that changes something, and that succeeded."""
    try:
        handler = find_handler(record.operation)
    except UnsupportedOperationError:  # a call that is no operation, or one of another release
        return False
    return bool(record.status < 400 and handler.changes)


def is_within(record: Any, millis: int | None) -> bool:
    """Whether a version was committed while the call of an audit record ran."""
    if millis is None:
        return False
    end = record.at_millis + record.duration_micros // 1000
    return bool(record.at_millis - CLOCK_MS <= millis <= end + CLOCK_MS)
