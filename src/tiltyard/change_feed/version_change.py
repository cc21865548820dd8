"""What one version did to its table: its operation, and how many rows it inserted, updated and deleted.

Both come from the version's own transaction and from Lance's counts of rows, without reading a row. Where an operation
wrote rows and removed some, stable row ids tell which were updates; without them nothing does, and the rows are counted
as written and removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance import LanceOperation

from tiltyard.change_feed.groups import Change
from tiltyard.change_feed.planning import count_changed_rows
from tiltyard.change_feed.table_history import open_version, read_transaction
from tiltyard.model.views.definitions import ViewLineage

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance

MAX_MATCHED_ROWS = 1_000_000
"""Rows of a version whose ids are compared with those before."""
MAX_FRAGMENTS = 10_000
"""Fragments of a table whose lists are compared for that."""
MAX_DETAIL_LENGTH = 200


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Lance's count of the rows of a version, and of its fragments."""

    rows: int
    fragments: int


@dataclass(frozen=True, slots=True)
class VersionChange:
    """An operation, and its rows: each of them is None where that is not known.

    `inserted`, `updated` and `deleted` tell rows apart. `written` and `removed` are those of an operation of which
    nothing tells which written row is which removed one.
    """

    operation: str
    detail: str = ""
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    written: int | None = None
    removed: int | None = None

    def texts(self) -> dict[str, str]:
        """Return what is known, as the metadata of a version has it."""
        rows = {f"{name}_rows": getattr(self, name) for name in ROW_COUNTS}
        known = {name: str(count) for name, count in rows.items() if count is not None}
        return {"operation": self.operation} | ({"operation_detail": self.detail} if self.detail else {}) | known


ROW_COUNTS = ("inserted", "updated", "deleted", "written", "removed")
_KINDS = (Change.INSERT, Change.UPDATE_AFTER, Change.DELETE)
_KEEPING_ROWS: tuple[tuple[type[LanceOperation.BaseOperation], str], ...] = (
    (LanceOperation.Rewrite, "compaction"),
    (LanceOperation.CreateIndex, "index"),
    (LanceOperation.UpdateConfig, "configuration"),
)


