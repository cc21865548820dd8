"""Refresh columns of a table: plan, compute and commit, fragment by fragment, beside concurrent writers.

    fragments that lack values → a file for each column of each → commits add the files that are written so far

A file belongs to the physical rows of its fragment, so it stays valid through appends and deletes. A fragment that a
compaction replaced meanwhile is planned again: values committed before were compacted with it. Where it runs (`host`)
decides how fragments are computed, and how a commit is made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lance import LanceOperation
from lance_namespace.errors import ConcurrentModificationError

from tiltyard.change_feed.table_history import field_ids, fragments_by_id, read_transactions
from tiltyard.column_refresh.fragment_files import FilledFragment, FragmentPlan, NewFile
from tiltyard.column_refresh.freshness import (
    ComputedColumn,
    FragmentState,
    files_appended_since,
    fragment_states,
    with_column_files,
)

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

CHECKPOINT_SECONDS = 10.0
"""How long files that are written wait for their commit, at most."""

MAX_ROUNDS = 20

FIGURES_PROPERTY = "tiltyard.column_refresh"
"""The property of a Lance transaction that has what its refresh had done by then, as JSON."""


class RefreshHost(Protocol):
    """What a refresh needs of where it runs; `id` is unique to it, and stays the same when it is resumed."""

    @property
    def id(self) -> str:
        """Return the id of the job."""

    def base_version(self) -> int | None:
        """Return the version at which an earlier attempt of this job began; None for the first one."""

    def latest(self) -> lance.LanceDataset:
        """Return the newest version of what is refreshed, as a handle of its own."""

    def committing(self) -> AbstractContextManager[object]:
        """Hold what keeps others from committing between `latest` and `commit`, if anything does."""

    def commit(
        self, dataset: lance.LanceDataset, operation: LanceOperation.Update, properties: Mapping[str, str]
    ) -> int | None:
        """Commit on top of `dataset`; return the version, None if another commit came first."""

    def fill(
        self,
        plans: Sequence[FragmentPlan],
        rows: Mapping[int, int],
        on_filled: Callable[[Sequence[FilledFragment]], None],
    ) -> None:
        """Write the files of plans, and pass on the results as they come; `rows` are those of each fragment."""

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete data files that are in no version."""

    def record_failures(self, filled: FilledFragment, version: int) -> None:
        """Record the rows of a fragment that a function failed on."""

    def progress(self, **figures: object) -> None:
        """Report figures. Raises once the job has to stop."""


@dataclass(frozen=True, slots=True)
class _PendingFiles:
    """Files that wait for their commit; computed from inputs with this digest, when so many rows were deleted."""

    filled: FilledFragment
    digest: str
    deletions: int


