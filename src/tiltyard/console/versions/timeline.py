"""The page of a table's versions: its timeline, tags and branches; changes of them, restoring one after a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.table.heads import read_head
from tiltyard.console.templates import link
from tiltyard.console.versions.comparison import compare_columns
from tiltyard.console.versions.history import History, read_history

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tiltyard.console.table.heads import TableHead

MAX_REFS = 200
"""Tags and branches that the page lists."""
MAIN = "main"


def show(page: PageRequest) -> Page:
    """Show the versions of a table, or their continuation. Raises what describing and listing them raise."""
    return _show(page)


def _show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
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


def act(page: PageRequest) -> Page | Redirect:
    """Change tags and branches, or restore a version; what cannot be done is said above the timeline."""
    action = page.text("action")
    if action not in _ACTIONS:
        raise InvalidInputError(f"Tags and branches are changed, versions restored, not '{action[:40]}'.")
    try:
        _ACTIONS[action](page)
    except LanceNamespaceError as error:
        problem = page.explain(error)
        return _show(page, problem.message, problem.status)
    return Redirect(link("versions", page.path, at=_branch_ref(page)))


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


def _create_tag(page: PageRequest) -> None:
    fields = {"tag": _name_of(page, "tag"), "version": _version_of(page), "branch": page.text("branch") or None}
    page.calls.call("CreateTableTag", id=list(page.path), **fields)


def _move_tag(page: PageRequest) -> None:
    fields = {"tag": _name_of(page, "tag"), "version": _version_of(page), "branch": page.text("branch") or None}
    page.calls.call("UpdateTableTag", id=list(page.path), **fields)


def _delete_tag(page: PageRequest) -> None:
    page.calls.call("DeleteTableTag", id=list(page.path), tag=_name_of(page, "tag"))


def _create_branch(page: PageRequest) -> None:
    page.calls.call(
        "CreateTableBranch",
        id=list(page.path),
        name=_name_of(page, "name"),
        from_branch=page.text("branch") or None,
        from_version=page.optional_integer("version") or None,
    )


def _delete_branch(page: PageRequest) -> None:
    page.calls.call("DeleteTableBranch", id=list(page.path), name=_name_of(page, "name"))


def _restore(page: PageRequest) -> None:
    page.calls.call("RestoreTable", id=list(page.path), version=_version_of(page), branch=page.text("branch") or None)


_ACTIONS: Mapping[str, Callable[[PageRequest], None]] = {
    "create-tag": _create_tag,
    "move-tag": _move_tag,
    "delete-tag": _delete_tag,
    "create-branch": _create_branch,
    "delete-branch": _delete_branch,
    "restore": _restore,
}


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
