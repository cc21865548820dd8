"""Name the backups that were taken of the catalog before an erasure, and are there yet: they have the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import LanceNamespaceError

from tiltyard.model.modes import TransactionStatus
from tiltyard.storage.errors import lance_errors
from tiltyard.store import JobFilter

if TYPE_CHECKING:
    from tiltyard.context import Context

BACKUP = "backup"
"""The kind of the transactions that record backups: a command takes each, and no worker."""
MAX_RECORDED = 1_000
"""Backups whose records are looked at for where backups are."""


def record_backup(ctx: Context, target: str, point: str) -> None:
    """Record that a backup was taken, by the folder or URI of its target and its id."""
    properties = {"target": target, "backup": point}
    status = TransactionStatus.SUCCEEDED
    ctx.store.transact(lambda catalog: catalog.create_transaction(BACKUP, None, {}, properties, status))


class BackupsLeft(msgspec.Struct):
    """The backups of one target, oldest first; `problem` is why they could not be listed, which leaves those recorded.

    They have no date at which they end: pruning keeps the last ones of a target, of which `newer` were taken since.
    """

    target: str
    backups: list[str]
    newer: int = 0
    problem: str = ""

    def describe(self) -> str:
        """Return a sentence for people."""
        ids = self.backups[0] if len(self.backups) == 1 else f"{self.backups[0]} to {self.backups[-1]}"
        unsure = f" (as recorded: {self.problem})" if self.problem else ""
        return (
            f"{len(self.backups)} backups at {self.target} have the rows{unsure}: {ids}. They have no date of expiry: "
            f"`tiltyard backup prune {self.target} --keep N` removes all of them once there are N newer ones, of which "
            f"there are {self.newer}."
        )


def find_backups(ctx: Context, until: int) -> list[BackupsLeft]:
    """Return the backups that were taken until a time (ms since 1970), by the targets that the catalog has recorded."""
    recorded: dict[str, set[str]] = {}
    times: dict[str, int] = {}
    for record in ctx.store.list_jobs(JobFilter((BACKUP,)), None, MAX_RECORDED):
        recorded.setdefault(record.properties["target"], set()).add(record.properties["backup"])
        times[record.properties["backup"]] = record.created_at
    found = []
    for target, known in sorted(recorded.items()):
        problem = ""
        try:
            with lance_errors(target):
                files = ctx.storage.files(target)
                points = files.list_folders(f"{target}/points")
                points = [each for each in points if files.is_file(f"{target}/points/{each}/point.json")]
        except LanceNamespaceError as error:
            points, problem = list(known), str(error)
        early = [each for each in sorted(points) if times.get(each, 0) <= until]
        if early:
            found.append(BackupsLeft(target, early, len(points) - len(early), problem))
    return found
