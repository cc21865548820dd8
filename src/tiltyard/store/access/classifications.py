"""Classifications of namespaces, tables and columns. Every change counts the generation `grants` up.

Objects are named by the kind and id of their record, as in grants; a column has a record of its own here, made when it
is first classified, by which it is found whatever is renamed (`tiltyard.access.classifications`).
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.store.access.grants import NAMESPACE
from tiltyard.store.repository import GRANTS_GENERATION, Record, Repository, count_up, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tiltyard.store.backend import Row

COLUMN = "column"
MAX_CLASSIFICATIONS = 50
"""Keys on one namespace, table or column."""
MAX_CLASSIFIED_COLUMNS = 5_000
"""Columns of one table that are classified, dropped ones included: a reader's policy is made of all of them."""

Identity = tuple[int, str]
"""Lance's id of a field, and its path."""


class ClassificationRecord(Record, frozen=True):
    """One key of one object, with its value; `set_by` is who set it last, `set_at` counts ms since 1970."""

    kind: str
    object_id: int
    key: str
    value: str
    set_by: str
    set_at: int


class ClassifiedColumn(Record, frozen=True):
    """A column that is classified: what it is in the latest version, and what it was in earlier ones.

    `path` is None once it was dropped: then it is in no version but an earlier one that was restored.
    """

    id: int
    table_id: int
    field_id: int
    path: str | None
    earlier: tuple[Identity, ...]

    @classmethod
    def of(cls, row: Row) -> ClassifiedColumn:
        """Read a row of COLUMNS."""
        id_, table_id, field_id, path, earlier = row
        return cls(id_, table_id, field_id, path, msgspec.json.decode(earlier, type=tuple[Identity, ...]))


SET = """
    INSERT INTO classifications (kind, object_id, key, value, set_by, set_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (kind, object_id, key) DO UPDATE SET value = excluded.value, set_by = excluded.set_by,
        set_at = excluded.set_at
"""
UNSET = "DELETE FROM classifications WHERE kind = ? AND object_id = ? AND key = ?"
ON_OBJECTS = f"""
    SELECT {ClassificationRecord.COLUMNS} FROM classifications WHERE kind = ? AND object_id IN ({{ids}})
    ORDER BY object_id, key
"""
# A namespace and those above it, the nearest first; of a table that of its own, also in the trash.
ABOVE = f"""
    WITH RECURSIVE up (id, height) AS (
        SELECT CAST(? AS BIGINT), 0
        UNION ALL
        SELECT COALESCE(here.parent_id, gone.parent_id), height + 1
        FROM up LEFT JOIN namespaces here ON here.id = up.id LEFT JOIN removed_namespaces gone ON gone.id = up.id
        WHERE COALESCE(here.parent_id, gone.parent_id) IS NOT NULL
    )
    SELECT {ClassificationRecord.COLUMNS} FROM classifications JOIN up ON up.id = object_id AND kind = '{NAMESPACE}'
    ORDER BY height, key
"""
NAMESPACE_OF = """
    SELECT namespace_id FROM tables WHERE id = ? UNION ALL SELECT namespace_id FROM removed_tables WHERE id = ?
"""
FIND = f"""
    SELECT {ClassificationRecord.COLUMNS} FROM classifications WHERE key = ? AND (kind, object_id) > (?, ?)
    ORDER BY kind, object_id LIMIT ?
"""
HAS_KEYS = "SELECT 1 FROM classifications WHERE key IN ({keys}) LIMIT 1"
COLUMNS_OF = f"SELECT {ClassifiedColumn.COLUMNS} FROM classified_columns WHERE table_id = ? ORDER BY id"
COLUMNS_BY_ID = f"SELECT {ClassifiedColumn.COLUMNS} FROM classified_columns WHERE id IN ({{ids}})"
ADD_COLUMN = """
    INSERT INTO classified_columns (table_id, field_id, path, earlier) VALUES (?, ?, ?, '[]')
    ON CONFLICT (table_id, path) DO UPDATE SET path = excluded.path RETURNING id
"""
FREE_PATH = "UPDATE classified_columns SET path = NULL WHERE id = ?"
MOVE_COLUMN = "UPDATE classified_columns SET field_id = ?, path = ?, earlier = ? WHERE id = ?"


