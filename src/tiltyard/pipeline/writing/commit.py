"""Commit to exactly the version that a change was planned on, or not at all.

Lance rebases a commit on newer versions if their files do not collide. That is right for independent rows and wrong for
keys: two upserts that both found a key missing would both insert it. So a job commits through a namespace that accepts
one version number only, the next one; the catalog's unique key decides between concurrent commits. A job that loses
looks at the versions in between, and commits on top of them, or plans that part again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import lance
import lance_namespace as upstream
import pyarrow as pa
from lance.dataset import Transaction
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)

from tiltyard.change_feed.table_history import read_transactions
from tiltyard.model.lineage import RUN_PROPERTY, JobLineage
from tiltyard.pipeline.lineage import index_commit
from tiltyard.runtime.pool import start_thread

if TYPE_CHECKING:
    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import TableLocation

MAX_TRIES = 20
"""How often a change is tried again because of commits of others."""
_STEP_PROPERTY = "tiltyard.step"


class CommitConflictError(Exception):
    """Another commit was first. Nothing of this commit is visible: plan again on the newest version."""


class DuplicateKeyError(InvalidTableStateError):
    """The rows would give the table a primary key twice: nothing of them is visible, and no retry helps."""


class NullKeyError(TableSchemaValidationError):
    """A row has no value in a column of the table's primary key: nothing is visible, and no retry helps."""


KEY_ERRORS = (DuplicateKeyError, NullKeyError)
_REFUSAL = "nothing was committed"
"""What the catalog's message says of a commit that it has refused for good. Without it the rows' files are kept."""


class NextVersionNamespace(upstream.LanceNamespace):
    """The namespace of one table's commits: accepts the version after `base`, and others if `verify` allows it."""

    def __init__(self, inner: upstream.LanceNamespace) -> None:
        self._inner = inner
        self.base = 0
        self.verify: Callable[[int], bool] | None = None
        self.refused = False
        self.final_error: LanceNamespaceError | None = None
        """Why the catalog refused the last commit for good: Lance only says that its outcome is unknown."""

    def namespace_id(self) -> str:
        """Return an id of its own: pylance shares cached state among namespaces of one id."""
        return f"{self._inner.namespace_id()} strict {id(self)}"

    def describe_table(self, request: Any) -> upstream.DescribeTableResponse:
        """Describe the table as one whose commits go through the catalog.

        A job's do, even to one that others may commit to without it, as below a mount: the catalog gives the manifest
        its name only if nobody has taken that.
        """
        response = self._inner.describe_table(request)
        response.managed_versioning = True
        return response

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """List versions. Raises InvalidInputError after a refused commit."""
        self._stop_if_refused()
        return self._inner.list_table_versions(request)

    def describe_table_version(self, request: Any) -> upstream.DescribeTableVersionResponse:
        """Describe a version. Raises InvalidInputError after a refused commit."""
        self._stop_if_refused()
        return self._inner.describe_table_version(request)

    def create_table_version(self, request: Any) -> upstream.CreateTableVersionResponse:
        """Commit a version that is accepted. Raises InvalidInputError for all others.

        After a conflict Lance gets one refusal: else it would wait before each retry, ever longer, while other writers
        go on. A job that plans again at once catches up.
        """
        self._stop_if_refused()
        self.final_error = None
        fields = request.model_dump() if hasattr(request, "model_dump") else dict(request)
        version = int(fields["version"])
        if version != self.base + 1 and not self._admits(version - 1):
            self.refused = True
        self._stop_if_refused()
        try:
            return self._inner.create_table_version(request)
        except Exception as error:
            self.final_error = _final_refusal(error)
            if self.final_error is None:
                self.refused = isinstance(error, ConcurrentModificationError) or _is_conflict(error)
            raise

    def _stop_if_refused(self) -> None:
        """Raise after a refusal: Lance would retry the commit for half a minute behind ever newer versions."""
        if self.refused:
            raise InvalidInputError("This commit was refused.")

    def _admits(self, version: int) -> bool:
        """Call `verify` in a thread of Python's own: pylance must not be called from within its own calls."""
        if self.verify is None:
            return False
        verify = self.verify
        return start_thread("verify", lambda: verify(version)).result()


