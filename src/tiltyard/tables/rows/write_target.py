"""The target of a write: a table of the catalog, or one of its branches."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lance_namespace.errors import InvalidTableStateError, TableNotFoundError

from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.views.plain_views import refuse_view
from tiltyard.runtime.pool import Started, start_soon
from tiltyard.storage.locations import is_local
from tiltyard.store import DROPPED
from tiltyard.tables.commits.idempotency_marks import marks
from tiltyard.tables.opening import find_table, finish_direct_commit, open_to_commit
from tiltyard.tables.versions.records import recorded_latest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.caches.shared_snapshots import RecordedVersion
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.storage.commit_route import CommitRoute
    from tiltyard.storage.writing import UnopenedVersion
    from tiltyard.store import TableRecord

_LANCE_RETRIES = 100  # within the time that conflicts may take


@dataclass(frozen=True, slots=True)
class OpenedVersion:
    """What is looked up of a version while rows are written on top of it: its manifest, and whether storage has it."""

    _manifest: Started[bytes | None] | None
    _is_in_storage: Started[bool] | None

    @property
    def is_in_storage(self) -> bool:
        """Whether storage has the version, or later ones. Raises ServiceUnavailableError."""
        return self._is_in_storage is None or self._is_in_storage.result()

    @property
    def manifest(self) -> bytes | None:
        """Return its manifest; None where none was read. Raises what reading it raises."""
        return None if self._manifest is None else self._manifest.result()


class WriteBase(NamedTuple):
    """What a write is based on: a version, and a shared dataset to write with."""

    dataset: lance.LanceDataset
    """Of the version; for appends perhaps of an earlier one with the same schema, while the version is being opened."""
    version: int
    was_asked_for: bool
    """Whether storage was asked if it has the version."""

    @classmethod
    def of(cls, dataset: lance.LanceDataset) -> WriteBase:
        """Return a dataset of the latest version, which was just looked up in storage."""
        return cls(dataset, int(dataset.version), was_asked_for=True)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """A table's record in the catalog, and the branch to write to."""

    ctx: Context
    record: TableRecord
    branch: Branch = MAIN

    def __post_init__(self) -> None:
        """Raise InvalidTableStateError for a view, which nothing can be written to.

        Raise StorageUnavailableError while the storage is known not to respond: writes before this one may hold the
        table's lock, or its queue, until they give up.
        """
        refuse_view(self.record.properties)
        self.ctx.storage.check_available(self.location)

    @classmethod
    def named_by(cls, ctx: Context, request: Any) -> WriteTarget:
        """Return the table and branch that a request names, as its `id` and `branch`.

        Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError, and as for any other target.
        """
        return cls(ctx, find_table(ctx, request.id), Branch.parse(request.branch))

    @property
    def location(self) -> str:
        """Return the location of the table."""
        return self.record.location

    @property
    def base(self) -> str:
        """Return where the files of the branch are written. A dataset's `uri` says so of main alone."""
        return self.branch.base(self.record.location)

    @property
    def commit_route(self) -> CommitRoute | None:
        """Return the route of commits whose files are durable already."""
        return self.ctx.commit_route(self.record, durable=True)

    @property
    def key(self) -> str:
        """Return the key of the branch's version history, for locks and for the queue of appends."""
        return f"{self.location}#{self.branch.name}"

    @property
    def retries(self) -> int:
        """Return how often Lance itself may retry a change after a conflict: 0 for a table that is not managed.

        Lance retries on the newer version without `Datasets.checked`: its manifest could name files of another table,
        whose rows would be copied into this one. The catalog has checked every version of a managed table; any other
        table is opened anew for each attempt.
        """
        return _LANCE_RETRIES if self.record.managed else 0

    def transaction_properties(self, rows: int) -> dict[str, str]:
        """Return the transaction properties that name the requests with a key which this commit fulfils."""
        return marks({claim.id: rows for claim in self.ctx.claims})

    def dataset(self) -> lance.LanceDataset:
        """Open the latest version as a shared handle, which must not be mutated.

        Raises InvalidTableStateError for a table without data, TableBranchNotFoundError.
        """
        storage = self.ctx.storage
        return storage.datasets.open_for_reading(self.location, self.branch)

    def share(self, dataset: lance.LanceDataset) -> CachedVersion:
        """Share the handle of a version that was just committed; return its snapshot."""
        recorded = recorded_latest(self.ctx, self.record, self.branch)
        return self.ctx.storage.datasets.cache(self.location, self.branch, dataset, recorded)

    def dataset_to_commit(self) -> lance.LanceDataset:
        """Open the latest version as a handle to commit durable files through. Raises as `dataset` does."""
        if not self.record.managed:
            return self.dataset()
        return open_to_commit(self.ctx, self.record, self.branch, durable=True)

    def share_when_open(self, base: WriteBase, committed: UnopenedVersion) -> None:
        """Open a version that was just committed in a thread, and share its handle.

        If it came right after `base` it has its columns: changes of columns do not come here.
        """
        recorded = recorded_latest(self.ctx, self.record, self.branch)
        self.ctx.storage.datasets.cache_when_open(
            self.location,
            base.dataset if committed.version == base.version + 1 else None,
            committed.version,
            committed.open,
            recorded,
        )

    def open_to_append(self) -> WriteBase:
        """Open the latest version, to append to. Raises as `dataset` does.

        Of a managed table on an object store it is the version that the catalog has, and `looking_up` asks storage
        while rows are written.
        """
        recorded = recorded_latest(self.ctx, self.record, self.branch)
        return WriteBase.of(self.dataset()) if recorded is None else self._open_recorded(recorded)

    def open_to_change(self) -> WriteBase | None:
        """Open the latest version, to change its rows; None unless the catalog knows it, on an object store.

        A version that is being opened is waited for; `looking_up` asks storage while rows are changed. Raises as
        `dataset` does.
        """
        recorded = recorded_latest(self.ctx, self.record, self.branch)
        return None if recorded is None else self._open_recorded(recorded, is_open=True)

    def _open_recorded(self, recorded: RecordedVersion, *, is_open: bool = False) -> WriteBase:
        """Open the version that the catalog has by `Datasets.recorded_dataset`, or else the latest one in storage."""
        dataset = self.ctx.storage.datasets.recorded_dataset(self.location, recorded, is_open=is_open)
        if dataset is None:
            return WriteBase.of(self.dataset())
        return WriteBase(dataset, recorded.version, was_asked_for=False)

    @contextmanager
    def looking_up(self, base: WriteBase) -> Iterator[OpenedVersion]:
        """While the block runs, read the manifest of a version, and ask storage for it unless it was asked before."""
        if not self.record.managed or not self.branch.is_main or is_local(self.location):
            yield OpenedVersion(None, None)
            return
        manifest = start_soon(partial(self.ctx.storage.manifests.read_latest, self.location, base.version))
        yield OpenedVersion(manifest, self.look_for(base))

    def look_for(self, base: WriteBase) -> Started[bool] | None:
        """Begin to ask storage for a version on an object store; None if it was asked before."""
        if base.was_asked_for:
            return None
        return start_soon(partial(self.ctx.storage.datasets.is_in_storage, self.location, base.dataset, base.version))

    def exclusive_dataset(self) -> lance.LanceDataset:
        """Open the latest version as a handle that is not shared: Lance locks the handle it reads transactions through.

        Raises as `dataset` does.
        """
        storage = self.ctx.storage
        return storage.datasets.open_for_writing(self.location, self.branch)

    def dataset_if_written(self) -> lance.LanceDataset | None:
        """Open the latest version; None for a table that is only declared. Raises as `dataset` does."""
        try:
            return self.dataset()
        except InvalidTableStateError:
            if not self.record.declared or not self.branch.is_main:
                raise
            return None

    def finish_commit(self, dataset: lance.LanceDataset, *, is_direct: bool = False) -> int:
        """Share the handle of a new version, mark the table as written, and return the version.

        A handle with a commit handler of the catalog queries the catalog for every read as well, so it is not shared;
        `is_direct` says that this handle has none.

        Raises TableNotFoundError for the first version of a table that was dropped meanwhile.
        """
        if is_direct or not self.record.managed:
            self.share(dataset)
        return self.mark_written(int(dataset.version))

    def mark_written(self, version: int, *, is_new: bool = True) -> int:
        """Mark a declared table as written, and return the version, which may have been there before.

        Raises as `finish_commit` does.
        """
        if not self.record.managed:
            finish_direct_commit(self.ctx, self.record, self.branch, version, is_new=is_new)
        if self.record.declared:
            try:
                self.ctx.store.mark_written(self.record.id)
            except TableNotFoundError:
                if (
                    version == 1
                ):  # a later one had data below it, so the rows were committed before the table was dropped
                    self.schedule_cleanup()
                    raise
        return version

    def schedule_cleanup(self) -> None:
        """Schedule the folder of a dropped table for deletion: this write may have put files there since."""
        self.ctx.store.schedule_deletion(self.location, self.ctx.clock(), DROPPED)

    @contextmanager
    def cleanup_on_error(self) -> Iterator[None]:
        """On an error, schedule the deletion of files written into the folder of a table that was dropped meanwhile."""
        try:
            yield
        except BaseException:
            if not self.ctx.storage.has_table(self.location) and not self._still_exists():
                self.schedule_cleanup()
            raise

    def _still_exists(self) -> bool:
        try:
            return self.ctx.store.table_by_id(self.record.id).location == self.location
        except TableNotFoundError:
            return False
