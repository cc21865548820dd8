"""Answer Flight SQL's questions about the catalog: its schemas, tables, table types, and what the server can do.

Each is a table whose form the format fixes. Lists have what the caller can see, up to MAX_ROWS rows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.flight.encoding import schema_message
from tiltyard.flight.server_info import SQL_INFO_SCHEMA, TYPE_INFO_SCHEMA, sql_info, type_info
from tiltyard.sql.information_schema import (
    BASE_TABLE,
    CATALOG_NAME,
    PUBLIC_SCHEMA,
    VIEW,
    SchemaTable,
    tables_of_schemas,
)
from tiltyard.sql.reading import visible_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.context import Context

MAX_ROWS = 100_000
_PAGE = 500
_TYPES = (BASE_TABLE, VIEW)
_TEXT = pa.string()


def _required(*names: str) -> list[pa.Field]:
    return [pa.field(name, _TEXT, nullable=False) for name in names]


_CATALOGS = pa.schema(_required("catalog_name"))
_SCHEMAS = pa.schema([("catalog_name", _TEXT), *_required("db_schema_name")])
_TABLES = pa.schema([("catalog_name", _TEXT), ("db_schema_name", _TEXT), *_required("table_name", "table_type")])
_TABLES_WITH_SCHEMA = _TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
_TABLE_TYPES = pa.schema(_required("table_type"))
_PRIMARY_KEYS = pa.schema(
    [
        ("catalog_name", _TEXT),
        ("db_schema_name", _TEXT),
        *_required("table_name", "column_name"),
        ("key_name", _TEXT),
        pa.field("key_sequence", pa.int32(), nullable=False),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        ("pk_catalog_name", _TEXT),
        ("pk_db_schema_name", _TEXT),
        *_required("pk_table_name", "pk_column_name"),
        ("fk_catalog_name", _TEXT),
        ("fk_db_schema_name", _TEXT),
        *_required("fk_table_name", "fk_column_name"),
        pa.field("key_sequence", pa.int32(), nullable=False),
        ("fk_key_name", _TEXT),
        ("pk_key_name", _TEXT),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ]
)


def schema_of(name: str, command: Any) -> pa.Schema | None:
    """Return the form of a command's table; None for a command that is none of these."""
    if name == "CommandGetTables" and command.include_schema:
        return _TABLES_WITH_SCHEMA
    found = _COMMANDS.get(name)
    return None if found is None else found[0]


def answer(ctx: Context, name: str, command: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a command's table. Raises InvalidInputError."""
    schema = schema_of(name, command)
    assert schema is not None
    if name == "CommandGetSqlInfo":
        yield sql_info(tuple(command.info))
        return
    if name == "CommandGetXdbcTypeInfo":
        yield type_info(command.data_type if command.HasField("data_type") else None)
        return
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(_COMMANDS[name][1](ctx, command)):
        if number >= MAX_ROWS:
            raise InvalidInputError(f"The catalog has more than {MAX_ROWS} entries: narrow the pattern.")
        rows.append(row)
        if len(rows) >= _PAGE:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
            rows = []
    yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _catalogs(ctx: Context, command: Any) -> Iterator[dict[str, Any]]:
    yield {"catalog_name": CATALOG_NAME}


def _schemas(ctx: Context, command: Any) -> Iterator[dict[str, Any]]:
    matches = _pattern(command, "db_schema_filter_pattern")
    if not _is_ours(command):
        return
    names = {PUBLIC_SCHEMA, *(table.schema for table in _tables_of_catalog(ctx))}
    for name in sorted(filter(matches, names)):
        yield {"catalog_name": CATALOG_NAME, "db_schema_name": name}


def _tables(ctx: Context, command: Any) -> Iterator[dict[str, Any]]:
    in_schema = _pattern(command, "db_schema_filter_pattern")
    has_name = _pattern(command, "table_name_filter_pattern")
    types = set(command.table_types)
    if "TABLE" in types:
        types.add(BASE_TABLE)
    if not _is_ours(command) or (types and types.isdisjoint(_TYPES)):
        return
    for table in _tables_of_catalog(ctx):
        if (not types or table.type in types) and in_schema(table.schema) and has_name(table.path.name):
            row: dict[str, Any] = {
                "catalog_name": CATALOG_NAME,
                "db_schema_name": table.schema,
                "table_name": table.path.name,
                "table_type": table.type,
            }
            if command.include_schema:
                ctx.check_deadline()
                row["table_schema"] = schema_message(visible_schema(ctx, table.path))
            yield row


def _tables_of_catalog(ctx: Context) -> Iterator[SchemaTable]:
    for page in tables_of_schemas(ctx, _PAGE):
        yield from page


def _table_types(ctx: Context, command: Any) -> Iterator[dict[str, Any]]:
    for kind in _TYPES:
        yield {"table_type": kind}


def _nothing(ctx: Context, command: Any) -> Iterator[dict[str, Any]]:
    yield from ()


def _is_ours(command: Any) -> bool:
    return not command.HasField("catalog") or command.catalog in ("", CATALOG_NAME)


def _pattern(command: Any, field: str) -> Callable[[str], bool]:
    """Return whether a name matches a pattern of LIKE; any name where there is no pattern."""
    if not command.HasField(field):
        return lambda name: True
    text = getattr(command, field)
    if len(text) > 1_000 or text.count("%") > 10:
        raise InvalidInputError("The pattern of names is too long, or has more than ten of '%'.")
    parts = {"%": ".*", "_": "."}
    expression = re.compile("".join(parts.get(sign) or re.escape(sign) for sign in text), re.DOTALL)
    return lambda name: expression.fullmatch(name) is not None


_COMMANDS: dict[str, tuple[pa.Schema, Callable[[Context, Any], Iterator[dict[str, Any]]]]] = {
    "CommandGetCatalogs": (_CATALOGS, _catalogs),
    "CommandGetDbSchemas": (_SCHEMAS, _schemas),
    "CommandGetTables": (_TABLES, _tables),
    "CommandGetTableTypes": (_TABLE_TYPES, _table_types),
    "CommandGetPrimaryKeys": (_PRIMARY_KEYS, _nothing),
    "CommandGetExportedKeys": (_FOREIGN_KEYS, _nothing),
    "CommandGetImportedKeys": (_FOREIGN_KEYS, _nothing),
    "CommandGetCrossReference": (_FOREIGN_KEYS, _nothing),
    "CommandGetSqlInfo": (SQL_INFO_SCHEMA, _nothing),
    "CommandGetXdbcTypeInfo": (TYPE_INFO_SCHEMA, _nothing),
}
