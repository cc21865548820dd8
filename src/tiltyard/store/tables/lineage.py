"""The index of lineage: which commits of jobs made which tables, from which tables and URIs."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.model.columns.lineage import Origins
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.store.repository import GRANTS_GENERATION, Repository, parent_folders, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_REPETITIONS = 100
"""How many commits of one recurring job are kept for a table: the newest ones."""


class LineageRecord(msgspec.Struct, frozen=True):
    """A commit of a job: `version` of a table, made from `sources`, of which `source_ids` are those of the catalog.

    `edge` is the same for all runs of a recurring job. `replaces` says that no row of earlier versions is left.
    `principal` is the name of who ran the job. `columns` and `why_unknown` are those of `CommitLineage`.
    """

    table_id: int
    branch: str
    version: int
    job: str
    kind: str
    code: str
    edge: str
    replaces: bool
    sources: tuple[LineageSource, ...]
    source_ids: tuple[int | None, ...]
    principal: str
    columns: Origins | None = None
    why_unknown: str = ""
    created_at: int = 0

    @classmethod
    def of(
        cls,
        lineage: CommitLineage,
        table_id: int,
        branch: str,
        version: int,
        *,
        replaces: bool,
        source_ids: tuple[int | None, ...],
        principal: str,
    ) -> LineageRecord:
        """Return the record of a commit with this lineage."""
        commit = (table_id, branch, version, lineage.job, lineage.kind, lineage.code, lineage.edge)
        return cls(*commit, replaces, lineage.sources, source_ids, principal, lineage.columns, lineage.why_unknown)


COLUMNS = (
    "id, table_id, branch, version, job, kind, code, edge, replaces, sources, principal, column_origins, created_at"
)
ADD = """
    INSERT INTO lineage (
        table_id, branch, version, job, kind, code, edge, replaces, sources, principal, column_origins, created_at
    )
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id
"""
ADD_SOURCE = "INSERT INTO lineage_sources (lineage_id, position, table_id, branch, place) VALUES (?, ?, ?, ?, ?)"
FORGET_REPETITIONS = f"""
    DELETE FROM lineage WHERE table_id = ? AND branch = ? AND edge = ? AND id <= (
        SELECT id FROM lineage AS newer WHERE newer.table_id = ? AND newer.branch = ? AND newer.edge = ?
        ORDER BY id DESC LIMIT 1 OFFSET {MAX_REPETITIONS}
    )
"""
# The newest commit of each recurring job, unless a later one has replaced all rows; up to a version, given twice. Each
# condition is a look-up in an index of its own. A view's refresh keeps the columns that backfills have filled.
IS_CURRENT = """
    NOT EXISTS (
        SELECT 1 FROM lineage AS later
        WHERE later.table_id = lineage.table_id AND later.branch = lineage.branch AND later.edge = lineage.edge
        AND later.version > lineage.version AND later.version <= ?
    ) AND NOT EXISTS (
        SELECT 1 FROM lineage AS later
        WHERE later.table_id = lineage.table_id AND later.branch = lineage.branch AND later.replaces = 1
        AND later.version > lineage.version AND later.version <= ?
        AND (lineage.kind <> 'backfill' OR later.kind <> 'refresh')
    )
"""
MADE = f"""
    SELECT {COLUMNS} FROM lineage WHERE table_id = ? AND branch = ? AND version <= ? AND {IS_CURRENT}
    ORDER BY version DESC, id DESC LIMIT ?
"""
READ = f"""
    SELECT {COLUMNS} FROM lineage
    WHERE id IN (SELECT lineage_id FROM lineage_sources WHERE {{condition}}) AND {IS_CURRENT}
    ORDER BY id DESC LIMIT ?
"""
SOURCES = "SELECT lineage_id, table_id FROM lineage_sources WHERE lineage_id IN ({ids}) ORDER BY lineage_id, position"
IS_KNOWN = """
    SELECT 1 FROM lineage JOIN lineage added ON added.id = ?
    WHERE lineage.table_id = ? AND lineage.branch = ? AND lineage.edge = ? AND lineage.id <> ?
        AND lineage.column_origins = added.column_origins
    LIMIT 1
