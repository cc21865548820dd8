"""Servers and workers of the catalog that are alive, on any machine, by what each writes of itself."""

from __future__ import annotations

from tiltyard.store.repository import Record, Repository, reads, writes

FORGET_MS = 15 * 60_000
"""How long the row of a process that writes no more is kept."""
ALIVE_MS = 60_000
"""A process that has not written for so long is taken for dead: it has missed three."""
MAX_LISTED = 500


class ProcessRecord(Record, frozen=True):
    """A process, as of what it last wrote at `seen_at` (ms since 1970). `kind` is "server" or "worker".

    `threads` run transactions of the catalog and `drivers` jobs of the pipeline, at most so many at once; `running` is
    how many it had under way. `url` is where other servers reach it, "" where nothing says so; `weight` is how much it
    keeps of tables, beside the others.
    """

    id: str
    kind: str
    host: str
    pid: int
    version: str
    threads: int
    drivers: int
    running: int
    started_at: int
    seen_at: int
    url: str = ""
    weight: int = 0

    def is_alive(self, now: int) -> bool:
        """Whether the process has written lately, as of `now` (ms since 1970)."""
        return now - self.seen_at < ALIVE_MS


RECORD = f"""
    INSERT INTO processes ({ProcessRecord.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET running = excluded.running, seen_at = excluded.seen_at
"""  # noqa: S608 - a constant of the code
DELETE_SILENT = "DELETE FROM processes WHERE seen_at < ?"
DELETE = "DELETE FROM processes WHERE id = ?"
LIST = f"SELECT {ProcessRecord.COLUMNS} FROM processes ORDER BY kind, host, started_at, pid LIMIT ?"  # noqa: S608 - a constant


class Processes(Repository):
    """The methods for processes."""

    __slots__ = ()

    @writes
    def record_process(self, process: ProcessRecord) -> None:
        """Record that a process is alive, and delete those that have been silent for FORGET_MS."""
        self.connection.change(DELETE_SILENT, process.seen_at - FORGET_MS)
        self.connection.change(RECORD, *process.row)

    @writes
    def delete_process(self, id_: str) -> None:
        """Delete a process, which ends."""
        self.connection.change(DELETE, id_)

    @reads
    def list_processes(self) -> list[ProcessRecord]:
        """Return the processes with a row, MAX_LISTED at most: those of a kind and a host together."""
        return [ProcessRecord.of(row) for row in self.connection.rows(LIST, MAX_LISTED)]