class Classifications(Repository):
    """The methods for classifications."""

    __slots__ = ()

    @writes
    def set_classification(self, kind: str, object_id: int, key: str, value: str, by: str) -> None:
        """Set a key of an object, in place of an earlier value. Raises InvalidInputError where it has too many keys."""
        keys = {record.key for record in self.classifications_on(kind, [object_id])}
        if len(keys | {key}) > MAX_CLASSIFICATIONS:
            raise InvalidInputError(f"An object has {MAX_CLASSIFICATIONS} classifications at most: unset some.")
        self.connection.change(SET, kind, object_id, key, value, by, self._clock())
        count_up(self.connection, GRANTS_GENERATION)

    @writes
    def unset_classification(self, kind: str, object_id: int, key: str) -> bool:
        """Unset a key of an object; return whether it was set."""
        existed = self.connection.change(UNSET, kind, object_id, key) == 1
        count_up(self.connection, GRANTS_GENERATION)
        return existed

    @reads
    def classifications_on(self, kind: str, object_ids: Sequence[int]) -> list[ClassificationRecord]:
        """Return what is set on objects of one kind themselves, by id and key."""
        if not object_ids:
            return []
        sql = ON_OBJECTS.format(ids=placeholders(object_ids))
        return [ClassificationRecord.of(row) for row in self.connection.rows(sql, kind, *object_ids)]

    @reads
    def classifications_above(self, namespace_id: int) -> list[ClassificationRecord]:
        """Return what is set on a namespace and those above it, the nearest first."""
        return [ClassificationRecord.of(row) for row in self.connection.rows(ABOVE, namespace_id)]

    @reads
    def namespace_of_table(self, table_id: int) -> int | None:
        """Return the namespace of a table, also of one in the trash; None for one that is gone."""
        row = self.connection.row(NAMESPACE_OF, table_id, table_id)
        return None if row is None else int(row[0])

    @reads
    def has_classifications(self, keys: Sequence[str]) -> bool:
        """Return whether anything has one of some keys."""
        return self.connection.row(HAS_KEYS.format(keys=placeholders(keys)), *keys) is not None

    @reads
    def find_classified(self, key: str, after: tuple[str, int], limit: int) -> list[ClassificationRecord]:
        """Return up to `limit` objects on which a key is set, by kind and id, those after `after`."""
        return [ClassificationRecord.of(row) for row in self.connection.rows(FIND, key, *after, limit)]

    @reads
    def classified_columns(self, table_id: int) -> list[ClassifiedColumn]:
        """Return the columns of a table that are classified."""
        return [ClassifiedColumn.of(row) for row in self.connection.rows(COLUMNS_OF, table_id)]

    @reads
    def classified_columns_by_id(self, ids: Sequence[int]) -> dict[int, ClassifiedColumn]:
        """Return columns that are classified by the ids of their records."""
        if not ids:
            return {}
        rows = self.connection.rows(COLUMNS_BY_ID.format(ids=placeholders(ids)), *ids)
        return {row[0]: ClassifiedColumn.of(row) for row in rows}

    @writes
    def add_classified_column(self, table_id: int, field_id: int, path: str) -> int:
        """Return the id of a column's record, which is made where there is none. Raises InvalidInputError."""
        known = self.connection.rows(COLUMNS_OF, table_id)
        found = next((row[0] for row in known if row[3] == path), None)
        if found is not None:
            return int(found)
        if len(known) >= MAX_CLASSIFIED_COLUMNS:
            raise InvalidInputError(f"{MAX_CLASSIFIED_COLUMNS} columns of a table are classified: that is the most.")
        return int(self.connection.rows(ADD_COLUMN, table_id, field_id, path)[0][0])

    @writes
    def move_classified_columns(self, columns: Iterable[ClassifiedColumn]) -> None:
        """Record what columns are by now, all at once: two may have exchanged their paths."""
        moved = list(columns)
        for column in moved:
            self.connection.change(FREE_PATH, column.id)
        for column in moved:
            earlier = msgspec.json.encode(column.earlier).decode()
            self.connection.change(MOVE_COLUMN, column.field_id, column.path, earlier, column.id)
        count_up(self.connection, GRANTS_GENERATION)
