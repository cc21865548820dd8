"""Commits that apply to exactly the version they were planned on, or not at all.

Lance puts a commit that somebody overtook behind the newer versions if files do not collide. That is right for rows
that stand alone and wrong for keys: two upserts that both found a key missing would both insert it. So a job commits
through a namespace that accepts one version number only, the next one; the catalog's unique key decides who gets it.
Who was overtaken looks at what came in between, and commits on top of it, or plans that part again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lance
import lance_namespace as upstream
import pyarrow as pa
from lance.dataset import Transaction
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, UnsupportedOperationError

from tiltyard.model.table_history import read_transactions

if TYPE_CHECKING:
    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import TableLocation

RUN_PROPERTY = "tiltyard.run"
"""The property of a Lance transaction that names the run it belongs to."""

_STEP_PROPERTY = "tiltyard.step"


class CommitConflictError(Exception):
    """Somebody else committed first. Nothing of this commit is visible: look at the newest version."""


class NextVersionNamespace(upstream.LanceNamespace):
    """The namespace of one table's commits: it lets pass the version after `base`, and others if `verify` says so."""

    def __init__(self, inner: upstream.LanceNamespace) -> None:
        self._inner = inner
        self.base = 0
        self.verify: Callable[[int], bool] | None = None
        self.refused = False

    def namespace_id(self) -> str:
        """What tells this namespace from others: pylance shares what it knows among those of one id."""
        return f"{self._inner.namespace_id()} strict {id(self)}"

    def describe_table(self, request: Any) -> upstream.DescribeTableResponse:
        """Where the table lies. Raises UnsupportedOperationError if its versions are not the catalog's to give."""
        found = self._inner.describe_table(request)
        if not found.managed_versioning:
            raise UnsupportedOperationError(
                "This job needs a table whose versions the catalog gives out: "
                "create it with the property tiltyard.managed_versioning=true."
            )
        return found

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """As it is. Raises InvalidInputError after a refusal."""
        self._stop_if_refused()
        return self._inner.list_table_versions(request)

    def describe_table_version(self, request: Any) -> upstream.DescribeTableVersionResponse:
        """As it is. Raises InvalidInputError after a refusal."""
        self._stop_if_refused()
        return self._inner.describe_table_version(request)

    def create_table_version(self, request: Any) -> upstream.CreateTableVersionResponse:
        """Commit a version that may pass. Raises InvalidInputError for all others.

        Where another was quicker, Lance is told so, once: it would wait before each further try, ever longer, while
        others go on. Who plans anew at once catches up.
        """
        self._stop_if_refused()
        given = request.model_dump() if hasattr(request, "model_dump") else dict(request)
        version = int(given["version"])
        if version != self.base + 1 and not self._admits(version - 1):
            self.refused = True
        self._stop_if_refused()
        try:
            return self._inner.create_table_version(request)
        except Exception as error:
            self.refused = isinstance(error, ConcurrentModificationError) or _is_conflict(error)
            raise

    def _stop_if_refused(self) -> None:
        """Once refused, a commit has to end: Lance would try it for half a minute behind ever newer versions."""
        if self.refused:
            raise InvalidInputError("This commit was refused.")

    def _admits(self, version: int) -> bool:
        """Ask in a thread of Python's own: pylance must not be called from within its own calls."""
        if self.verify is None:
            return False
        with ThreadPoolExecutor(1, thread_name_prefix="verify") as pool:
            return pool.submit(self.verify, version).result()


