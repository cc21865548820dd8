"""What the job of an erasure is to do, and has done: JSON in the catalog, from which a job that was killed goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord


class TableFigures(msgspec.Struct):
    """What was done on one table. `rows` are those that matched in the latest versions of its branches."""

    name: str
    kind: str = "table"
    rows: int = 0
    parked_rows: int = 0
    versions_ended: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    tags_ended: list[str] = []
    snapshots_ended: list[str] = []
    training_sets_dropped: list[str] = []
    tags_superseded: list[str] = []
    indexes_rebuilt: list[str] = []


class Plan(msgspec.Struct):
    """The request of an erasure, and how far its job has come.

    `values` are those of the columns `values_of` in the rows that match, None until they were read. `rewritten` has,
    for each branch of a table, the version from which on no file of its rows has one that matches, `rebuilt` the one
    that each index was built on since. `unbuilt` has the fields of `IndexSpec` of indexes that were dropped, to be
    built again. `refreshes` has the jobs that compute views anew, by the tables' ids, and `failures` why some were not.
    `superseded` has the branch, for each tag of a table, to which that moves, `training_sets` the ids
    of their tables that were dropped with their snapshots.
    """

    predicate: str
    values_of: list[str]
    end_protected: bool
    supersede_tags: bool = False
    values: list[str | int] | None = None
    rewritten: dict[str, int] = {}
    rebuilt: dict[str, int] = {}
    unbuilt: dict[str, list[dict[str, Any]]] = {}
    refreshes: dict[str, str] = {}
    failures: dict[str, str] = {}
    superseded: dict[str, str] = {}
    training_sets: list[int] = []
    tables: dict[str, TableFigures] = {}
    dropped: list[str] = []

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a plan as the catalog has it."""
        return msgspec.json.decode(text, type=cls)

    def to_json(self) -> str:
        """Return the text that the catalog keeps."""
        return msgspec.json.encode(self).decode()

    def figures_of(self, table: TableRecord, name: str, kind: str) -> TableFigures:
        """Return the figures of a table, to be counted up; `kind` is what it is to the erasure."""
        return self.tables.setdefault(str(table.id), TableFigures(name, kind))


def branch_key(table: TableRecord, branch: Branch, *names: str) -> str:
    """Return the key of a branch of a table, or of one of its indexes, in a plan."""
    return msgspec.json.encode([table.id, branch.name, *names]).decode()


def add_new(names: list[str], new: Iterable[str]) -> None:
    """Add names to a list that has each once."""
    names += [name for name in new if name not in names]
