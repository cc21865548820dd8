"""Databases of lancedb's clients: the database NAME is the namespace NAME directly in the root.

Where no such namespace exists that the caller can see, the name means the root, as it did before databases were told
apart; the setting `databases` forbids that (`strict`), or ignores the name altogether (`ignored`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, TransactionNotFoundError

from tiltyard.access.authorization import can_see_namespace
from tiltyard.model.ids import Id, check_id

if TYPE_CHECKING:
    from tiltyard.context import Context

ROOT_DATABASE = Id()


class DatabaseNames(StrEnum):
    """What the name of a database means: the values of the setting `databases`."""

    FALLBACK = "fallback"
    """The namespace of that name; the root where there is none."""
    STRICT = "strict"
    """The namespace of that name, whether there is one or not: then nothing is found."""
    IGNORED = "ignored"
    """The root."""


def resolve_database(ctx: Context, name: str, prefix: str = "") -> Id:
    """Return the namespace that a database is; `prefix` has the names below it, separated by slashes.

    Reads the catalog at most once for an administrator. Raises InvalidInputError for a name that no namespace can have,
    if the root does not take its place; ServiceUnavailableError.
    """
    rule = ctx.settings.databases.lower()
    if rule == DatabaseNames.IGNORED or not name:
        return ROOT_DATABASE
    try:
        path = check_id(Id((name, *filter(None, prefix.split("/"))) if prefix else (name,)))
    except InvalidInputError:
        if rule == DatabaseNames.STRICT:
            raise
        return ROOT_DATABASE
    return path if rule == DatabaseNames.STRICT or _is_visible(ctx, name) else ROOT_DATABASE


def _is_visible(ctx: Context, name: str) -> bool:
    """Return whether a namespace exists and the caller can see it: one that it cannot see does not exist for it."""
    return ctx.store.is_in_root(name) and (ctx.principal.administrator or can_see_namespace(ctx, Id((name,))))


def check_job_in_database(ctx: Context, job_id: str) -> None:
    """Check that a job's object is, or was, in the database of the request: in another one, the job does not exist.

    Raises TransactionNotFoundError, NamespaceNotFoundError (no such database).
    """
    if ctx.database:
        database_id = ctx.store.describe_namespace(ctx.database).id
        if not ctx.store.is_job_in_namespace(job_id, database_id):
            raise TransactionNotFoundError(f"Transaction not found: {job_id}")
