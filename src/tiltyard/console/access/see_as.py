"""See a table as another principal: its privileges, the policies that bind it, and the rows that it would see.

For administrators. What is shown is read as that principal, by the operations that it would call, so that grants, row
filters and masks are evaluated and not guessed; each call is in the audit as the administrator's, with `see_as`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError
from msgspec import structs

from tiltyard.access.authorization import effective_policy_of, is_administrator
from tiltyard.access.policies import policy_by_names
from tiltyard.console.access.forms import required_text
from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.grid import Grid, read_grid
from tiltyard.console.table.heads import read_head
from tiltyard.console.table.rows import Choice
from tiltyard.identity import in_process_principal
from tiltyard.model.ids import check_name

if TYPE_CHECKING:
    from tiltyard.console.table.heads import TableHead
    from tiltyard.model.principals import Principal

ROWS = 25
MAX_GROUPS = 100
UNSEEN = frozenset({"TABLE_NOT_FOUND", "NAMESPACE_NOT_FOUND", "PERMISSION_DENIED"})
"""Errors that are what the principal would be told."""


def show(page: PageRequest) -> Page:
    """Show what a principal would see of a table.

    Raises PermissionDeniedError, UnauthenticatedError for one that is disabled, …NotFoundError.
    """
    if not is_administrator(page.calls.ctx):
        raise PermissionDeniedError("To see as another principal is for administrators.")
    principal = _principal_of(page)
    head = read_head(page)
    privileges = page.calls.call(
        "CheckPrivileges",
        object_kind="table",
        id=list(page.path),
        grantee=principal.name,
        grantee_kind="principal",
        groups=list(principal.groups) or None,
    )
    seen = replace(page, calls=page.calls.seen_as(principal), principal=principal)
    values = head.values(page, "policies") | {
        "who": principal,
        "privileges": privileges.privileges,
        "policy": None,
        "seen_head": None,
        "grid": Grid((), (), has_more=False),
        "rows_seen": None,
        "rows_all": _count(page),
        "refusal": "",
    }
    try:
        values |= _look(seen)
    except LanceNamespaceError as error:
        if error.code.name not in UNSEEN:
            raise
        values["refusal"] = str(error)
    return Page("see_as.html", values)


def _principal_of(page: PageRequest) -> Principal:
    """Return the principal of the form, with the groups that its token would have.

    Raises InvalidInputError, UnauthenticatedError for one that is disabled.
    """
    name = check_name(required_text(page, "principal", "the principal's name"), "principal's name")
    groups = [part.strip() for part in page.text("groups").replace("\n", ",").split(",") if part.strip()]
    if len(groups) > MAX_GROUPS:
        raise InvalidInputError(f"There are {len(groups)} groups: {MAX_GROUPS} at most.")
    principal = in_process_principal(page.services.store, name)
    return structs.replace(principal, groups=tuple(check_name(group, "group's name") for group in groups))


def _look(seen: PageRequest) -> dict[str, Any]:
    """Return what a principal sees, by its own calls. Raises what they raise."""
    head = read_head(seen)
    ctx = seen.calls.ctx
    policy = effective_policy_of(ctx, ctx.find_table(seen.path))
    names = [column.name for column in head.columns]
    values: dict[str, Any] = {
        "seen_head": head,
        "policy": None if policy is None else policy_by_names(policy, names),
    }
    if head.table.is_only_declared or not head.columns:
        return values
    return values | {"rows_seen": _count(seen), "grid": _read(seen, head)}


def _read(seen: PageRequest, head: TableHead) -> Grid:
    """Read the first rows, without their ids: bytes would load by themselves, as somebody else."""
    columns = [column for column in head.columns if column.name not in head.hidden]
    request = Choice("", (), "", 0, ROWS).request(head, seen.path, columns) | {"with_row_id": None}
    with seen.calls.rows(**request) as answer:
        return read_grid(answer, columns, ROWS)


def _count(page: PageRequest) -> int | None:
    count: int | None = page.calls.attempt("CountTableRows", id=list(page.path))
    return count