@dataclass(slots=True)
class JobTable:
    """A table (or its branch) as a job sees and changes it."""

    table: Table
    branch: str | None = None
    _guard: NextVersionNamespace = field(init=False)
    _dataset: lance.LanceDataset = field(init=False)
    _place: TableLocation = field(init=False)
    _looked: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._guard = NextVersionNamespace(self.table.client)
        self._dataset = self.table.dataset(branch=self.branch, client=self._guard)
        self._place = self.table.location()

    def latest(self) -> lance.LanceDataset:
        """The newest version, in a handle of its own."""
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
        told: Mapping[str, str] | None = None,
    ) -> int:
        """Commit on top of `dataset`; the new version.

        Where others were quicker, Lance asks for a later version, and `verify` is given the version before that one:
        if it says no, or is not there, nothing is committed. It runs between Lance's look for collisions and the
        catalog's unique key, so nobody can come in between unseen.

        The run's id and `step` become properties of Lance's transaction, by which `done` finds it, beside those of
        `told`. A commit whose answer got lost is looked for. Raises CommitConflictError (nothing happened), else what Lance
        raises.
        """
        properties = {**(told or {}), RUN_PROPERTY: run.id, _STEP_PROPERTY: step}
        transaction = Transaction(dataset.version, operation, str(uuid.uuid4()), properties)
        self._guard.base, self._guard.refused = int(dataset.version), False
        self._guard.verify = None if verify is None else lambda version: verify(self._at(version))
        try:
            return int(lance.LanceDataset.commit(dataset, transaction).version)
        except Exception as error:
            if self._guard.refused:
                self._guard.refused = False
                raise CommitConflictError(f"{self.table} is past version {dataset.version}.") from error
            newest = self.latest()
            for version, entry in read_transactions(newest, dataset.version):
                if entry.uuid == transaction.uuid:
                    return version  # it came to be, only the answer did not
            if newest.version > dataset.version and _is_conflict(error):
                raise CommitConflictError(f"{self.table} is past version {dataset.version}.") from error
            raise

    def change(self, dataset: lance.LanceDataset, change: Callable[[], object]) -> None:
        """Run a change of `dataset` that pylance commits by itself: on top of it, or not at all.

        `dataset` is what `latest` gave. Raises CommitConflictError (nothing happened), else what Lance raises.
        """
        self._guard.base, self._guard.refused, self._guard.verify = int(dataset.version), False, None
        try:
            change()
        except Exception as error:
            if not (self._guard.refused or _is_conflict(error)):
                raise
            self._guard.refused = False
            raise CommitConflictError(f"{self.table} is past version {dataset.version}.") from error

    def _at(self, version: int) -> lance.LanceDataset:
        """A version to read, straight from storage: the catalog need not be asked for what it has given out."""
        return self._place.open(version, self.branch)

    def done(self, run: Run, since: int, step: str = "") -> int | None:
        """The version after `since` that another driver of this run committed, if one did.

        Asked again it looks at what came meanwhile: beside a quick writer, all since then would be ever more.
        """
        newest = int(self.latest().version)
        found = find_run_version(self._at(newest), max(since, self._looked.get(step, 0)), run.id, step)
        if found is None:
            self._looked[step] = newest
        return found


def find_run_version(dataset: lance.LanceDataset, since: int, run_id: str, step: str | None = None) -> int | None:
    """The newest version after `since` that a run committed, with this step or (None) any; None if there is none."""
    for version, entry in read_transactions(dataset, since):
        told: Mapping[str, str] = entry.transaction_properties or {}
        if told.get(RUN_PROPERTY) == run_id and step in (None, told.get(_STEP_PROPERTY, "")):
            return version
    return None


def _is_conflict(error: Exception) -> bool:
    """Whether Lance says that the commit collides with another one, or was late too often, so did not happen."""
    text = str(error).lower()
    return ("conflict" in text or "concurrent writers" in text) and "unknown" not in text


def check_column_list(schema: pa.Schema, names: Sequence[str], what: str) -> None:
    """Raise InvalidInputError for a column that the table lacks, or a name that is there twice, or for no name."""
    for name in names:
        if name not in schema.names:
            raise InvalidInputError(f"{what}: the table has no column '{name}'; it has {', '.join(schema.names)}.")
    if not names or len(set(names)) < len(names):
        raise InvalidInputError(f"{what}: name at least one column, and each one once.")