"""
# Columns inherit classifications by lineage; policies by these are cached until the generation of grants is another.
INHERIT = f"""
    UPDATE generations SET number = number + 1
    WHERE name = '{GRANTS_GENERATION}' AND EXISTS (SELECT 1 FROM classification_policies)
"""
NEWEST_VERSION = (1 << 63) - 1


class Lineage(Repository):
    """The methods for the index of lineage."""

    __slots__ = ()

    @writes
    def add_lineage(self, record: LineageRecord) -> bool:
        """Add a commit; return False, and change nothing, where an earlier one of the same job and table is there."""
        sources = msgspec.json.encode(record.sources).decode()
        row = self.connection.row(
            ADD, record.table_id, record.branch, record.version, record.job, record.kind, record.code, record.edge,
            int(record.replaces), sources, record.principal, _encode_columns(record), self._clock(),
        )  # fmt: skip
        if row is None:
            return False
        for position, (source, table_id) in enumerate(zip(record.sources, record.source_ids, strict=True)):
            place = source.place if table_id is None else ""
            self.connection.change(ADD_SOURCE, row[0], position, table_id, source.branch, place)
        if self.connection.row(IS_KNOWN, row[0], record.table_id, record.branch, record.edge, row[0]) is None:
            self.connection.change(INHERIT)
        edge = (record.table_id, record.branch, record.edge)
        self.connection.change(FORGET_REPETITIONS, *edge, *edge)
        return True

    @reads
    def lineage_of(self, table_id: int, branch: str, version: int | None, limit: int) -> list[LineageRecord]:
        """Return up to `limit` commits from which a version (None: the latest) of a table has rows, newest first.

        Of a job that has recurred, the newest one alone.
        """
        upto = NEWEST_VERSION if version is None else version
        return self._records(self.connection.rows(MADE, table_id, branch, upto, upto, upto, limit))

    @reads
    def lineage_from_table(self, table_id: int, branch: str, limit: int) -> list[LineageRecord]:
        """Return up to `limit` commits that were made from a table, likewise."""
        sql = READ.format(condition="table_id = ? AND branch = ?")
        return self._records(self.connection.rows(sql, table_id, branch, NEWEST_VERSION, NEWEST_VERSION, limit))

    @reads
    def lineage_from_place(self, place: str, limit: int) -> list[LineageRecord]:
        """Return up to `limit` commits that were made from a file or folder, a folder above it, or files in it."""
        folders = [place, *parent_folders(place)]
        condition = f"place IN ({placeholders(folders)}) AND place <> '' OR place > ? AND place < ?"
        sql = READ.format(condition=condition)
        values = (*folders, f"{place}/", f"{place}0", NEWEST_VERSION, NEWEST_VERSION, limit)
        return self._records(self.connection.rows(sql, *values))

    def _records(self, rows: Sequence[tuple[Any, ...]]) -> list[LineageRecord]:
        ids = [row[0] for row in rows]
        source_ids: dict[int, list[int | None]] = {number: [] for number in ids}
        if ids:
            for lineage_id, table_id in self.connection.rows(SOURCES.format(ids=placeholders(ids)), *ids):
                source_ids[lineage_id].append(table_id)
        return [_record(row, tuple(source_ids[row[0]])) for row in rows]


def _record(row: tuple[Any, ...], source_ids: tuple[int | None, ...]) -> LineageRecord:
    _, table_id, branch, version, job, kind, code, edge, replaces, sources, principal, columns, created_at = row
    read = msgspec.json.decode(sources, type=tuple[LineageSource, ...])
    origins, why_unknown = msgspec.json.decode(columns, type=tuple[Origins | None, str])
    commit = (table_id, branch, version, job, kind, code, edge)
    return LineageRecord(*commit, bool(replaces), read, source_ids, principal, origins, why_unknown, created_at)


def _encode_columns(record: LineageRecord) -> str:
    return msgspec.json.encode((record.columns, record.why_unknown)).decode()