class CommitPlan(Protocol):
    """A commit to make on top of `dataset`."""

    dataset: lance.LanceDataset

    def operation(self) -> lance.LanceOperation.BaseOperation | None:
        """Plan what is not planned yet; return the commit's operation, None if there is nothing to commit."""

    def can_commit_after(self, newer: lance.LanceDataset) -> bool:
        """Return whether the commit may follow `newer`, too, as it is."""

    def rebase(self, newer: lance.LanceDataset) -> None:
        """Let the next operation be planned on a newer version."""


@dataclass(slots=True)
class JobTable:
    """A table (or its branch) as a job reads and changes it, by commits that apply to a known version.

    Its commits have the `lineage`; the catalog indexes that of the first one.
    """

    table: Table
    branch: str | None = None
    lineage: JobLineage | None = None
    _is_indexed: bool = field(init=False, default=False)
    _guard: NextVersionNamespace = field(init=False)
    _dataset: lance.LanceDataset = field(init=False)
    _location: TableLocation = field(init=False)
    _searched_versions: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._guard = NextVersionNamespace(self.table.client)
        self._dataset = self.table.dataset(branch=self.branch, client=self._guard)
        self._location = self.table.location()

    def latest(self) -> lance.LanceDataset:
        """Return the newest version, as a separate handle."""
        self._dataset.checkout_latest()  # type: ignore[no-untyped-call]  # pylance has no annotation here
        return self._dataset.checkout_version((self.branch, None) if self.branch else self._dataset.version)

    def commit(
        self,
        dataset: lance.LanceDataset,
        operation: lance.LanceOperation.BaseOperation,
        run: Run,
        step: str = "",
        *,
        verify: Callable[[lance.LanceDataset], bool] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Commit on top of `dataset`; return the new version.

        After a conflict Lance retries with a later version: `verify` receives the version before that one, and decides
        whether the commit may follow it; without `verify` nothing is committed. It runs between Lance's conflict check
        and the catalog's unique key, so no commit can come in between unseen.

        The run's id, `step` and `properties` become properties of the Lance transaction, by which `find_commit` finds
        it. If the response of a commit is lost, its version is looked up. Raises CommitConflictError, KEY_ERRORS (the
        rows break the table's primary key), InvalidInputError (they lack one of its columns) where nothing was
        committed, else what Lance raises.
        """
        transaction = self.transaction(dataset, operation, run, step, properties)
        version = self._commit(dataset, transaction, verify)
        self.index_lineage(version)
        return version

    def transaction(
        self,
        dataset: lance.LanceDataset,
        operation: lance.LanceOperation.BaseOperation,
        run: Run,
        step: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> Transaction:
        """Return the transaction of a commit on top of `dataset`, with what `commit` records in it."""
        made_from = {} if self.lineage is None else self.lineage.of_run(run.id).to_properties()
        transaction_properties = {**(properties or {}), **made_from, RUN_PROPERTY: run.id, _STEP_PROPERTY: step}
        return Transaction(dataset.version, operation, str(uuid.uuid4()), transaction_properties)

    def commit_plan(
        self, run: Run, since: int, plan: CommitPlan, *, properties: Mapping[str, str] | None = None
    ) -> int:
        """Commit a plan, once in the life of a run; return the version, where nothing is to commit that of the plan.

        After a conflict the plan is made again on the newest version. `since` is the table's version when the run
        began. Raises RunCanceledError, and as `commit` does, but for CommitConflictError.
        """
        while (version := self.find_commit(run, since)) is None:
            if (operation := plan.operation()) is None:
                return int(plan.dataset.version)
            run.check()  # before the commit alone: behind it, a caller would take the rows for uncommitted
            try:
                return self.commit(plan.dataset, operation, run, verify=plan.can_commit_after, properties=properties)
            except CommitConflictError:
                plan.rebase(self.latest())
        return version

    def index_lineage(self, version: int) -> None:
        """Have the catalog index the lineage of a commit of this job, unless it has for an earlier one."""
        if self.lineage is not None and not self._is_indexed:
            index_commit(self.table, version, self.branch)
            self._is_indexed = True

    def _commit(
        self,
        dataset: lance.LanceDataset,
        transaction: Transaction,
        verify: Callable[[lance.LanceDataset], bool] | None,
    ) -> int:
        """Commit a transaction; return its version. Raises as `commit` does."""
        self._guard.base, self._guard.refused, self._guard.final_error = int(dataset.version), False, None
        self._guard.verify = None if verify is None else lambda version: verify(self._open_version(version))
        try:
            return int(lance.LanceDataset.commit(dataset, transaction).version)
        except Exception as error:
            if self._guard.final_error is not None:
                raise self._guard.final_error from error
            if self._guard.refused:
                self._guard.refused = False
                raise CommitConflictError(f"{self.table} is past version {dataset.version}.") from error
            newest = self.latest()
            for version, entry in read_transactions(newest, dataset.version):
                if entry.uuid == transaction.uuid:
                    return version  # it was committed, only the response was lost
            if newest.version > dataset.version and _is_conflict(error):
                raise CommitConflictError(f"{self.table} is past version {dataset.version}.") from error
            raise

    def commit_change(self, dataset: lance.LanceDataset, change: Callable[[], object]) -> None:
        """Run a change of `dataset` that pylance commits by itself: on top of that version, or not at all.

        `dataset` comes from `latest`. Raises CommitConflictError (nothing was committed), else what Lance raises.
        """
        self._guard.base, self._guard.refused, self._guard.verify = int(dataset.version), False, None
        self._guard.final_error = None
        try:
            change()
        except Exception as error:
            if self._guard.final_error is not None:
                raise self._guard.final_error from error
            if not (self._guard.refused or _is_conflict(error)):
                raise
            self._guard.refused = False
            raise CommitConflictError(f"{self.table} is past version {dataset.version}.") from error

    def change_latest(self, plan: Callable[[lance.LanceDataset], Callable[[], object] | None]) -> bool:
        """Run the change that `plan` makes of the latest version, again after conflicts; False where it makes none.

        Raises ConcurrentModificationError where they do not stop, else what Lance raises.
        """
        for _ in range(MAX_TRIES):
            dataset = self.latest()
            if (change := plan(dataset)) is None:
                return False
            with suppress(CommitConflictError):
                self.commit_change(dataset, change)
                return True
        raise ConcurrentModificationError(f"{self.table} keeps changing: try again when it has fewer commits.")

    def _open_version(self, version: int) -> lance.LanceDataset:
        """Open a version straight from storage: the catalog need not be asked for a version that it has published."""
        return self._location.open(version, self.branch)

    def find_commit(self, run: Run, since: int, step: str = "") -> int | None:
        """Return the version after `since` that another driver of this run committed, if any.

        Repeated calls search only versions since the last call: next to a fast writer, all since `since` would grow
        without end.
        """
        newest = int(self.latest().version)
        version = find_run_version(
            self._open_version(newest), max(since, self._searched_versions.get(step, 0)), run.id, step
        )
        if version is None:
            self._searched_versions[step] = newest
        else:
            self.index_lineage(version)  # its driver may have ended before it did
        return version


def _final_refusal(error: Exception) -> LanceNamespaceError | None:
    """Return the error of a commit that the catalog has refused, and will refuse again; None for any other."""
    is_refusal = _REFUSAL in str(error)
    if isinstance(error, InvalidTableStateError):
        return DuplicateKeyError(str(error)) if is_refusal else error
    if isinstance(error, TableSchemaValidationError):
        return NullKeyError(str(error)) if is_refusal else error
    if isinstance(error, UnsupportedOperationError):  # by the operator's settings
        return error
    return error if is_refusal and isinstance(error, InvalidInputError) else None


def find_run_version(dataset: lance.LanceDataset, since: int, run_id: str, step: str | None = None) -> int | None:
    """Return the newest version after `since` that a run committed, with this step or (None) any; None without one."""
    for version, entry in read_transactions(dataset, since):
        properties: Mapping[str, str] = entry.transaction_properties or {}
        if properties.get(RUN_PROPERTY) == run_id and step in (None, properties.get(_STEP_PROPERTY, "")):
            return version
    return None


def _is_conflict(error: Exception) -> bool:
    """Return whether Lance reports a conflict, or too many lost retries: then the commit did not happen."""
    text = str(error).lower()
    return ("conflict" in text or "concurrent writers" in text) and "unknown" not in text


def check_column_list(schema: pa.Schema, names: Sequence[str], option: str) -> None:
    """Raise InvalidInputError for a column that the table lacks, a name that is given twice, or no name."""
    for name in names:
        if name not in schema.names:
            raise InvalidInputError(f"{option}: the table has no column '{name}'; it has {', '.join(schema.names)}.")
    if not names or len(set(names)) < len(names):
        raise InvalidInputError(f"{option}: name at least one column, and each one once.")
