"""What Flight SQL's clients ask about the server (SqlInfo), its types (XdbcTypeInfo) and the tables of its catalog."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard import __version__
from tiltyard.flight.encoding import schema_message
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
    from collections.abc import Callable, Iterator, Sequence

    from tiltyard.context import Context

_TEXT = pa.string()
_INFO_VALUE = pa.dense_union(
    [
        pa.field("string_value", _TEXT),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.field("item", _TEXT))),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.field("item", pa.int32())))),
    ]
)
SQL_INFO_SCHEMA = pa.schema(
    [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", _INFO_VALUE, nullable=False)]
)


class _Bits(int):
    """A set of flags, which the format sends apart from numbers."""


_NO_LIMIT = 0
_INFO: dict[int, str | bool | int | _Bits | list[str] | dict[int, list[int]]] = {
    0: "Tiltyard",  # the server's name
    1: __version__,
    2: pa.__version__,  # the version of Arrow
    3: False,  # read only: statements make, refresh and drop materialized views
    4: True,  # SQL
    5: False,  # Substrait
    8: 0,  # transactions: none
    9: True,  # a query can be cancelled
    10: False,  # bulk ingestion
    11: False,  # in a transaction
    100: 0,  # a statement's time limit is the server's
    101: 0,
    500: False,  # DDL of catalogs
    501: False,  # of schemas
    502: False,  # of tables
    503: 0,  # names without quotes: in any case
    504: '"',
    505: 3,  # names in quotes: as they are
    506: False,  # a table that is listed may need a further privilege to be read
    507: 0,  # nulls are greater than all values
    508: [],  # words that are reserved beyond those of the standard
    509: [],  # names of functions: of numbers, texts, the system, times
    510: [],
    511: [],
    512: [],
    513: "\\",  # escapes % and _ in patterns
    514: "$",  # in names, beyond letters, digits and _
    515: True,  # aliases of columns
    516: True,  # null + 1 is null
    517: {},  # CONVERT
    518: True,  # aliases of tables
    519: False,  # they may be names of tables
    520: True,  # ORDER BY expressions
    521: True,  # and columns that are not selected
    522: _Bits(0b11),  # GROUP BY, also columns that are not selected
    523: True,  # LIKE … ESCAPE
    524: True,  # columns without nulls
    525: _Bits(0b1),  # ODBC's minimal grammar
    526: _Bits(0b1),  # SQL-92, entry level
    527: False,  # foreign keys
    528: _Bits(0b111),  # outer joins, full ones, too
    529: "schema",
    530: "",
    531: "catalog",
    532: True,  # catalog.schema.table
    533: _Bits(0),  # schemas and catalogs in calls, definitions of indexes, grants
    534: _Bits(0),
    535: _Bits(0),  # positioned updates
    536: False,  # SELECT … FOR UPDATE
    537: False,  # procedures
    538: _Bits(0b111),  # subqueries in comparisons, EXISTS, IN; of ALL and ANY only those that are IN or NOT IN
    539: True,  # correlated ones
    540: _Bits(0b11),  # UNION, UNION ALL
    **dict.fromkeys((*range(541, 556), *range(557, 562)), _NO_LIMIT),  # lengths of names and the like
    556: True,  # … of rows, with their blobs
    562: 0,  # isolation: no transactions
    563: False,
    564: _Bits(0b1),
    565: False,
    566: False,
    567: _Bits(0b10),  # results are read forward
    568: _Bits(0),
    569: _Bits(0b10),  # and are read only
    570: _Bits(0),
    571: _Bits(0),
    572: False,  # batches of updates
    573: False,  # savepoints
    574: False,  # named parameters
    575: False,
    576: False,
}
"""What the server can do, by the numbers of the format."""

_TYPE_OF_VALUE: dict[type, int] = {str: 0, bool: 1, int: 2, _Bits: 3, list: 4, dict: 5}
"""Positions in the union of values."""


def sql_info(numbers: Sequence[int]) -> pa.RecordBatch:
    """Return what the server can do, for these numbers of the format; all that it tells without numbers."""
    wanted = [number for number in _INFO if not numbers or number in numbers]
    children: list[list[Any]] = [[] for _ in _INFO_VALUE]
    types, offsets = [], []
    for number in wanted:
        value = _INFO[number]
        kind = _TYPE_OF_VALUE[type(value)]
        types.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(list(value.items()) if isinstance(value, dict) else value)
    values = pa.UnionArray.from_dense(
        pa.array(types, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(child, field.type) for child, field in zip(children, _INFO_VALUE, strict=True)],
        [field.name for field in _INFO_VALUE],
    )
    return pa.RecordBatch.from_arrays([pa.array(wanted, pa.uint32()), values.cast(_INFO_VALUE)], schema=SQL_INFO_SCHEMA)


def _whole(name: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, pa.int32(), nullable=nullable)


def _flag(name: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, pa.bool_(), nullable=nullable)


TYPE_INFO_SCHEMA = pa.schema(
    [
        pa.field("type_name", _TEXT, nullable=False),
        _whole("data_type", nullable=False),
        _whole("column_size"),
        pa.field("literal_prefix", _TEXT),
        pa.field("literal_suffix", _TEXT),
        pa.field("create_params", pa.list_(pa.field("item", _TEXT, nullable=False))),
        _whole("nullable", nullable=False),
        _flag("case_sensitive", nullable=False),
        _whole("searchable", nullable=False),
        _flag("unsigned_attribute"),
        _flag("fixed_prec_scale", nullable=False),
        _flag("auto_increment"),
        pa.field("local_type_name", _TEXT),
        _whole("minimum_scale"),
        _whole("maximum_scale"),
        _whole("sql_data_type", nullable=False),
        _whole("datetime_subcode"),
        _whole("num_prec_radix"),
        _whole("interval_precision"),
    ]
)
_NUMBER, _TIME, _QUOTED, _BYTES = "number", "time", "quoted", "bytes"
_TYPES: tuple[tuple[str, int, int | None, str], ...] = (
    # name, code of XDBC, size in digits or characters, kind
    ("BOOLEAN", -7, 1, ""),
    ("TINYINT", -6, 3, _NUMBER),
    ("TINYINT UNSIGNED", -6, 3, _NUMBER),
    ("BIGINT", -5, 19, _NUMBER),
    ("BIGINT UNSIGNED", -5, 20, _NUMBER),
    ("VARBINARY", -3, None, _BYTES),
    ("DECIMAL", 3, 76, _NUMBER),
    ("INTEGER", 4, 10, _NUMBER),
    ("INTEGER UNSIGNED", 4, 10, _NUMBER),
    ("SMALLINT", 5, 5, _NUMBER),
    ("SMALLINT UNSIGNED", 5, 5, _NUMBER),
    ("REAL", 7, 7, _NUMBER),
    ("DOUBLE", 8, 15, _NUMBER),
    ("INTERVAL", 10, None, _QUOTED),
    ("VARCHAR", 12, None, _QUOTED),
    ("DATE", 91, 10, _TIME),
    ("TIME", 92, 18, _TIME),
    ("TIMESTAMP", 93, 29, _TIME),
)
"""The types of DataFusion's SQL, in the order of their codes, as the format has it."""
_NULLABLE, _SEARCHABLE, _DATETIME = 1, 3, 9


