"""The page of a table's versions: its timeline, tags and branches; changes of them, restoring one after a question.

Its history: what each version changed, and who made it, as far as the audit tells its reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.calls.in_process_caller import find_handler
from tiltyard.change_feed.version_change import ROW_COUNTS
from tiltyard.console.access.forms import form_actions
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.table.heads import read_head
from tiltyard.console.templates import link
from tiltyard.console.versions.comparison import compare_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.console.page_calls import PageCalls
    from tiltyard.console.table.heads import TableHead
    from tiltyard.model.ids import Id


MAX_REFS = 200
"""Tags and branches that the page lists."""
MAIN = "main"


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show the versions of a table, or their continuation. Raises what describing and listing them raise."""
    head = read_head(page)
    has_data = not head.table.is_only_declared and head.table.location is not None
    tags = page.calls.attempt("ListTableTags", id=list(page.path), limit=MAX_REFS) if has_data else None
    branches = page.calls.attempt("ListTableBranches", id=list(page.path), limit=MAX_REFS) if has_data else None
    names = dict(sorted(tags.tags.items())) if tags is not None else {}
    history = History((), "", has_audit=True)
    if has_data:
        history = read_history(page.calls, page.path, head.branch, page.text("cursor"), names)
    values = head.values(page, "versions") | {
        "history": history,
        "latest": history.versions[0].number if history.versions and not page.text("cursor") else None,
        "tags": names,
        "branches": dict(sorted(branches.branches.items())) if branches is not None else {},
        "branch": head.branch or "",
        "has_data": has_data,
        "may": _allowed_actions(page),
        "problem": problem,
        "entered": {name: page.text(name) for name in ("tag", "version", "name")} if problem else {},
    }
    return Page(
        "versions_rows.html" if page.is_fragment else "versions.html", values, status, fragment=page.is_fragment
    )


def _allowed_actions(page: PageRequest) -> dict[str, bool]:
    """Return which of the page's forms its reader may send."""
    id_ = list(page.path)
    return {
        "tag": page.calls.allows("CreateTableTag", id=id_, tag="name", version=1),
        "branch": page.calls.allows("CreateTableBranch", id=id_, name="name"),
        "restore": page.calls.allows("RestoreTable", id=id_, version=1),
    }


def _branch_ref(page: PageRequest) -> str:
    branch = page.text("branch")
    return f"branch:{branch}" if branch else ""


def _version_of(page: PageRequest) -> int:
    version = page.optional_integer("version")
    if not version:
        raise InvalidInputError("Which version? Enter its number.")
    return version


def _name_of(page: PageRequest, name: str) -> str:
    text = page.text(name)
    if not text:
        raise InvalidInputError(f"The {'branch' if name == 'name' else name} needs a name.")
    return text


def _change(page: PageRequest, operation: str, **fields: Any) -> Redirect:
    page.calls.call(operation, id=list(page.path), **fields)
    return Redirect(link("versions", page.path, at=_branch_ref(page)))


def _set_tag(page: PageRequest, operation: str) -> Redirect:
    tag, version = _name_of(page, "tag"), _version_of(page)
    return _change(page, operation, tag=tag, version=version, branch=page.text("branch") or None)


def _create_branch(page: PageRequest) -> Redirect:
    name, version = _name_of(page, "name"), page.optional_integer("version") or None
    branch = page.text("branch") or None
    return _change(page, "CreateTableBranch", name=name, from_branch=branch, from_version=version)


def _restore(page: PageRequest) -> Redirect:
    return _change(page, "RestoreTable", version=_version_of(page), branch=page.text("branch") or None)


act = form_actions(
    show,
    {
        "create-tag": lambda page: _set_tag(page, "CreateTableTag"),
        "move-tag": lambda page: _set_tag(page, "UpdateTableTag"),
        "delete-tag": lambda page: _change(page, "DeleteTableTag", tag=_name_of(page, "tag")),
        "create-branch": _create_branch,
        "delete-branch": lambda page: _change(page, "DeleteTableBranch", name=_name_of(page, "name")),
        "restore": _restore,
    },
)


def ask_restore(page: PageRequest) -> Page:
    """Say what restoring a version will do, and ask. Raises TableVersionNotFoundError, InvalidInputError."""
    head = read_head(page)
    version = _version_of(page)
    old = read_head(page, _ref(head, version))
    values = head.values(page, "versions") | {
        "branch": head.branch or "",
        "target": version,
        "latest": head.version,
        "rows_now": _count(page, head, head.version),
        "rows_then": _count(page, head, version),
        "changes": compare_columns(head.columns, old.columns),
    }
    return Page("restore.html", values)


def _ref(head: TableHead, version: int) -> str:
    return f"branch:{head.branch}:{version}" if head.branch else f"v{version}"


def _count(page: PageRequest, head: TableHead, version: int | None) -> int:
    count: int = page.calls.call("CountTableRows", id=list(page.path), branch=head.branch, version=version)
    return count


def compare_branch(page: PageRequest) -> Page:
    """Compare a branch with main: rows, columns, indexes. Raises TableBranchNotFoundError."""
    name = _name_of(page, "name")
    diff: Any = page.calls.call("DiffTableBranch", id=list(page.path), from_branch=name)
    return Page("branch.html", read_head(page).values(page, "versions") | {"diff": diff, "name": name})


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
        _figure(entry, "total_rows"),
        " ".join(text for text in (metadata.get("operation"), metadata.get("operation_detail")) if text),
        {name: _figure(entry, f"{name}_rows") for name in ROW_COUNTS},
        tags,
        only.operation if only is not None else None,
        only.principal if only is not None else None,
    )


def _figure(entry: Any, name: str) -> int | None:
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
