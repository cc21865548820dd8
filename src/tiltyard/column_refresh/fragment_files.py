"""Compute values of columns for one fragment, and write them as new files of that fragment, one for each column.

A file has a value for each physical row of the fragment, deleted rows too, so that it stays valid whatever is deleted
meanwhile. Rows that are not computed keep their value, or are null where there was none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter

from tiltyard.column_refresh.freshness import FragmentState

if TYPE_CHECKING:
    from lance.fragment import DataFile

BATCH_ROWS = 8192
MAX_ERRORS = 100
"""How many failing rows of a fragment are recorded."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be written: the column that it holds, which of its rows are computed, and its name in `data`."""

    column: str
    state: FragmentState
    name: str


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """What is to be computed of a fragment of a version: `files`, of the rows that meet the condition `where`."""

    version: int
    fragment_id: int
    files: tuple[NewFile, ...]
    where: str | None


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no value: its position among the rows, the type of the error and its message."""

    row: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """The values of some rows, an array for each column; `failed` rows are null, and `errors` has some of them."""

    columns: tuple[pa.Array, ...]
    failed: int = 0
    errors: tuple[RowError, ...] = ()


@dataclass(frozen=True, slots=True)
class Computation:
    """What computes columns: `compute` gets batches of `scan_columns`, and returns an array for each of `fields`.

    `scan_columns` are columns, or a single expression by the name of its column, which is evaluated for no other rows
    than those that are computed: on a deleted row it may fail.
    """

    fields: tuple[pa.Field, ...]
    scan_columns: Sequence[str] | Mapping[str, str]
    compute: Callable[[pa.RecordBatch], ComputedRows]


@dataclass(frozen=True, slots=True)
class FilledFragment:
    """The new files of a fragment, and for how many rows values were computed.

    `failed` rows are null, since a function failed on them; `errors` has some of them, by their position in the
    fragment.
    """

    fragment_id: int
    files: tuple[DataFile, ...]
    rows: int
    failed: int = 0
    errors: tuple[RowError, ...] = ()


@dataclass(frozen=True, slots=True)
class _FilledBatch:
    """Values of neighbouring rows, for each file; how many were computed, and how many a function failed on."""

    columns: tuple[pa.Array, ...]
    rows: int
    failed: int
    errors: tuple[RowError, ...]


@dataclass(slots=True)
class WrittenFiles:
    """How many rows of a fragment were computed, and what failed of them."""

    rows: int = 0
    failed: int = 0
    errors: tuple[RowError, ...] = ()


def write_column_files(
    dataset: lance.LanceDataset,
    plan: FragmentPlan,
    computation: Computation,
    folder: str,
    *,
    batch_rows: int = BATCH_ROWS,
    **storage_arguments: Any,
) -> WrittenFiles:
    """Compute the values of a plan's files, and write them into `folder`, the table's folder of data.

    `computation` has a column for each file, in their order; `storage_arguments` are those of Lance's writer. Raises
    what the computation and Lance raise; the files are incomplete then.
    """
    filler = _Filler(dataset, plan, computation, batch_rows)
    written = WrittenFiles()
    schemas = [pa.schema([field.with_nullable(True)]) for field in computation.fields]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                LanceFileWriter(
                    f"{folder}/{file.name}", schema, version=dataset.data_storage_version, **storage_arguments
                )
            )
            for file, schema in zip(plan.files, schemas, strict=True)
        ]
        for batch in filler.batches():
            written.rows += batch.rows
            written.failed += batch.failed
            written.errors += batch.errors[: MAX_ERRORS - len(written.errors)]
            for writer, schema, values in zip(writers, schemas, batch.columns, strict=True):
                writer.write_batch(pa.record_batch([values], schema))
    return written


class _Filler:
    """The rows of one fragment, on their way through the computation."""

    def __init__(
        self, dataset: lance.LanceDataset, plan: FragmentPlan, computation: Computation, batch_rows: int
    ) -> None:
        part = dataset.get_fragment(plan.fragment_id)
        assert part is not None
        self._dataset, self._part, self._batch_rows = dataset, part, batch_rows
        self._plan, self._computation = plan, computation

    def batches(self) -> Iterator[_FilledBatch]:
        """Yield the values of the columns, batch by batch, with deleted rows."""
        columns = self._computation.scan_columns
        return self._evaluate(columns) if isinstance(columns, Mapping) else self._call(columns)

    def _evaluate(self, expression: Mapping[str, str]) -> Iterator[_FilledBatch]:
        """Evaluate an expression for the rows to be computed, and place its values among all rows."""
        (file,) = self._plan.files
        conditions = [f"({self._plan.where})"] if self._plan.where is not None else []
        conditions += [f"`{file.column}` IS NULL"] if file.state is FragmentState.NULLS else []
        values = _PlacedValues(
            self._computation.compute,
            self._dataset.scanner(
                columns=dict(expression),
                filter=" AND ".join(conditions) or None,
                fragments=[self._part],
                with_row_address=True,
                batch_size=self._batch_rows,
                scan_in_order=True,
            ).to_batches(),
        )
        old_batches = self._scan([file.column]) if conditions else None
        rows, kind = self._part.physical_rows, self._computation.fields[0].type
        for start in range(0, rows, self._batch_rows):
            count = min(self._batch_rows, rows - start)
            offsets, new = values.take_until(start + count)
            old = next(old_batches).column(file.column) if old_batches else pa.nulls(count, kind)
            mask = np.zeros(count, bool)
            mask[offsets - start] = True
            column = old if new is None else _replaced(old, new, mask, mask)
            yield _FilledBatch((column,), len(offsets), 0, ())

    def _call(self, columns: Sequence[str]) -> Iterator[_FilledBatch]:
        """Compute batches of all rows, of which the computation gets those to be computed."""
        selected = self._selected_rows()
        states = [file.state for file in self._plan.files]
        is_kept = [state is FragmentState.NULLS or selected is not None for state in states]
        kept_names = [file.column for file, kept in zip(self._plan.files, is_kept, strict=True) if kept]
        old_batches = self._scan(kept_names) if kept_names else None
        offset = 0
        for batch in self._scan(columns):
            old_batch = None if old_batches is None else next(old_batches)
            old = [old_batch.column(file.column) if old_batch and kept else None
                   for file, kept in zip(self._plan.files, is_kept, strict=True)]  # fmt: skip
            chosen = batch.column("_rowid").is_valid().to_numpy(zero_copy_only=False)
            if selected is not None:
                chosen = chosen & selected[offset : offset + batch.num_rows]
            masks = [
                chosen & values.is_null().to_numpy(zero_copy_only=False)
                if state is FragmentState.NULLS and values is not None
                else chosen
                for state, values in zip(states, old, strict=True)
            ]
            yield self._fill(batch, old, masks, offset)
            offset += batch.num_rows

    def _selected_rows(self) -> Any:
        """Return a numpy mask over the physical rows: those that meet the condition; None for all."""
        if self._plan.where is None:
            return None
        selected = np.zeros(self._part.physical_rows, bool)
        scanner = self._part.scanner(columns=[], filter=self._plan.where, with_row_address=True)
        selected[scanner.to_table().column("_rowaddr").to_numpy() & np.uint64(0xFFFF_FFFF)] = True
        return selected

    def _scan(self, columns: Any) -> Iterator[pa.RecordBatch]:
        """Scan all physical rows; batches of two scans have the same rows."""
        scanner = self._dataset.scanner(
            columns=columns,
            fragments=[self._part],
            include_deleted_rows=True,
            with_row_id=True,
            batch_size=self._batch_rows,
            strict_batch_size=True,
        )
        yield from scanner.to_batches()

    def _fill(
        self, batch: pa.RecordBatch, old: Sequence[pa.Array | None], masks: Sequence[Any], offset: int
    ) -> _FilledBatch:
        """Compute the rows that are in a mask of any column; the others keep their old value, or null without any."""
        fields = self._computation.fields
        kept = [
            pa.nulls(batch.num_rows, field.type) if values is None else values
            for field, values in zip(fields, old, strict=True)
        ]
        wanted = np.logical_or.reduce(masks)
        if not wanted.any():
            return _FilledBatch(tuple(kept), 0, 0, ())
        is_whole = bool(wanted.all())
        computed = self._computation.compute(batch if is_whole else batch.filter(pa.array(wanted)))
        columns = tuple(
            new if is_whole and mask.all() else _replaced(values, new, wanted, mask)
            for values, new, mask in zip(kept, computed.columns, masks, strict=True)
        )
        positions = np.flatnonzero(wanted)
        errors = tuple(
            RowError(offset + int(positions[error.row]), error.kind, error.message) for error in computed.errors
        )
        return _FilledBatch(columns, len(positions) - computed.failed, computed.failed, errors)


class _PlacedValues:
    """Values that a scan computes, with their rows' positions in the fragment, in order."""

    def __init__(self, compute: Callable[[pa.RecordBatch], ComputedRows], batches: Iterator[pa.RecordBatch]) -> None:
        self._compute, self._batches = compute, batches
        self._pieces: list[tuple[Any, pa.Array]] = []

    def take_until(self, end: int) -> tuple[Any, pa.Array | None]:
        """Return the values of the rows before `end` that were not taken yet, and their positions; None without any."""
        while not self._pieces or self._pieces[-1][0][-1] < end:
            batch = next(self._batches, None)
            if batch is None:
                break
            if batch.num_rows:
                offsets = (batch.column("_rowaddr").to_numpy() & np.uint64(0xFFFF_FFFF)).astype(np.int64)
                (values,) = self._compute(batch.drop_columns("_rowaddr")).columns
                self._pieces.append((offsets, values))
        taken, rest = [], []
        for offsets, values in self._pieces:
            count = int(np.searchsorted(offsets, end))
            if count:
                taken.append((offsets[:count], values.slice(0, count)))
            if count < len(offsets):
                rest.append((offsets[count:], values.slice(count)))
        self._pieces = rest
        if not taken:
            return np.zeros(0, np.int64), None
        return np.concatenate([offsets for offsets, _ in taken]), pa.concat_arrays([values for _, values in taken])


def _replaced(old: pa.Array, new: pa.Array, wanted: Any, mask: Any) -> pa.Array:
    """Return old values with those of the rows in `mask` replaced; `new` has a value for each row in `wanted`."""
    positions = np.arange(len(old))
    new_positions = np.zeros(len(old), positions.dtype)
    new_positions[wanted] = len(old) + np.arange(len(new))
    positions[mask] = new_positions[mask]
    return pa.concat_arrays([old, new]).take(pa.array(positions))
