"""Compare a branch with main: rows, columns and indexes, and what keeps its new columns from being promoted to main.

Rows are compared by the fragments that hold them, without reading a value: data files never change, so rows of the same
fragment with the same files are the same rows.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from lance_namespace.errors import TableBranchNotFoundError, TableVersionNotFoundError

from tiltyard.access.needs import on_table
from tiltyard.change_feed.table_history import field_ids_by_column, files_by_field
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, FunctionDeclaration, read_declaration
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.versions.branches import branches_of
from tiltyard.upkeep.indexing import user_indexes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata, LanceFragment

    from tiltyard.context import Context


@operation(needs=on_table(Privilege.READ), changes=False)
def diff_table_branch(ctx: Context, request: models.DiffTableBranchRequest) -> models.DiffTableBranchResponse:
    """Compare the latest version of a branch with that of main. Changes nothing.

    Raises TableBranchNotFoundError and what opening a table raises.
    """
    comparison = BranchComparison.open(ctx, request.id, request.from_branch)
    main = open_for_reading(ctx, request.id).dataset
    with lance_errors(main):
        diff = comparison.diff(main)
    return models.DiffTableBranchResponse(**{name: getattr(diff, name) for name in diff.__struct_fields__})


@dataclass(frozen=True, slots=True)
class BranchComparison:
    """A branch as it is compared with main: its latest version, and the version that it began with.

    `parent` is None where that version was cleaned up, or is another branch's.
    """

    name: str
    parent_branch: Branch
    parent_version: int
    branch: lance.LanceDataset
    parent: lance.LanceDataset | None

    @classmethod
    def open(cls, ctx: Context, names: Sequence[str] | None, name: str) -> BranchComparison:
        """Open a branch and its parent's version. Raises TableBranchNotFoundError and what opening a table raises."""
        contents = branches_of(ctx, open_for_reading(ctx, names)).get(name)
        if contents is None:
            raise TableBranchNotFoundError(f"No branch '{name}' on this table.")
        parent_branch, version = Branch.parse(contents["parent_branch"]), int(contents["parent_version"])
        parent = None
        if parent_branch.is_main:
            with suppress(TableVersionNotFoundError):
                parent = open_for_reading(ctx, names, branch=MAIN, version=version).dataset
        branch = open_for_reading(ctx, names, branch=Branch(name)).dataset
        return cls(name, parent_branch, version, branch, parent)

    def promotable(self, main: lance.LanceDataset) -> list[str]:
        """Return the columns that were added on the branch and that main lacks, in their order."""
        existing = {*main.schema.names, *(self.parent.schema.names if self.parent else ())}
        return [name for name in self.branch.schema.names if name not in existing]

    def diff(self, main: lance.LanceDataset) -> models.BranchDiff:
        """Compare the branch with a version of main. Raises what Lance raises."""
        columns = ColumnDiff.of(self, main)
        rows = compare_rows(main, self.branch, columns.shared)
        rows_main, rows_branch = main.count_rows(), self.branch.count_rows()
        indexes_main, indexes_branch = _indexes(main), _indexes(self.branch)
        return models.BranchDiff(
            fromBranch=self.name,
            parentVersion=self.parent_version,
            mainVersion=main.version,
            branchVersion=self.branch.version,
            baseMoved=main.version != self.parent_version,
            rowCountMain=rows_main,
            rowCountBranch=rows_branch,
            rowSummary=models.BranchRowSummary(
                unchanged=rows.unchanged,
                newOnBase=rows.only_first,
                newOnBranch=rows.only_second,
                staleRecompute=rows.only_first + rows.changed if columns.added else 0,
                inputsChanged=rows.changed,
                deltaAvailable=self.parent is not None,
            ),
            addedColumns=[_summary(self.branch, name) for name in columns.added],
            removedColumns=[_summary(main, name) for name in columns.removed],
            changedColumns=[
                models.BranchColumnChange(name=name, main=_summary(main, name), branch=_summary(self.branch, name))
                for name in columns.changed
            ],
            addedIndexes=[index for name, index in indexes_branch.items() if name not in indexes_main],
            removedIndexes=[index for name, index in indexes_main.items() if name not in indexes_branch],
            errors=list(self._errors(main, columns, rows, same_count=rows_main == rows_branch)),
        )

    def _errors(
        self, main: lance.LanceDataset, columns: ColumnDiff, rows: RowComparison, *, same_count: bool
    ) -> Iterable[models.BranchDiffError]:
        """Iterate over what keeps the columns of the branch from being promoted to main."""
        if not self.parent_branch.is_main:
            yield _error(
                "parentNotMain", f"The branch was created from '{self.parent_branch.name}': create one from main."
            )
        if columns.dropped_on_main:
            yield _error("baseMoved", f"Main has dropped {_quoted(columns.dropped_on_main)} since the branch began.")
        elif not rows.is_same and (self.parent is None or self._has_changed(main, columns)):
            yield _error("baseMoved", f"The rows of main have changed since version {self.parent_version}.")
        if not rows.is_same and (self.parent is None or self._has_changed(self.branch, columns)):
            yield _error("rowsChanged", "The branch has other rows than main, or other values: only columns are added.")
        if not same_count:
            yield _error("rowCountMismatch", "The branch and main have different numbers of rows.")
        if columns.removed:
            yield _error("columnRemoved", f"The branch lacks {_quoted(columns.removed)}, which main has.")
        if columns.changed:
            yield _error("columnChanged", f"The definition of {_quoted(columns.changed)} differs.")
        for name, text in self._input_changes(main, columns, rows):
            yield _error("inputColumnDependency", f"'{name}' is computed from {text}.")
        if not columns.promotable:
            yield self._nothing_to_promote(columns)

    def _has_changed(self, dataset: lance.LanceDataset, columns: ColumnDiff) -> bool:
        """Return whether a version has other rows, or other values of shared columns, than the parent's version."""
        return self.parent is None or not compare_rows(self.parent, dataset, columns.shared).is_same

    def _input_changes(
        self, main: lance.LanceDataset, columns: ColumnDiff, rows: RowComparison
    ) -> Iterable[tuple[str, str]]:
        """Iterate over columns to be promoted whose inputs main lacks, or has with other values, and which inputs."""
        available = {*main.schema.names, *columns.promotable}
        changed = {name for name, ids in columns.shared.items() if not rows.changed_fields.isdisjoint(ids)}
        for name in columns.promotable:
            inputs = _inputs(self.branch, name)
            if missing := [path for path in inputs if path not in available]:
                yield name, f"{_quoted(missing)}, which main does not have"
            if stale := [path for path in inputs if path in changed]:
                yield name, f"{_quoted(stale)}, which has other values on main"

    def _nothing_to_promote(self, columns: ColumnDiff) -> models.BranchDiffError:
        if self.branch.version == self.parent_version:
            return _error("nothingToApply", "Nothing was changed on the branch.")
        if columns.on_both:
            return _error(
                "nothingToApply",
                f"Main has {_quoted(columns.on_both)} already; whether its values are the same was not compared.",
            )
        return _error("noColumnChanges", "No column was added on the branch.")