def type_info(data_type: int | None) -> pa.RecordBatch:
    """Return the types of SQL, or those with a code of XDBC."""
    rows = [_type_row(*row) for row in _TYPES if data_type is None or row[1] == data_type]
    return pa.RecordBatch.from_pylist(rows, schema=TYPE_INFO_SCHEMA)


def _type_row(name: str, code: int, size: int | None, kind: str) -> dict[str, Any]:
    prefixes = {_TIME: f"{name} '", _QUOTED: "'", _BYTES: "X'"}
    is_decimal = name == "DECIMAL"
    return {
        "type_name": name,
        "data_type": code,
        "column_size": size,
        "literal_prefix": prefixes.get(kind),
        "literal_suffix": "'" if kind in prefixes else None,
        "create_params": ["precision", "scale"] if is_decimal else None,
        "nullable": _NULLABLE,
        "case_sensitive": kind == _QUOTED,
        "searchable": _SEARCHABLE,
        "unsigned_attribute": name.endswith("UNSIGNED") if kind == _NUMBER else None,
        "fixed_prec_scale": False,
        "auto_increment": False if kind == _NUMBER else None,
        "local_type_name": name,
        "minimum_scale": 0 if is_decimal else None,
        "maximum_scale": size if is_decimal else None,
        "sql_data_type": _DATETIME if kind == _TIME else code,
        "datetime_subcode": code - 90 if kind == _TIME else None,
        "num_prec_radix": 10 if kind == _NUMBER else None,
        "interval_precision": None,
    }


MAX_ROWS = 100_000
_PAGE = 500
_KINDS = (BASE_TABLE, VIEW)


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
    if not _is_ours(command) or (types and types.isdisjoint(_KINDS)):
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
    for kind in _KINDS:
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
