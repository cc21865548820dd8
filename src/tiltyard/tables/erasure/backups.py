"""Name the backups that were taken of the catalog before an erasure, and are there yet: they have the rows."""

from __future__ import annotations

from datetime import UTC, datetime
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


def record_backup(ctx: Context, target: str, point: str, expires_at: int) -> None:
    """Record that a backup was taken, by the location of its target, its id, and when it expires (ms; 0: never)."""
    properties = {"target": target, "backup": point, **({"expires_at": str(expires_at)} if expires_at else {})}
    status = TransactionStatus.SUCCEEDED
    ctx.store.transact(lambda catalog: catalog.create_transaction(BACKUP, None, {}, properties, status))


class BackupsLeft(msgspec.Struct):
    """The backups of one target, oldest first; `problem` is why they could not be listed, which leaves those recorded.

    `expire` are the dates from which pruning removes those that have one (ms since 1970); of the others it keeps the
    last ones of a target, of which `newer` were taken since.
    """

    target: str
    backups: list[str]
    newer: int = 0
    problem: str = ""
    expire: dict[str, int] = {}

    def describe(self) -> str:
        """Return a sentence for people."""
        ids = self.backups[0] if len(self.backups) == 1 else f"{self.backups[0]} to {self.backups[-1]}"
        unsure = f" (as recorded: {self.problem})" if self.problem else ""
        told = f"{len(self.backups)} backups at {self.target} have the rows{unsure}: {ids}."
        if self.expire:
            last = datetime.fromtimestamp(max(self.expire.values()) / 1000, UTC)
            told += (
                f" {len(self.expire)} of them expire, the last on {last:%Y-%m-%d}: `tiltyard backup prune "
                f"{self.target} --expired` removes them then, the latest of a target once there is a newer one."
            )
        if without := len(self.backups) - len(self.expire):
            told += (
                f" {without} have no date of expiry: `tiltyard backup prune {self.target} --keep N` removes all of "
                f"them once there are N newer ones, of which there are {self.newer}."
            )
        return told


def find_backups(ctx: Context, until: int) -> list[BackupsLeft]:
    """Return the backups that were taken until a time (ms since 1970), by the targets that the catalog has recorded."""
    recorded: dict[str, set[str]] = {}
    times: dict[str, int] = {}
    expire: dict[str, int] = {}
    for record in ctx.store.list_jobs(JobFilter((BACKUP,)), None, MAX_RECORDED):
        recorded.setdefault(record.properties["target"], set()).add(record.properties["backup"])
        times[record.properties["backup"]] = record.created_at
        if date := record.properties.get("expires_at"):
            expire[record.properties["backup"]] = int(date)
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
            dates = {each: expire[each] for each in early if each in expire}
            found.append(BackupsLeft(target, early, len(points) - len(early), problem, dates))
    return found