class ChangedVersion:
    """A version of a table with the one before it; `before` and `counts_before` are None where that is gone.

    `dataset` is of any version of the branch. Nothing is opened before it is needed.
    """

    def __init__(
        self,
        dataset: lance.LanceDataset,
        branch: str | None,
        number: int,
        counts: RowCounts,
        counts_before: RowCounts | None,
    ) -> None:
        self._dataset, self._branch, self._number = dataset, branch, number
        self._counts, self._counts_before = counts, counts_before

    def describe(self) -> VersionChange:
        """Return what the version did. Raises what Lance raises for a file that it cannot read."""
        transaction = read_transaction(self._dataset, self._number)
        if transaction is None:
            return VersionChange("unknown")
        change = self._describe(transaction.operation)
        is_refresh = ViewLineage.from_properties(transaction.transaction_properties) is not None
        return replace(change, operation="refresh") if is_refresh else change

    def _describe(self, operation: LanceOperation.BaseOperation) -> VersionChange:
        if self._number == 1 and not isinstance(operation, LanceOperation.Restore):
            return VersionChange("create", inserted=self._counts.rows, updated=0, deleted=0)
        match operation:
            case LanceOperation.Append():
                return VersionChange("append", inserted=_count_rows(operation.fragments), updated=0, deleted=0)
            case LanceOperation.Overwrite():
                return VersionChange("overwrite", inserted=self._counts.rows, updated=0, deleted=self._rows_before())
            case LanceOperation.Delete():
                return VersionChange("delete", inserted=0, updated=0, deleted=self._count_deleted())
            case LanceOperation.Update():
                return self._update(operation)
            case LanceOperation.Merge() | LanceOperation.Project():
                return self._columns(keeps_values=True)
            case LanceOperation.DataReplacement() | LanceOperation.DataOverlay():
                return self._columns(keeps_values=False)
            case LanceOperation.Restore():
                return VersionChange("restore", f"version {operation.version}")
        return self._keep_rows(operation)

    def _keep_rows(self, operation: LanceOperation.BaseOperation) -> VersionChange:
        """Describe an operation that leaves every row as it is, wherever it lies.

        One that pylance does not know does so where the number of rows stays.
        """
        name = next((name for kind, name in _KEEPING_ROWS if isinstance(operation, kind)), "internal")
        if self._rows_before() in (None, self._counts.rows):
            return VersionChange(name, _index_names(operation), inserted=0, updated=0, deleted=0)
        return VersionChange(name)

    def _rows_before(self) -> int | None:
        return None if self._counts_before is None else self._counts_before.rows

    def _count_deleted(self) -> int | None:
        return None if self._counts_before is None else self._counts_before.rows - self._counts.rows

    def _update(self, operation: LanceOperation.Update) -> VersionChange:
        """Describe an update or a merge: rows were written anew, or columns of rows in their place.

        Lance records both as updates. An update leaves as many rows as there were, and none that is new: whatever has
        inserted rows, or removed them, is a merge. A merge that only updated rows is an update by all that is recorded.
        """
        written = _count_rows(operation.new_fragments)
        if self._counts_before is None:
            return VersionChange("update", written=written)
        removed = self._counts_before.rows - self._counts.rows + written
        if operation.update_mode == "rewrite_columns" or operation.fields_modified:
            rewritten = _count_rows(operation.updated_fragments)
            name = _update_or_merge(written != removed)
            return VersionChange(name, written=written + rewritten, removed=removed + rewritten)
        if not removed or not written:
            return VersionChange(_update_or_merge(written != removed), inserted=written, updated=0, deleted=removed)
        if (counts := self._match_rows(written)) is not None:
            inserted, updated, deleted = (counts[kind] for kind in _KINDS)
            name = _update_or_merge(bool(inserted or deleted))
            return VersionChange(name, inserted=inserted, updated=updated, deleted=deleted)
        return VersionChange(_update_or_merge(written != removed), written=written, removed=removed)

    def _match_rows(self, written: int) -> Mapping[Change, int] | None:
        """Return how many rows were changed and how, by stable row ids; None without these, or for too many rows."""
        assert self._counts_before is not None
        is_large = max(self._counts.fragments, self._counts_before.fragments) > MAX_FRAGMENTS
        if is_large or written > MAX_MATCHED_ROWS or not self._dataset.has_stable_row_ids:
            return None
        before, after = self._open(self._number - 1), self._open(self._number)
        if before is None or after is None or not before.has_stable_row_ids:
            return None
        return count_changed_rows(before, after, self._branch)

    def _columns(self, *, keeps_values: bool) -> VersionChange:
        """Describe an operation on columns: names that were added, dropped, renamed or have another type.

        With `keeps_values` other columns than those hold what they held.
        """
        before, after = self._open(self._number - 1), self._open(self._number)
        if before is None or after is None:
            return VersionChange("columns")
        name, detail = _compare_columns(before, after)
        if keeps_values and name and self._rows_before() == self._counts.rows:
            return VersionChange(name, detail, inserted=0, updated=0, deleted=0)
        rows = self._counts.rows
        return VersionChange(name or "update columns", detail, written=rows, removed=self._rows_before())

    def _open(self, number: int) -> lance.LanceDataset | None:
        return open_version(self._dataset, (self._branch, number) if self._branch else number) if number else None


def _update_or_merge(is_merge: bool) -> str:
    return "merge" if is_merge else "update"


def _count_rows(fragments: object) -> int:
    """Return how many rows fragments of a transaction have."""
    assert isinstance(fragments, list)
    return sum(fragment.num_rows for fragment in fragments)


def _index_names(operation: LanceOperation.BaseOperation) -> str:
    """Return the names of the indexes that an operation built or removed; "" for another operation."""
    if not isinstance(operation, LanceOperation.CreateIndex):
        return ""
    built = operation.new_indices or operation.removed_indices
    verb = "" if operation.new_indices else "dropped "
    return _shorten(verb + ", ".join(sorted({index.name for index in built})))


def _compare_columns(before: lance.LanceDataset, after: lance.LanceDataset) -> tuple[str, str]:
    """Return the name of an operation on columns, and what it did to which; ("", "") where all are as before."""
    old, new = ({field.id(): field for field in version.lance_schema.fields()} for version in (before, after))
    names_before, names_after = ({field.name() for field in fields.values()} for fields in (old, new))
    added = [field.name() for field in new.values() if field.name() not in names_before]
    dropped = [field.name() for field in old.values() if field.name() not in names_after]
    renamed = [
        f"{old[number].name()} to {field.name()}"
        for number, field in new.items()
        if number in old and old[number].name() != field.name()
    ]
    altered = [
        f"{name} is {after.schema.field(name).type}"
        for name in after.schema.names
        if name in names_before and before.schema.field(name) != after.schema.field(name)
    ]
    if renamed or altered or (added and dropped):
        return "alter columns", _shorten(", ".join([*renamed, *altered] or [*dropped, *added]))
    if added:
        return "add columns", _shorten(", ".join(added))
    return ("drop columns", _shorten(", ".join(dropped))) if dropped else ("", "")


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_DETAIL_LENGTH else f"{text[: MAX_DETAIL_LENGTH - 1]}…"
