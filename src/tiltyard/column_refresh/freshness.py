"""Decide, fragment by fragment, which values of a computed column are up to date, from the table alone.

The name of a file that a backfill writes holds a digest of what its values were computed from: the code, and the files
of the input columns. So no other record is needed, and the mark changes in the very commit that changes the values.
Files without such a name (of appends, of compactions) are judged by the commit that added them, for as long as the
table keeps that commit's transaction.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from lance import LanceOperation

from tiltyard.change_feed.table_history import field_ids, files_by_field, read_transactions

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import DataFile, FragmentMetadata

_MARKED_NAME = re.compile(r"-udf-(full|part|some)-([0-9a-f]+)\.lance$")
TOMBSTONE = -2  # Lance's field id for a column of a file that a later file replaces


class FragmentState(IntEnum):
    """Which rows of a fragment have to be computed. Of two states the larger one computes more, so is the safe one."""

    FRESH = 0
    NULLS = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A computed column: the ids of its field and the fields inside it, those of its inputs, its code's identity.

    Data files name the innermost fields only: of a list, the field of its values.
    """

    name: str
    fields: frozenset[int]
    inputs: frozenset[int]
    identity: str
    type: pa.DataType

    @classmethod
    def of(cls, dataset: lance.LanceDataset, name: str, inputs: Iterable[str], identity: str) -> ComputedColumn:
        """Return a column of a dataset, computed from its columns `inputs` by code of this identity."""
        input_fields = frozenset(number for other in inputs for number in field_ids(dataset, other))
        return cls(name, field_ids(dataset, name), input_fields, identity, dataset.schema.field(name).type)

    def file(self, fragment: FragmentMetadata) -> DataFile | None:
        """Return the file of a fragment that holds the column's values, None if there is none."""
        return next((file for file in fragment.files if not self.fields.isdisjoint(file.fields)), None)

    def digest(self, fragment: FragmentMetadata) -> str:
        """Return the digest of the code and the input files that values of this fragment are computed from now."""
        input_files = sorted(files_by_field(fragment, self.inputs).items())
        return hashlib.sha256(json.dumps([self.identity, input_files]).encode()).hexdigest()[:32]

    def file_name(self, fragment: FragmentMetadata, state: FragmentState, *, partly: bool) -> str:
        """Return a name for a new file of a fragment; `partly` if a condition limits which rows are computed."""
        kind = "full" if not partly else "some" if state is FragmentState.ALL and self.file(fragment) else "part"
        return f"{uuid.uuid4().hex}-udf-{kind}-{self.digest(fragment)}.lance"


def name_of_partial_file(file_name: str) -> str:
    """Return the name of a file in which rows that failed have no value: the next backfill computes them again."""
    return re.sub(r"-udf-full-(?=[0-9a-f]+\.lance$)", "-udf-part-", file_name)


def fragment_states(
    dataset: lance.LanceDataset, column: ComputedColumn, fragments: Iterable[FragmentMetadata]
) -> dict[int, FragmentState]:
    """Return which rows have to be computed, by the fragment's id."""
    states: dict[int, FragmentState] = {}
    unmarked: dict[int, FragmentMetadata] = {}
    for fragment in fragments:
        state = _state_by_file_name(column, fragment)
        if state is None:
            unmarked[fragment.id] = fragment
        else:
            states[fragment.id] = state
    if unmarked:
        history = _CommitHistory(dataset, column)
        states |= {number: history.state(fragment) for number, fragment in unmarked.items()}
    return states


def holds_values_of_inputs(column: ComputedColumn, fragment: FragmentMetadata) -> bool:
    """Return whether the values of a view's fragment are of its inputs: a refresh wrote both, or a backfill these."""
    state = _state_by_file_name(column, fragment)
    if state is not None:
        return state is not FragmentState.ALL
    file = column.file(fragment)
    return file is not None and set(files_by_field(fragment, column.inputs).values()) == {str(file.path)}


def files_appended_since(dataset: lance.LanceDataset, version: int) -> frozenset[str]:
    """Return the paths of data files that appends have added after a version."""
    operations = [transaction.operation for _, transaction in read_transactions(dataset, version)]
    appends = [operation for operation in operations if isinstance(operation, LanceOperation.Append)]
    return frozenset(str(file.path) for append in appends for fragment in append.fragments for file in fragment.files)


