"""Groups of changed rows: what a plan of changes consists of, and what Spark's tasks are given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import pyarrow as pa

CHANGE, VERSION, TIMESTAMP = "_change", "_version", "_timestamp"
CHANGE_FIELDS = (
    pa.field(CHANGE, pa.string(), nullable=False),
    pa.field(VERSION, pa.int64(), nullable=False),
    pa.field(TIMESTAMP, pa.timestamp("us", "UTC"), nullable=False),
)
"""The columns that a change has before those of the table."""


class Change(StrEnum):
    """What happened to a row; an updated row is there twice, as it was and as it is."""

    INSERT = "insert"
    UPDATE_BEFORE = "update_before"
    UPDATE_AFTER = "update_after"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows of one fragment, as a version has them.

    `names` are those that the columns of the feed have in that version, None for one that it lacks. `positions` count
    the fragment's rows without the deleted ones, as 32-bit integers; None are all rows.
    """

    version: int
    fragment: int
    names: tuple[str | None, ...]
    positions: bytes | None
    rows: int


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows that a version changed, all in one way."""

    change: Change
    version: int
    time: datetime
    selection: RowSelection

    @property
    def rows(self) -> int:
        """Return the number of rows that are read."""
        return self.selection.rows


@dataclass(frozen=True, slots=True)
class RewrittenRows:
    """Rows that a version wrote again, in the same order before and after: those whose values differ are updates.

    `compared` are the numbers of the columns that may differ; without any, all rows are updates.
    """

    version: int
    time: datetime
    before: RowSelection
    after: RowSelection
    compared: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows that are read."""
        return self.before.rows + self.after.rows


ChangeGroup: TypeAlias = ChangedRows | RewrittenRows


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The changes after the version `since` up to `until`: their columns, and groups in the order of versions."""

    since: int
    until: int
    schema: pa.Schema
    groups: tuple[ChangeGroup, ...]
