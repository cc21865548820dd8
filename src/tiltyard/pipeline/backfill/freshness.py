"""Which values of a computed column hold, fragment by fragment, told by the table alone.

The file that a backfill writes says in its name what made it: a digest of the code and of the files that its inputs
were read from. Nothing else has to be kept, and it changes in the very commit that changes the values. Other files
(of appends, of compactions) are judged by the commit that brought them, for as long as the table remembers that one.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from lance import LanceOperation

from tiltyard.model.table_history import read_transactions

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile, FragmentMetadata

_NAME = re.compile(r"-udf-(full|part|some)-([0-9a-f]+)\.lance$")
_GONE = -2  # what Lance puts in the place of a field that a later file holds


class State(IntEnum):
    """What has to be computed in a fragment; the larger one is the safer one."""

    FRESH = 0
    NULLS = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A computed column: the ids of its field (with those inside it), those of its inputs, and what computes it.

    Files name the innermost fields only: of a list, that of its values.
    """

    name: str
    fields: frozenset[int]
    inputs: frozenset[int]
    identity: str

    def file(self, fragment: FragmentMetadata) -> DataFile | None:
        """The file that holds its values in a fragment."""
        return next((file for file in fragment.files if not self.fields.isdisjoint(file.fields)), None)

    def digest(self, fragment: FragmentMetadata) -> str:
        """What values made now are made by."""
        read = sorted([*_sources(fragment, self.inputs).items()])
        return hashlib.sha256(json.dumps([self.identity, read]).encode()).hexdigest()[:32]

    def file_name(self, fragment: FragmentMetadata, state: State, *, partly: bool) -> str:
        """A name for a new file: `partly` if only rows that a condition chose are computed."""
        kind = "full" if not partly else "some" if state is State.ALL and self.file(fragment) else "part"
        return f"{uuid.uuid4().hex}-udf-{kind}-{self.digest(fragment)}.lance"


def states(dataset: lance.LanceDataset, column: Column, fragments: Iterable[FragmentMetadata]) -> dict[int, State]:
    """What has to be computed, by the fragment's number."""
    found: dict[int, State] = {}
    unmarked: dict[int, FragmentMetadata] = {}
    for fragment in fragments:
        state = _marked(column, fragment)
        if state is None:
            unmarked[fragment.id] = fragment
        else:
            found[fragment.id] = state
    if unmarked:
        origins = _Origins(dataset, column)
        found |= {number: origins.state(fragment) for number, fragment in unmarked.items()}
    return found


def appended_since(dataset: lance.LanceDataset, version: int) -> frozenset[str]:
    """The data files that appends have brought after a version."""
    told = [entry.operation for _, entry in read_transactions(dataset, version)]
    appends = [operation for operation in told if isinstance(operation, LanceOperation.Append)]
    return frozenset(str(file.path) for append in appends for one in append.fragments for file in one.files)


def _marked(column: Column, fragment: FragmentMetadata) -> State | None:
    """What the column's file says of itself; None if it says nothing."""
    file = column.file(fragment)
    if file is None:
        return State.ALL
    if (found := _NAME.search(str(file.path))) is None:
        return None
    if found[1] == "some" or found[2] != column.digest(fragment):
        return State.ALL
    return State.FRESH if found[1] == "full" else State.NULLS


class _Origins:
    """The commits that brought files without a mark, newest first, read as far back as needed."""

    def __init__(self, dataset: lance.LanceDataset, column: Column) -> None:
        self._column = column
        self._commits = read_transactions(dataset, 0)
        self._brought: dict[str, LanceOperation.BaseOperation] = {}
        self._rewritten: dict[str, tuple[FragmentMetadata, ...]] = {}

    def state(self, fragment: FragmentMetadata) -> State:
        """Rows of an append hold what their writer gave, or null; those of an update may hold what was true before."""
        if (marked := _marked(self._column, fragment)) is not None:
            return marked
        file = self._column.file(fragment)
        path = str(file.path) if file else ""
        if set(_sources(fragment, self._column.inputs).values()) - {path}:
            return State.ALL  # the inputs were rewritten after it
        operation = self._find(path)
        if isinstance(operation, LanceOperation.Append | LanceOperation.Overwrite):
            return State.NULLS
        if isinstance(operation, LanceOperation.Rewrite):
            return max((self._before(old) for old in self._rewritten[path]), default=State.ALL)
        return State.ALL

    def _before(self, fragment: FragmentMetadata) -> State:
        """The state of a fragment that was compacted: where it had no values, the new one has nulls."""
        return State.NULLS if self._column.file(fragment) is None else self.state(fragment)

    def _find(self, path: str) -> LanceOperation.BaseOperation | None:
        while path not in self._brought:
            found = next(self._commits, None)
            if found is None:
                return None
            self._learn(found[1].operation)
        return self._brought[path]

    def _learn(self, operation: LanceOperation.BaseOperation) -> None:
        fragments: Iterable[FragmentMetadata] = ()
        if isinstance(operation, LanceOperation.Append | LanceOperation.Overwrite):
            fragments = operation.fragments
        elif isinstance(operation, LanceOperation.Update):
            fragments = [*operation.new_fragments, *operation.updated_fragments]
        elif isinstance(operation, LanceOperation.Rewrite):
            for group in operation.groups:
                new = [str(file.path) for one in group.new_fragments for file in one.files]
                self._rewritten |= dict.fromkeys(new, tuple(group.old_fragments))
                self._brought |= dict.fromkeys(new, operation)
        for fragment in fragments:
            # An update names files that were there before, too: older commits, read later, know better.
            self._brought |= {str(file.path): operation for file in fragment.files}


def _sources(fragment: FragmentMetadata, inputs: Iterable[int]) -> Mapping[int, str]:
    """The file of each input column."""
    wanted = frozenset(inputs)
    return {number: str(file.path) for file in fragment.files for number in file.fields if number in wanted}


def without(file: DataFile, fields: frozenset[int]) -> DataFile | None:
    """A file whose columns of these ids are another file's now; None if it holds no other."""
    kept = [_GONE if number in fields else number for number in file.fields]
    if all(number == _GONE for number in kept):
        return None
    return type(file)(
        str(file.path),
        kept,
        list(file.column_indices),
        file.file_major_version,
        file.file_minor_version,
        file.file_size_bytes,
        file.base_id,
    )
