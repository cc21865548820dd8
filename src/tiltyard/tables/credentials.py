"""What a client is told of a table's storage: how to reach it, and credentials if it may have the files themselves.

Whoever narrows what may be read of a table (row filters, column masks) says so with a rule:

    @raw_rule
    def filtered(ctx: Context, record: TableRecord) -> Raw: ...
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError

from tiltyard.access import Privilege, narrowing_of, table_privileges

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TableRecord


class Raw(IntEnum):
    """What somebody may do with the files of a table, round the server."""

    NOTHING = 0
    READ = 1
    WRITE = 2


Rule = Callable[["Context", "TableRecord"], Raw]

_rules: list[Rule] = []


def raw_rule(rule: Rule) -> Rule:
    """Ask this before any credentials are made; the least of what all rules answer counts."""
    _rules.append(rule)
    return rule


def raw_access(ctx: Context, record: TableRecord) -> Raw:
    """What the one who asks may do with the files of a table."""
    return min(rule(ctx, record) for rule in _rules)


@raw_rule
def granted(ctx: Context, record: TableRecord) -> Raw:
    """What the grants say. Raises ServiceUnavailableError."""
    privileges = table_privileges(ctx, record)
    if Privilege.READ not in privileges:
        return Raw.NOTHING  # credentials that write can read, too
    return Raw.WRITE if Privilege.WRITE in privileges else Raw.READ


@raw_rule
def narrowed(ctx: Context, record: TableRecord) -> Raw:
    """What the policies of a table leave of its files: nothing, since files have all rows and columns."""
    return Raw.WRITE if narrowing_of(ctx, record) is None else Raw.NOTHING


def may_wait(ctx: Context, vend: bool | None) -> bool:
    """Whether telling the options may need the storage's provider, and so a thread."""
    return vend is not False and ctx.storage.roots.vends_credentials


def own_options(ctx: Context, record: TableRecord, vend: bool | None) -> dict[str, str] | None:
    """The options of a table that this very request has made, and may have taken away again: its maker has the files.

    Credentials are in there if they were asked for, and no rule but that of the grants is against it. Raises
    ServiceUnavailableError.
    """
    public = ctx.storage.public_options(record.location) or None
    if not vend or ctx.claims:
        return public
    access = min(rule(ctx, record) for rule in _rules if rule is not granted)
    if access is Raw.NOTHING:
        return public
    return ctx.storage.roots.vend_credentials(record.location, writable=access is Raw.WRITE) or public


def storage_options(ctx: Context, record: TableRecord, vend: bool | None) -> dict[str, str] | None:
    """The options to answer; `vend` is what the request says of credentials, None for nothing.

    Credentials are in there unless the request does not want them, the storage hands out none, or they may not be had.
    A request with a key is answered without, since its answer is kept. Raises PermissionDeniedError (asked for, and
    may not be had; or the table lies outside the roots), ServiceUnavailableError (the provider does not answer).
    """
    public = ctx.storage.public_options(record.location) or None
    if not may_wait(ctx, vend) and not vend:
        return public
    access = raw_access(ctx, record)
    if access is Raw.NOTHING:
        if vend:
            raise PermissionDeniedError("You may not have the files of this table: query it through the server.")
        return public
    if ctx.claims:
        return public
    return ctx.storage.roots.vend_credentials(record.location, writable=access is Raw.WRITE) or public