def _state_by_file_name(column: ComputedColumn, fragment: FragmentMetadata) -> FragmentState | None:
    """Return the state that the name of the column's file says; None if it is not the name of a backfill's file."""
    file = column.file(fragment)
    if file is None:
        return FragmentState.ALL
    if (match := _MARKED_NAME.search(str(file.path))) is None:
        return None
    if match[1] == "some" or match[2] != column.digest(fragment):
        return FragmentState.ALL
    return FragmentState.FRESH if match[1] == "full" else FragmentState.NULLS


class _CommitHistory:
    """The commits that added files without a mark, read newest first, as far back as needed."""

    def __init__(self, dataset: lance.LanceDataset, column: ComputedColumn) -> None:
        self._column = column
        self._transactions = read_transactions(dataset, 0)
        self._operation_by_file: dict[str, LanceOperation.BaseOperation] = {}
        self._compacted_fragments: dict[str, tuple[FragmentMetadata, ...]] = {}

    def state(self, fragment: FragmentMetadata) -> FragmentState:
        """Return the state of a fragment by the commit that added its file.

        Rows of an append hold what their writer set, or null; rows of an update may hold values of old inputs.
        """
        if (marked := _state_by_file_name(self._column, fragment)) is not None:
            return marked
        file = self._column.file(fragment)
        path = str(file.path) if file else ""
        if set(files_by_field(fragment, self._column.inputs).values()) - {path}:
            return FragmentState.ALL  # the inputs were rewritten after it
        operation = self._find_operation(path)
        if isinstance(operation, LanceOperation.Append | LanceOperation.Overwrite):
            return FragmentState.NULLS
        if isinstance(operation, LanceOperation.Rewrite):
            states = (self._state_before_compaction(old) for old in self._compacted_fragments[path])
            return max(states, default=FragmentState.ALL)
        return FragmentState.ALL

    def _state_before_compaction(self, fragment: FragmentMetadata) -> FragmentState:
        """Return the state of a fragment that was compacted: where it had no values, the new one has nulls."""
        return FragmentState.NULLS if self._column.file(fragment) is None else self.state(fragment)

    def _find_operation(self, path: str) -> LanceOperation.BaseOperation | None:
        while path not in self._operation_by_file:
            entry = next(self._transactions, None)
            if entry is None:
                return None
            self._add_operation(entry[1].operation)
        return self._operation_by_file[path]

    def _add_operation(self, operation: LanceOperation.BaseOperation) -> None:
        fragments: Iterable[FragmentMetadata] = ()
        if isinstance(operation, LanceOperation.Append | LanceOperation.Overwrite):
            fragments = operation.fragments
        elif isinstance(operation, LanceOperation.Update):
            fragments = [*operation.new_fragments, *operation.updated_fragments]
        elif isinstance(operation, LanceOperation.Rewrite):
            for group in operation.groups:
                new_files = [str(file.path) for fragment in group.new_fragments for file in fragment.files]
                self._compacted_fragments |= dict.fromkeys(new_files, tuple(group.old_fragments))
                self._operation_by_file |= dict.fromkeys(new_files, operation)
        for fragment in fragments:
            # An update also names files that older commits added: those are read later, and overwrite the entry.
            self._operation_by_file |= {str(file.path): operation for file in fragment.files}


def with_column_files(
    fragment: FragmentMetadata, files: Sequence[DataFile], fields: frozenset[int]
) -> FragmentMetadata:
    """Return a fragment that has the columns of these field ids in new files."""
    kept = [without_fields(file, fields) for file in fragment.files]
    return replace(fragment, files=[*(file for file in kept if file), *files])


def without_fields(file: DataFile, fields: frozenset[int]) -> DataFile | None:
    """Return a file's entry whose columns of these field ids are replaced by another file; None if it has no others."""
    remaining = [TOMBSTONE if number in fields else number for number in file.fields]
    if all(number == TOMBSTONE for number in remaining):
        return None
    return type(file)(
        str(file.path),
        remaining,
        list(file.column_indices),
        file.file_major_version,
        file.file_minor_version,
        file.file_size_bytes,
        file.base_id,
    )
