"""The schema `information_schema`: the tables and columns of the catalog that the reader can see.

Tables below mounts are not listed: another catalog has them. Rows are read page by page while the query runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.access.filtered_lists import list_all_tables
from tiltyard.model.ids import Id
from tiltyard.sql.row_sources import RowSource
from tiltyard.sql.visible_schemas import visible_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tiltyard.context import Context
    from tiltyard.sql.tables import QueryTables
    from tiltyard.store import ListedTable

INFORMATION_SCHEMA = "information_schema"
CATALOG_NAME = "tiltyard"
BASE_TABLE = "BASE TABLE"
PUBLIC_SCHEMA = "public"
_PAGE = 500
_COLUMNS_PAGE = 50

_TEXT = pa.string()
_SCHEMATA = pa.schema([("catalog_name", _TEXT), ("schema_name", _TEXT)])
_TABLES = pa.schema([(name, _TEXT) for name in ("table_catalog", "table_schema", "table_name", "table_type")])
_COLUMNS = pa.schema(
    [(name, _TEXT) for name in ("table_catalog", "table_schema", "table_name", "column_name")]
    + [("ordinal_position", pa.int32()), ("data_type", _TEXT), ("is_nullable", _TEXT)]
)


def schema_name(namespace: Sequence[str], database: Id) -> str | None:
    """Return the name of the schema that a namespace is: `public` for the database itself, nested ones joined by "$".

    None for a namespace that is not within the database.
    """
    path = Id(namespace)
    if path[: len(database)] != database:
        return None
    return str(Id(path[len(database) :])) if len(path) > len(database) else PUBLIC_SCHEMA


def tables_of_schemas(ctx: Context, size: int) -> Iterator[list[tuple[str, ListedTable]]]:
    """Yield the tables that the caller can see within its database, each with its schema, in lists of up to `size`."""
    after = None
    while True:
        ctx.check_deadline()
        page = list_all_tables(ctx, after, size, False)
        named = ((schema_name(table.namespace, ctx.database), table) for table in page)
        yield [(name, table) for name, table in named if name is not None]
        if len(page) < size:
            return
        after = page[-1].namespace_id, page[-1].name


class InformationSchema:
    """The schema for one query."""

    table_names: frozenset[str] = frozenset()

    def __init__(self, tables: QueryTables) -> None:
        self._tables = tables

    def table(self, name: str) -> Any:
        sources = {
            "schemata": RowSource(_SCHEMATA, lambda _: self._schemata()),
            "tables": RowSource(_TABLES, lambda _: self._list(_TABLES, _PAGE, self._table_rows)),
            "columns": RowSource(_COLUMNS, lambda _: self._list(_COLUMNS, _COLUMNS_PAGE, self._column_rows)),
        }
        return self._tables.source(sources[name]) if name in sources else None

    def table_exist(self, name: str) -> bool:
        return name in ("schemata", "tables", "columns")

    def _schemata(self) -> Iterator[pa.RecordBatch]:
        names = {schema for page in self._pages(_PAGE) for schema, _ in page}
        rows = [{"catalog_name": CATALOG_NAME, "schema_name": name} for name in sorted(names | {PUBLIC_SCHEMA})]
        yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMATA)

    def _list(
        self, schema: pa.Schema, size: int, describe: Callable[[str, ListedTable], list[dict[str, Any]]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield a batch for each page of tables."""
        for page in self._pages(size):
            rows = [row for name, table in page for row in describe(name, table)]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    def _pages(self, size: int) -> Iterator[list[tuple[str, ListedTable]]]:
        """Yield the tables within the database, each with its schema."""
        return tables_of_schemas(self._tables.ctx, size)

    @staticmethod
    def _table_rows(schema_name: str, table: ListedTable) -> list[dict[str, Any]]:
        return [
            {
                "table_catalog": CATALOG_NAME,
                "table_schema": schema_name,
                "table_name": table.name,
                "table_type": BASE_TABLE,
            }
        ]

    def _column_rows(self, schema_name: str, table: ListedTable) -> list[dict[str, Any]]:
        self._tables.ctx.check_deadline()
        schema = visible_schema(self._tables.ctx, Id((*table.namespace, table.name)))
        return [
            {
                "table_catalog": CATALOG_NAME,
                "table_schema": schema_name,
                "table_name": table.name,
                "column_name": field.name,
                "ordinal_position": position,
                "data_type": str(field.type),
                "is_nullable": "YES" if field.nullable else "NO",
            }
            for position, field in enumerate(schema, 1)
        ]
