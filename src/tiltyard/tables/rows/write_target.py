"""What a write goes to: a table, or one of its branches."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidTableStateError, TableNotFoundError

from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.storage.errors import is_conflict
from tiltyard.store import DROPPED
from tiltyard.tables.commits.idempotency_marks import marks
from tiltyard.tables.opening import open_to_commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.commit_route import Road
    from tiltyard.store import TableRecord

_RETRIES = 100  # within the time that conflicts may take
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """A table as the catalog has it, and the branch to write to (None: main)."""

    ctx: Context
    record: TableRecord
    branch: str | None = None

    @property
    def location(self) -> str:
        """Where the table lies."""
        return self.record.location

    @property
    def road(self) -> Road | None:
        """Which way commits of durable files take."""
        return self.ctx.commit_route(self.record, durable=True)

    @property
    def key(self) -> str:
        """What identifies the line of versions that a commit extends."""
        return f"{self.location}#{self.branch or MAIN_BRANCH}"

    @property
    def retries(self) -> int:
        """How often Lance may do a change again by itself when another commit came first.

        It does so on the version that came, unseen by `Datasets.checked`: its manifest could name the files of another
        table, and the rows would be copied into this one. What comes to a managed table the catalog has looked at; any
        other is opened anew for each try.
        """
        return _RETRIES if self.record.managed else 0

    def marks(self, rows: int) -> dict[str, str]:
        """Properties of a transaction that fulfils the request."""
        return marks({claim.id: rows for claim in self.ctx.claims})

    def dataset(self) -> lance.LanceDataset:
        """The latest version, as a shared handle.

        Raises InvalidTableStateError for a table without data, TableBranchNotFoundError.
        """
        storage = self.ctx.storage
        return storage.datasets.reader(self.location, storage.options(self.location), self.branch)

    def dataset_to_commit(self) -> lance.LanceDataset:
        """The latest version, as a handle to commit durable files through. Raises as `dataset` does."""
        if not self.record.managed:
            return self.dataset()
        return open_to_commit(self.ctx, self.record, self.branch, durable=True)

    def exclusive_dataset(self) -> lance.LanceDataset:
        """The latest version, as a handle of one's own: Lance locks the one it reads transactions through.

        Raises as `dataset` does.
        """
        storage = self.ctx.storage
        return storage.datasets.writer(self.location, storage.options(self.location), self.branch)

    def dataset_if_written(self) -> lance.LanceDataset | None:
        """The latest version, or None for a table that is only declared. Raises as `dataset` does."""
        try:
            return self.dataset()
        except InvalidTableStateError:
            if not self.record.declared or (self.branch and self.branch != MAIN_BRANCH):
                raise
            return None

    def finish_commit(self, dataset: lance.LanceDataset, *, plain: bool = False) -> int:
        """Share the handle of a new version, note that the table has data, and return the version.

        A handle that was opened through the catalog asks it for every read as well, so it is not shared: `plain` says
        that this one was not.

        Raises TableNotFoundError for the first version of a table that was dropped meanwhile.
        """
        if plain or not self.record.managed:
            self.ctx.storage.datasets.keep(self.location, self.branch, dataset)
        return self.mark_written(int(dataset.version))

    def mark_written(self, version: int) -> int:
        """Note that the table has data, and return the version. Raises TableNotFoundError as `committed` does."""
        if self.record.declared:
            try:
                self.ctx.store.mark_written(self.record.id)
            except TableNotFoundError:
                if version == 1:  # else there was data before, and the rows came before whatever took the record away
                    self.schedule_cleanup()
                    raise
        return version

    def schedule_cleanup(self) -> None:
        """Have the folder of a table swept that was dropped, before or while this write put files there."""
        self.ctx.store.doom(self.location, self.ctx.clock(), DROPPED)

    @contextmanager
    def cleanup_on_error(self) -> Iterator[None]:
        """On an error, have the files swept that came to lie in the folder of a table dropped meanwhile."""
        try:
            yield
        except BaseException:
            if not self.ctx.storage.has_table(self.location) and not self._is_there():
                self.schedule_cleanup()
            raise

    def _is_there(self) -> bool:
        try:
            return self.ctx.store.table_by_id(self.record.id).location == self.location
        except TableNotFoundError:
            return False


class ConflictRetry:
    """How long a conflicting write is tried again, with growing pauses."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE
        self.attempts = 1

    @property
    def left(self) -> float:
        """Seconds until patience ends."""
        return max(self._deadline - time.monotonic(), 0)

    def wait_or_raise(self, error: BaseException) -> None:
        """Pause before another attempt; raise the error if it is no conflict, or patience is at its end."""
        if not is_conflict(error) or self.left <= self._pause:
            raise error
        time.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads writers out, keeps no secret
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self.attempts += 1