@dataclass(frozen=True, slots=True)
class ColumnDiff:
    """The columns of a branch against those of main, by name, in their order.

    - `added` and `removed` on the branch; `changed`: another type, nullability or field, such as one that was dropped
      and added again.
    - `promotable`: those added that main has never had. `dropped_on_main`: those that main has dropped since.
    - `on_both`: those that both have and the parent had not.
    - `shared`: the field ids, inner ones too, of each column that both have unchanged from the parent.
    """

    added: list[str]
    removed: list[str]
    changed: list[str]
    promotable: list[str]
    dropped_on_main: list[str]
    on_both: list[str]
    shared: Mapping[str, frozenset[int]]

    @classmethod
    def of(cls, comparison: BranchComparison, main: lance.LanceDataset) -> ColumnDiff:
        """Compare the columns of a branch with those of a version of main."""
        branch_ids, main_ids = field_ids_by_column(comparison.branch), field_ids_by_column(main)
        before = set(main_ids) if comparison.parent is None else set(comparison.parent.schema.names)
        both = [name for name in main_ids if name in branch_ids]
        on_both = [name for name in both if name not in before]
        changed = [
            name
            for name in both
            if not _is_same_definition(main.schema.field(name), comparison.branch.schema.field(name))
            or (name not in on_both and main_ids[name] != branch_ids[name])
        ]
        promotable = comparison.promotable(main)
        added = [name for name in branch_ids if name not in main_ids]
        return cls(
            added=added,
            removed=[name for name in main_ids if name not in branch_ids and name in before],
            changed=changed,
            promotable=promotable,
            dropped_on_main=[name for name in added if name not in promotable],
            on_both=[name for name in on_both if name not in changed],
            shared={name: main_ids[name] for name in both if name not in on_both and name not in changed},
        )