@dataclass(slots=True)
class ColumnRefresh:
    """A refresh in progress.

    `columns` are filled at once by one computation: the first one decides which fragments are computed, the others are
    filled where they are stale, too. `base` is the version at the beginning; `rows` and `fragments` count committed
    values.
    """

    host: RefreshHost
    table: str
    columns: tuple[ComputedColumn, ...]
    where: str | None
    only: Mapping[int, str] | None = None
    """The fragments to compute, each with the condition of the rows; None for all that lack values."""
    base: int = 0
    rows: int = 0
    fragments: int = 0
    version: int = 0
    _pending: dict[int, _PendingFiles] = field(default_factory=dict)
    _partly_done: set[tuple[int, str]] = field(default_factory=set)
    """Fragments, with the digest of their inputs, whose rows that match the condition are computed."""
    _failed: dict[int, int] = field(default_factory=dict)
    """How many rows of a fragment the function failed on."""
    _last_commit: float = field(default_factory=time.monotonic)

    @property
    def column(self) -> ComputedColumn:
        """Return the column that was asked for."""
        return self.columns[0]

    @property
    def _is_partial(self) -> bool:
        """Return whether a condition says which rows are computed."""
        return self.where is not None or self.only is not None

    def run(self) -> Mapping[str, object]:
        """Plan, compute and commit, until all fragments of the beginning are up to date; return the figures.

        Raises ConcurrentModificationError if others replace fragments in each of `MAX_ROUNDS` rounds.
        """
        self._begin()
        for number in range(MAX_ROUNDS):
            dataset = self.host.latest()
            self._check_same_columns(dataset)
            plans = self._plan(dataset, is_first=number == 0)
            if not plans:
                self._report_remaining(dataset)
                return {"rows": self.rows, "fragments": self.fragments, "version": self.version}
            total = self.fragments + len(plans)
            fragments = fragments_by_id(dataset)

            def handle_filled(
                results: Sequence[FilledFragment],
                planned: Mapping[int, FragmentMetadata] = fragments,
                fragments_total: int = total,
            ) -> None:
                for filled in results:
                    self._record_failures(filled)
                    self._add_pending(filled, planned[filled.fragment_id])
                self.host.progress(rows=self.rows, fragments=self.fragments, fragments_total=fragments_total)

            rows = {plan.fragment_id: fragments[plan.fragment_id].physical_rows for plan in plans}
            self.host.fill(plans, rows, handle_filled)
            self._commit_pending()
        raise ConcurrentModificationError(
            f"Concurrent commits replaced fragments of {self.table} {MAX_ROUNDS} times while they were computed: run "
            "the job again when no compaction runs. Computed values are kept."
        )

    def _begin(self) -> None:
        """Take over what earlier attempts of the job have committed."""
        began = self.host.base_version()
        dataset = self.host.latest()
        self.base = self.version = int(dataset.version)
        own: dict[str, Any]
        if began is not None:
            for version, transaction in read_transactions(dataset, began):
                own = json.loads((transaction.transaction_properties or {}).get(FIGURES_PROPERTY, "{}"))
                if own.get("job") == self.host.id:
                    self.rows, self.fragments, self.version = own["rows"], own["fragments"], version
                    break
        self.host.progress(source_version=self.base if began is None else began)

    def _plan(self, dataset: lance.LanceDataset, *, is_first: bool) -> list[FragmentPlan]:
        """Return a plan for each fragment that lacks values; rows appended meanwhile are left to a later run."""
        fragments = fragments_by_id(dataset)
        appended = frozenset() if is_first else files_appended_since(dataset, self.base)
        candidates = [
            fragment
            for fragment in fragments.values()
            if not appended & {str(file.path) for file in fragment.files} and fragment.num_rows
        ]
        stale = {
            fragment_id: state
            for fragment_id, state in fragment_states(dataset, self.column, candidates).items()
            if state is not FragmentState.FRESH
            and (fragment_id, self.column.digest(fragments[fragment_id])) not in self._partly_done
            and (self.only is None or fragment_id in self.only)
        }
        parts = [fragments[fragment_id] for fragment_id in stale]
        states: list[Mapping[int, FragmentState]] = [stale]
        states += [fragment_states(dataset, column, parts) for column in self.columns[1:]]
        return [
            FragmentPlan(
                int(dataset.version),
                part.id,
                tuple(
                    self._new_file(column, part, state[part.id])
                    for column, state in zip(self.columns, states, strict=True)
                    if state[part.id] is not FragmentState.FRESH
                ),
                self.where if self.only is None else self.only[part.id],
            )
            for part in parts
        ]

    def _new_file(self, column: ComputedColumn, fragment: FragmentMetadata, state: FragmentState) -> NewFile:
        name = column.file_name(fragment, state, partly=self._is_partial)
        has_no_values = state is FragmentState.ALL and column.file(fragment) is None
        return NewFile(column.name, FragmentState.NULLS if has_no_values and self._is_partial else state, name)

    def _add_pending(self, filled: FilledFragment, fragment: FragmentMetadata) -> None:
        """Hold a fragment's files until the next commit; partial files without any new value are deleted instead."""
        digest = self.column.digest(fragment)
        is_partial = self._is_partial or bool(filled.failed)
        if is_partial:
            self._partly_done.add((filled.fragment_id, digest))
        if is_partial and not filled.rows:
            self._delete_files([filled])
        else:
            self._pending[filled.fragment_id] = _PendingFiles(filled, digest, fragment.num_deletions)
        if time.monotonic() - self._last_commit > CHECKPOINT_SECONDS:
            self._commit_pending()

    def _record_failures(self, filled: FilledFragment) -> None:
        """Record the rows that the function failed on, which stay null."""
        if filled.failed:
            self._failed[filled.fragment_id] = filled.failed
            self.host.record_failures(filled, self.base)

    def _report_remaining(self, dataset: lance.LanceDataset) -> None:
        """Report how many rows have no value: those that failed and, under a condition, those that it left out."""
        failed = remaining = sum(self._failed.values())
        if self._is_partial:
            remaining = dataset.scanner(
                columns=[], filter=f"`{self.column.name}` IS NULL", with_row_id=True
            ).count_rows()
        if failed or remaining:
            self.host.progress(rows_failed=failed, rows_remaining=remaining)

    def discard_pending(self) -> None:
        """Delete the files that wait for a commit, and get none."""
        self._delete_files([pending.filled for pending in self._pending.values()])
        self._pending.clear()

    def _delete_files(self, results: Sequence[FilledFragment]) -> None:
        if results:
            self.host.delete_files([str(file.path) for filled in results for file in filled.files])

    def _commit_pending(self) -> None:
        """Commit the pending files on the newest version; delete those that do not fit its fragments any more."""
        while self._pending:
            self.host.progress(stage="commit")
            with self.host.committing():
                dataset = self.host.latest()
                self._check_same_columns(dataset)
                updated = self._apply_pending(dataset)
                if not updated:
                    break
                rows = self.rows + sum(self._pending[fragment_id].filled.rows for fragment_id in updated)
                fragments = self.fragments + len(updated)
                figures = json.dumps({"job": self.host.id, "rows": rows, "fragments": fragments})
                operation = LanceOperation.Update(
                    updated_fragments=list(updated.values()),
                    fields_modified=sorted(number for column in self.columns for number in column.fields),
                    update_mode="rewrite_columns",
                )
                version = self.host.commit(dataset, operation, {FIGURES_PROPERTY: figures})
            if version is None:
                continue
            self.version, self.rows, self.fragments = version, rows, fragments
            for fragment_id in updated:
                del self._pending[fragment_id]
            break
        for fragment_id in self._pending:
            self._failed.pop(fragment_id, None)  # another fragment has its rows by now
        self.discard_pending()
        self._last_commit = time.monotonic()
        if self.version > self.base:
            self.host.progress(version=self.version)

    def _apply_pending(self, dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
        """Return the fragments of `dataset` with their pending files, of those whose inputs have not changed."""
        fragments = fragments_by_id(dataset)
        updated = {}
        for fragment_id, pending in self._pending.items():
            fragment = fragments.get(fragment_id)
            if fragment is None or self.column.digest(fragment) != pending.digest:
                continue
            # A restored version may have rows again that were deleted, and so not computed.
            if fragment.num_deletions >= pending.deletions:
                new_files = pending.filled.files
                fields = frozenset(number for file in new_files for number in file.fields if number >= 0)
                replaced = [column for column in self.columns if not column.fields.isdisjoint(fields)]
                gone = frozenset(number for column in replaced for number in column.fields)
                updated[fragment_id] = with_column_files(fragment, new_files, gone)
        return updated

    def _check_same_columns(self, dataset: lance.LanceDataset) -> None:
        """Raise ConcurrentModificationError if a column was changed, dropped or replaced."""
        for column in self.columns:
            name = column.name
            if name not in dataset.schema.names or dataset.schema.field(name).type != column.type:
                raise ConcurrentModificationError(f"The column '{name}' was changed or dropped meanwhile.")
            if field_ids(dataset, name) != column.fields:
                raise ConcurrentModificationError(
                    f"The column '{name}' was dropped and created again meanwhile: run the job again."
                )
