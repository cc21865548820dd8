"""Take rows out of a branch's latest version: delete them, rewrite the files that had any, build its indexes again.

Each step looks at what is there and does the rest of it, so that it can be repeated.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.change_feed.deletions import write_deletions
from tiltyard.model.columns.index_parameters import index_options
from tiltyard.model.columns.index_types import IndexType, spec_index_type
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.erasure.plan import add_new, branch_key
from tiltyard.tables.indexes.build_job import index_new_rows, train_index
from tiltyard.tables.indexes.builder import IndexSpec
from tiltyard.tables.indexes.indexes import index_details
from tiltyard.tables.opening import finishing_direct_commits, open_to_commit
from tiltyard.tables.rows.conflict_retry import ConflictRetry
from tiltyard.upkeep.compaction import compact, plan_rewrite_of_deleted
from tiltyard.upkeep.indexing import user_indexes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lance.lance.indices import IndexDescription

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.jobs import Job
    from tiltyard.store import TableRecord
    from tiltyard.tables.erasure.plan import Plan, TableFigures

Result = TypeVar("Result")

MAX_VALUES = 10_000
"""Different values of erased rows that are searched for afterwards."""
MAX_DELETED_ROWS = 1 << 20
"""Rows that one commit of an erasure deletes: their addresses are in memory."""
_NEUTRAL = "false"
"""What Lance's transaction of a delete has for its condition: the condition itself may have a value of the rows."""


