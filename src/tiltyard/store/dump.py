"""Dump a catalog to a file, and load it into an empty database: the same form for SQLite and PostgreSQL.

The file is gzip of JSON lines: first a header, then a line `[table, {column: value}]` for each row, in the order in
which migrations created the tables. All rows are those of one snapshot, whatever writers do meanwhile.
"""

# ruff: noqa: S608 - only names of the schema are put into SQL, never values

from __future__ import annotations

import base64
import gzip
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.store import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tiltyard.store.backend import Connection, Database, Row
    from tiltyard.store.repository import Clock

PAGE = 2000
"""Rows that are read or written at a time."""
EVENTS = {"events", "event_streams", "event_sinks", "event_dead_letters"}
MOMENTARY = {"processes", "queued_appends", "append_turns", *EVENTS}
"""Tables whose rows are true of the moment alone: a dump has none of them."""

Values = dict[str, Any]


class DumpHeader(msgspec.Struct, frozen=True):
    """What a dump begins with: the number of its last migration, when it was taken (ms since 1970), and for each table
    whose ids the database gives the last one given: none is given twice.
    """

    version: int
    taken_at: int
    last_ids: dict[str, int]


class NotEmptyError(Exception):
    """The database has a catalog already: nothing was loaded into it."""


def count_rows(database: Database) -> tuple[int, dict[str, int]]:
    """Return the number of the last migration, and how many rows each table has. Raises ServiceUnavailableError."""

    def read(connection: Connection) -> tuple[int, dict[str, int]]:
        version = _number(connection, "SELECT MAX(version) FROM schema_migrations")
        tables = schema.table_names(version)
        return version, {name: _number(connection, f"SELECT COUNT(*) FROM {name}") for name in tables}

    return database.read(read)


def dump(database: Database, file: Path, clock: Clock) -> DumpHeader:
    """Write the rows of one snapshot to a file; return its header. Raises ServiceUnavailableError, OSError."""

    def write(connection: Connection) -> DumpHeader:
        """Write the file, from its beginning again where a lost connection made the database run this again."""
        version = _number(connection, "SELECT MAX(version) FROM schema_migrations")
        tables = schema.table_names(version)
        last_ids = {name: _last_id(connection, database, name) for name, has_id in tables.items() if has_id}
        header = DumpHeader(version, clock(), last_ids)
        with gzip.open(file, "wb", compresslevel=3) as lines:
            lines.write(msgspec.json.encode(header) + b"\n")
            for table in tables:
                if table in MOMENTARY:
                    continue
                for page in _dump_table(connection, database, table):
                    lines.write(page)
        return header

    return database.read_snapshot(write)


def _number(connection: Connection, sql: str) -> int:
    row = connection.row(sql)
    assert row is not None
    return int(row[0])


def _last_id(connection: Connection, database: Database, table: str) -> int:
    row = connection.row(database.dialect["last_id"], table)
    return int(row[0] or 0) if row else 0


def _columns(connection: Connection, database: Database, table: str) -> dict[str, str]:
    """Return the columns of a table with their types, in the database's words."""
    return dict(connection.rows(database.dialect["columns"], table))


def _dump_table(connection: Connection, database: Database, table: str) -> Iterator[bytes]:
    columns = _columns(connection, database, table)
    booleans = [index for index, kind in enumerate(columns.values()) if kind == "boolean"]
    for rows in connection.pages(f"SELECT {', '.join(columns)} FROM {table}", PAGE):
        yield b"".join(_encode_row(table, columns, row, booleans) for row in rows)


def _encode_row(table: str, columns: Iterable[str], row: Row, booleans: list[int]) -> bytes:
    values = list(row)
    for index in booleans:
        values[index] = None if values[index] is None else bool(values[index])
    return msgspec.json.encode([table, dict(zip(columns, values, strict=True))]) + b"\n"


def read_header(file: Path) -> DumpHeader:
    """Return the header of a dump. Raises OSError, msgspec.DecodeError for a file that is none."""
    with gzip.open(file, "rb") as lines:
        return msgspec.json.decode(lines.readline(), type=DumpHeader)


def read_rows(file: Path, *tables: str) -> Iterator[tuple[str, Values]]:
    """Iterate over the rows of a dump, of these tables alone where any are named. Raises as `read_header` does."""
    begins = tuple(f'["{table}",'.encode() for table in tables)
    with gzip.open(file, "rb") as lines:
        next(lines)
        for line in lines:
            if not begins or line.startswith(begins):
                table, values = msgspec.json.decode(line)
                yield table, values


def load(database: Database, file: Path, clock: Clock, convert: Callable[[str, Values], Values | None]) -> DumpHeader:
    """Load a dump into an empty database, and migrate that, in one transaction; return the header.

    `convert` returns what is loaded in place of a row, None to leave it out. Raises NotEmptyError, StoreVersionError
    for a dump of newer code, ServiceUnavailableError, and as `read_header` does.
    """
    header = read_header(file)
    schema.refuse_newer(header.version)

    def write(connection: Connection) -> None:
        has_catalog = connection.row(database.dialect["has_migrations"])
        if has_catalog and has_catalog[0]:
            raise NotEmptyError
        schema.apply_missing(connection, database, clock, header.version)
        tables = schema.table_names(header.version)
        for table in reversed(tables):  # rows that migrations have inserted are in the dump, too
            connection.change(f"DELETE FROM {table}")
        for table, rows in _pages(_parents_first(file), convert):
            _insert(connection, database, table, rows)
        for table, has_id in tables.items():
            if has_id and (last := header.last_ids.get(table, 0)):
                connection.rows(database.dialect["forget_last_id"], table)
                connection.rows(database.dialect["set_last_id"], table, last)
        schema.apply_missing(connection, database, clock, None)

    database.write(write)
    return header


def _parents_first(file: Path) -> Iterator[tuple[str, Values]]:
    """Iterate over the rows of a dump; a namespace comes after its parent, whose id may be the higher one."""
    waiting: dict[int, list[Values]] = {}
    ready = list[Values]()
    for _, values in read_rows(file, "namespaces"):
        if values["parent_id"] is None:
            ready.append(values)
        else:
            waiting.setdefault(values["parent_id"], []).append(values)
    while ready:
        values = ready.pop()
        yield "namespaces", values
        ready += waiting.pop(values["id"], [])
    yield from ((table, values) for table, values in read_rows(file) if table != "namespaces")


def _pages(
    rows: Iterable[tuple[str, Values]], convert: Callable[[str, Values], Values | None]
) -> Iterator[tuple[str, list[Values]]]:
    """Group consecutive rows of one table, up to PAGE at a time."""
    current, page = "", list[Values]()
    for table, values in rows:
        converted = convert(table, values)
        if page and (table != current or len(page) == PAGE):
            yield current, page
            page = []
        current = table
        if converted is not None:
            page.append(converted)
    if page:
        yield current, page


def _insert(connection: Connection, database: Database, table: str, rows: list[Values]) -> None:
    columns = _columns(connection, database, table)
    binary = {name for name, kind in columns.items() if kind in ("blob", "bytea")}
    names = list(rows[0])
    sql = (
        f"INSERT INTO {table} ({', '.join(names)}) /*+ OVERRIDING SYSTEM VALUE */"
        f" VALUES ({', '.join('?' * len(names))})"
    )
    connection.change_many(sql, [tuple(_decode(row[name], name in binary) for name in names) for row in rows])


def _decode(value: Any, is_binary: bool) -> Any:
    """Return a value of a dump as the database takes it: bytes are base64 there."""
    return base64.b64decode(value) if is_binary and value is not None else value
