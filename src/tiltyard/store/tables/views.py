"""Which tables are views, materialized or plain, and who lets views and computed columns refresh by themselves."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.model.views.plain_views import QUERY_PROPERTY
from tiltyard.store.repository import Record, Repository, decode, placeholders, reads, writes
from tiltyard.store.tables.lookup import ListedTable, TableRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SET_VIEW = """
    INSERT INTO views (table_id, definition, definer) VALUES (?, ?, ?)
    ON CONFLICT (table_id) DO UPDATE SET definition = excluded.definition, definer = excluded.definer
"""
DESCRIBE_VIEW = "SELECT definition, definer FROM views WHERE table_id = ?"
SET_COLUMN_REFRESHER = """
    INSERT INTO column_refreshes (table_id, identity, definer) VALUES (?, ?, ?)
    ON CONFLICT (table_id, identity) DO UPDATE SET definer = excluded.definer
"""
FORGET_COLUMN_REFRESHER = "DELETE FROM column_refreshes WHERE table_id = ? AND identity = ?"
COLUMN_REFRESHERS = "SELECT identity, definer FROM column_refreshes WHERE table_id = ?"
DECLARED_AMONG = "SELECT name, properties FROM tables WHERE namespace_id = ? AND declared AND name IN ({names})"
DECLARED_OF_LIST = """
    SELECT namespace_id, name, properties FROM tables
    WHERE declared AND namespace_id IN ({namespaces}) AND name IN ({names})
"""
PLAIN_VIEWS = f"""
    SELECT {TableRecord.COLUMNS} FROM tables WHERE declared AND properties LIKE ? ORDER BY id LIMIT ?
"""
IS_PLAIN_VIEW = "SELECT properties FROM tables WHERE id = ? AND declared"
VIEWS_AMONG = """
    SELECT name FROM tables JOIN views ON views.table_id = tables.id WHERE namespace_id = ? AND name IN ({names})
"""


class ViewRecord(Record, frozen=True):
    """A materialized view; its full definition is in the table's metadata.

    `definition` is a digest of that, `definer` the principal who created the view, as text that is opaque to the store.
    """

    definition: str
    definer: str


class Views(Repository):
    """The methods for views and computed columns."""

    __slots__ = ()

    @writes
    def set_view(self, table_id: int, view: ViewRecord) -> None:
        """Record that a table is a materialized view, or its new definition."""
        self.connection.change(SET_VIEW, table_id, view.definition, view.definer)

    @reads
    def describe_view(self, table_id: int) -> ViewRecord | None:
        """Return the view that a table is, or None if it is none."""
        row = self.connection.row(DESCRIBE_VIEW, table_id)
        return ViewRecord.of(row) if row else None

    @writes
    def set_column_refreshers(self, table_id: int, identities: Iterable[str], definer: str) -> None:
        """Record who lets computed columns refresh by themselves, by the hashes of what their values are computed by.

        `definer` is as a view's.
        """
        self.connection.change_many(SET_COLUMN_REFRESHER, [(table_id, each, definer) for each in sorted({*identities})])

    @writes
    def forget_column_refreshers(self, table_id: int, identities: Iterable[str]) -> None:
        """Forget who lets computed columns refresh by themselves."""
        self.connection.change_many(FORGET_COLUMN_REFRESHER, [(table_id, each) for each in sorted({*identities})])

    @reads
    def column_refreshers(self, table_id: int) -> dict[str, str]:
        """Return who lets the computed columns of a table refresh by themselves, by the hashes."""
        return dict(self.connection.rows(COLUMN_REFRESHERS, table_id))

    @reads
    def views_among(self, namespace_id: int, names: Sequence[str]) -> set[str]:
        """Return the names of those tables of a namespace that are materialized views."""
        if not names:
            return set()
        return {
            row[0] for row in self.connection.rows(VIEWS_AMONG.format(names=placeholders(names)), namespace_id, *names)
        }

    @reads
    def plain_views_among(self, namespace_id: int, names: Sequence[str]) -> set[str]:
        """Return the names of those tables of a namespace that are plain views."""
        if not names:
            return set()
        rows = self.connection.rows(DECLARED_AMONG.format(names=placeholders(names)), namespace_id, *names)
        return {name for name, properties in rows if QUERY_PROPERTY in decode(properties)}

    @reads
    def is_plain_view(self, table_id: int) -> bool:
        """Return whether a table is a plain view."""
        row = self.connection.row(IS_PLAIN_VIEW, table_id)
        return row is not None and QUERY_PROPERTY in decode(row[0])

    @reads
    def plain_views(self, limit: int) -> list[TableRecord]:
        """Return the plain views of the catalog."""
        return [TableRecord.of(row) for row in self.connection.rows(PLAIN_VIEWS, f"%{QUERY_PROPERTY}%", limit)]

    @reads
    def declared_among(self, tables: Sequence[ListedTable]) -> dict[tuple[int, str], bool]:
        """Return which of some tables are only declared, by namespace id and name, and whether each is a plain view."""
        if not tables:
            return {}
        namespaces, names = {table.namespace_id for table in tables}, {table.name for table in tables}
        sql = DECLARED_OF_LIST.format(namespaces=placeholders([*namespaces]), names=placeholders([*names]))
        rows = self.connection.rows(sql, *namespaces, *names)
        return {(namespace, name): QUERY_PROPERTY in decode(properties) for namespace, name, properties in rows}