def check_value_columns(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Return the columns whose values can be searched for: texts and whole numbers. Raises InvalidInputError."""
    columns = list(dict.fromkeys(names))
    for name in columns:
        if name not in schema.names:
            raise InvalidInputError(f"There is no column '{name}', whose values could be searched for.")
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InvalidInputError(f"'{name}' is {kind}: values of texts and whole numbers can be searched for.")
    return columns


def read_values(
    dataset: lance.LanceDataset,
    branch: Branch,
    versions: Sequence[int],
    predicate: str,
    names: Sequence[str],
    found: dict[str | int, None],
) -> None:
    """Add the values of columns in the rows that match, of each of these versions, deleted rows included.

    An earlier version that lacks a column, or is not whole, is left out. Raises InvalidInputError for too many values,
    and what reading the last version raises.
    """
    for version in versions:
        try:
            with lance_errors(dataset):
                checked_out = dataset.checkout_version((branch.lance_name, version))
                columns = [name for name in names if name in checked_out.schema.names]
                rows = checked_out.scanner(
                    columns=columns,
                    filter=predicate,
                    with_row_id=True,
                    include_deleted_rows=True,
                    use_scalar_index=False,
                    late_materialization=False,  # with it, pylance 14 leaves no deleted rows in
                ).to_batches()
                for batch in rows:
                    for name in columns:
                        found.update(dict.fromkeys(value for value in batch[name].to_pylist() if value is not None))
                    if len(found) > MAX_VALUES:
                        break
        except LanceNamespaceError:
            if version == versions[-1]:
                raise
            continue
        if len(found) > MAX_VALUES:
            raise InvalidInputError(
                f"The rows have more than {MAX_VALUES} different values in {', '.join(names)}: erase fewer "
                "rows at a time. Nothing was changed."
            )


def commit(ctx: Context, table: TableRecord, branch: Branch, change: Callable[[lance.LanceDataset], Result]) -> Result:
    """Apply `change`, which commits once at most, to the latest version of a branch; again after a conflict.

    Raises what opening the table and `change` raise, ConcurrentModificationError.
    """
    retry = ConflictRetry(ctx.settings.conflict_timeout)
    while True:
        try:
            with finishing_direct_commits(ctx, table, branch):
                dataset = open_to_commit(ctx, table, branch)
                with lance_errors(dataset):
                    return change(dataset)
        except Exception as error:  # noqa: BLE001 - raised again unless it is a conflict
            retry.wait_or_raise(error)


def erase_from_branch(
    ctx: Context, running: Job, table: TableRecord, branch: Branch, predicate: str, plan: Plan, figures: TableFigures
) -> int:
    """Take the rows out of a branch's files and indexes; return the first version of which nothing has them.

    Raises what the commits and builds raise, JobCanceledError.
    """
    key = branch_key(table, branch)
    running.progress(stage="rows")
    has_changed = False
    while commit(ctx, table, branch, lambda dataset: _delete(dataset, predicate)):
        has_changed = True
    running.progress(stage="files")
    _drop_inherited_indexes(ctx, running, table, branch, plan)
    while commit(ctx, table, branch, _rewrite):
        has_changed = True
        running.progress(stage="files")
    if has_changed or key not in plan.rewritten:
        plan.rewritten[key] = int(open_to_commit(ctx, table, branch).version)
        ctx.store.save_erasure_plan(running.id, plan.to_json())
    rebuild_indexes(ctx, running, table, branch, plan, figures)
    return int(open_to_commit(ctx, table, branch).version)


def _delete(dataset: lance.LanceDataset, predicate: str) -> int:
    """Delete up to MAX_DELETED_ROWS rows that match; return how many."""
    scanner = dataset.scanner(columns=[], filter=predicate, with_row_address=True, limit=MAX_DELETED_ROWS)
    addresses = scanner.to_table().column("_rowaddr").to_numpy()
    if not len(addresses):
        return 0
    updated, removed = write_deletions(dataset, addresses)
    operation = lance.LanceOperation.Delete(updated, removed, _NEUTRAL)
    lance.LanceDataset.commit(dataset, operation, read_version=int(dataset.version))
    return len(addresses)


def _rewrite(dataset: lance.LanceDataset) -> int:
    """Write fragments that have deleted rows again without these; return how many fragments were replaced."""
    planned = plan_rewrite_of_deleted(dataset)
    return 0 if planned is None else compact(dataset, planned)[0]


def _drop_inherited_indexes(ctx: Context, running: Job, table: TableRecord, branch: Branch, plan: Plan) -> None:
    """Drop the indexes of a clone or a branch whose files are to be rewritten; the plan has how they are built again.

    pylance 14 writes what it makes of an inherited index into the clone's folder, and then looks for it where the index
    was inherited from: nothing could be committed.
    """
    dataset = open_to_commit(ctx, table, branch)
    if not dataset.base_paths() or plan_rewrite_of_deleted(dataset) is None:
        return
    key = branch_key(table, branch)
    with lance_errors(dataset):
        specs = [_spec_of(table, branch, dataset, index) for index in user_indexes(dataset)]
    kept = {spec["name"]: spec for spec in plan.unbuilt.get(key, ())}
    plan.unbuilt[key] = [*(kept | {spec.name: asdict(spec) for spec in specs}).values()]
    ctx.store.save_erasure_plan(running.id, plan.to_json())
    for spec in specs:
        commit(ctx, table, branch, partial(_drop_index, name=spec.name))


def _drop_index(dataset: lance.LanceDataset, name: str) -> None:
    if any(index.name == name for index in user_indexes(dataset)):
        dataset.drop_index(name)


def rebuild_indexes(
    ctx: Context, running: Job, table: TableRecord, branch: Branch, plan: Plan, figures: TableFigures
) -> None:
    """Build each index of a branch again: one that follows a compaction may still have values of rows that are gone."""
    since = plan.rewritten[branch_key(table, branch)]
    unbuilt = {spec["name"]: IndexSpec(**spec) for spec in plan.unbuilt.get(branch_key(table, branch), ())}
    names = [index.name for index in user_indexes(open_to_commit(ctx, table, branch))]
    for name in dict.fromkeys([*names, *unbuilt]):
        key = branch_key(table, branch, name)
        if plan.rebuilt.get(key) == since:
            continue
        running.progress(stage=f"index {name}")
        dataset = open_to_commit(ctx, table, branch)
        index = next((each for each in user_indexes(dataset) if each.name == name), None)
        if index is None and name not in unbuilt:  # it was dropped meanwhile
            continue
        spec = unbuilt[name] if index is None else _spec_of(table, branch, dataset, index)
        with finishing_direct_commits(ctx, table, branch):
            train_index(ctx, spec, replace(running, table_id=table.id))
            rebuilt = open_to_commit(ctx, table, branch)
            with lance_errors(rebuilt):
                index_new_rows(rebuilt, name)
        plan.rebuilt[key] = since
        add_new(figures.indexes_rebuilt, [name if branch.is_main else f"{branch.name}: {name}"])
        ctx.store.save_erasure_plan(running.id, plan.to_json())
    if plan.unbuilt.pop(branch_key(table, branch), None) is not None:
        ctx.store.save_erasure_plan(running.id, plan.to_json())


def _spec_of(table: TableRecord, branch: Branch, dataset: lance.LanceDataset, index: IndexDescription) -> IndexSpec:
    """Return how an index is built again as it is, with as many partitions as it has."""
    kind = IndexType(spec_index_type(index.index_type))
    options = index_options(index_details(dataset, index))
    if kind.is_vector:
        parts: Iterable[Mapping[str, object]] = dataset.stats.index_stats(index.name).get("indices") or ()
        counts = [count for part in parts if isinstance(count := part.get("num_partitions"), int)]
        if counts:
            options["num_partitions"] = max(counts)
    return IndexSpec(table.location, branch.lance_name, index.field_names[0], index.name, kind.value, options, True)