@dataclass(slots=True)
class RowComparison:
    """How many rows two versions share with the same values (`unchanged`) or with others, and how many only one has.

    `changed_fields` are the ids of the fields whose values differ.
    """

    unchanged: int = 0
    changed: int = 0
    only_first: int = 0
    only_second: int = 0
    changed_fields: set[int] = field(default_factory=set)

    @property
    def is_same(self) -> bool:
        """Whether both versions have the same rows, with the same values."""
        return not (self.changed or self.only_first or self.only_second)


def compare_rows(
    first: lance.LanceDataset, second: lance.LanceDataset, columns: Mapping[str, frozenset[int]]
) -> RowComparison:
    """Compare the rows of two versions of a table, and their values in some columns, by their fragments.

    `columns` has the field ids of each. Rows that were deleted on one side are counted by their addresses: 8 bytes for
    each row of one fragment are in memory.
    """
    fields = frozenset().union(*columns.values()) if columns else frozenset()
    result = RowComparison()
    others = {fragment.fragment_id: fragment for fragment in second.get_fragments()}
    for fragment in first.get_fragments():
        other = others.get(fragment.fragment_id)
        if other is None or not _has_same_origin(fragment.metadata, other.metadata, fields):
            result.only_first += fragment.count_rows()
            continue
        del others[fragment.fragment_id]
        common = _count_common(fragment, other)
        result.only_first += fragment.count_rows() - common
        result.only_second += other.count_rows() - common
        if changed := _changed_fields(fragment.metadata, other.metadata, fields):
            result.changed += common
            result.changed_fields |= changed
        else:
            result.unchanged += common
    result.only_second += sum(fragment.count_rows() for fragment in others.values())
    return result


def _has_same_origin(first: FragmentMetadata, second: FragmentMetadata, fields: frozenset[int]) -> bool:
    """Whether two fragments of one id hold the same rows: not where each side has added one since the branch began."""
    if first.physical_rows != second.physical_rows:
        return False
    files = files_by_field(first, fields), files_by_field(second, fields)
    return not files[0] or not set(files[0].values()).isdisjoint(files[1].values())


def _count_common(first: LanceFragment, second: LanceFragment) -> int:
    """Count the rows that neither of two versions of a fragment has deleted."""
    if _deletions(first.metadata) == _deletions(second.metadata):
        return int(first.count_rows())
    return len(np.intersect1d(_addresses(first), _addresses(second), assume_unique=True))


def _addresses(fragment: LanceFragment) -> Any:
    table: pa.Table = fragment.scanner(columns=[], with_row_address=True).to_table()
    return table["_rowaddr"].to_numpy()


def _deletions(fragment: FragmentMetadata) -> Any:
    """Return what identifies a fragment's deletions, wherever their file lies."""
    file = fragment.to_json().get("deletion_file")
    return None if file is None else (file["id"], file["read_version"])


def _changed_fields(first: FragmentMetadata, second: FragmentMetadata, fields: frozenset[int]) -> set[int]:
    """Return the fields whose values two versions of a fragment have in different files."""
    files = files_by_field(first, fields), files_by_field(second, fields)
    if first.overlays != second.overlays:
        return set(fields)
    return {number for number in fields if files[0].get(number) != files[1].get(number)}


def _is_same_definition(first: pa.Field, second: pa.Field) -> bool:
    return bool(first.type == second.type and first.nullable == second.nullable)


def _inputs(dataset: lance.LanceDataset, name: str) -> list[str]:
    """Return the columns that a computed column reads; none for one that is not declared as computed."""
    declaration = read_declaration(dataset.schema.field(name).metadata)
    if declaration is None:
        return []
    if isinstance(declaration, ExpressionDeclaration):
        text = declaration.expression
        return [other for other in dataset.schema.names if re.search(rf"\b{re.escape(other)}\b", text)]
    paths = declaration.columns if isinstance(declaration, FunctionDeclaration) else declaration.inputs
    return [path.split(".")[0] for path in paths]


def _indexes(dataset: lance.LanceDataset) -> dict[str, models.BranchIndex]:
    return {
        index.name: models.BranchIndex(
            indexName=index.name, columns=list(index.field_names), indexType=index.index_type, status="done"
        )
        for index in user_indexes(dataset)
    }


def _summary(dataset: lance.LanceDataset, name: str) -> models.BranchColumn:
    column = dataset.schema.field(name)
    return models.BranchColumn(name=name, dataType=str(column.type), nullable=column.nullable)


def _error(code: str, message: str) -> models.BranchDiffError:
    return models.BranchDiffError(code=code, message=message)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
