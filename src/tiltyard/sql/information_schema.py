"""The schema `information_schema`: the tables and columns of the catalog that the reader can see.

Tables below mounts are not listed: another catalog has them. Rows are read page by page while the query runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.access.filtered_lists import list_all_tables
from tiltyard.model.ids import Id
from tiltyard.sql.reading import RowsOnDemand, visible_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tiltyard.context import Context

INFORMATION_SCHEMA = "information_schema"
CATALOG_NAME = "tiltyard"
BASE_TABLE = "BASE TABLE"
VIEW = "VIEW"
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


@dataclass(frozen=True, slots=True)
class SchemaTable:
    """A table or a view, in the schema that its namespace is."""

    schema: str
    path: Id
    is_view: bool

    @property
    def type(self) -> str:
        """Return its type, as the standard has it."""
        return VIEW if self.is_view else BASE_TABLE


def tables_of_schemas(ctx: Context, size: int) -> Iterator[list[SchemaTable]]:
    """Yield the tables and views that the caller can see within its database, in lists of up to `size`.

    Tables without data, which are only declared, are none of them.
    """
    after = None
    while True:
        ctx.check_deadline()
        page = list_all_tables(ctx, after, size, True)
        declared = ctx.store.declared_among(page)
        yield [
            SchemaTable(name, Id((*table.namespace, table.name)), bool(is_view))
            for table, is_view in ((table, declared.get((table.namespace_id, table.name))) for table in page)
            if is_view is not False and (name := schema_name(table.namespace, ctx.database)) is not None
        ]
        if len(page) < size:
            return
        after = page[-1].namespace_id, page[-1].name


class InformationSchema:
    """The schema for one query."""

    table_names: frozenset[str] = frozenset()

    def __init__(self, ctx: Context, source: Callable[[RowsOnDemand], Any]) -> None:
        """`ctx` is that of the view which names this schema, if one does; `source` makes a table of rows."""
        self._ctx = ctx
        self._source = source

    def table(self, name: str) -> Any:
        sources = {
            "schemata": RowsOnDemand(_SCHEMATA, lambda _: self._schemata()),
            "tables": RowsOnDemand(_TABLES, lambda _: self._list(_TABLES, _PAGE, self._table_rows)),
            "columns": RowsOnDemand(_COLUMNS, lambda _: self._list(_COLUMNS, _COLUMNS_PAGE, self._column_rows)),
        }
        return self._source(sources[name]) if name in sources else None

    def table_exist(self, name: str) -> bool:
        return name in ("schemata", "tables", "columns")

    def _schemata(self) -> Iterator[pa.RecordBatch]:
        names = {table.schema for page in self._pages(_PAGE) for table in page}
        rows = [{"catalog_name": CATALOG_NAME, "schema_name": name} for name in sorted(names | {PUBLIC_SCHEMA})]
        yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMATA)

    def _list(
        self, schema: pa.Schema, size: int, describe: Callable[[SchemaTable], list[dict[str, Any]]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield a batch for each page of tables."""
        for page in self._pages(size):
            rows = [row for table in page for row in describe(table)]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    def _pages(self, size: int) -> Iterator[list[SchemaTable]]:
        return tables_of_schemas(self._ctx, size)

    @staticmethod
    def _table_rows(table: SchemaTable) -> list[dict[str, Any]]:
        return [
            {
                "table_catalog": CATALOG_NAME,
                "table_schema": table.schema,
                "table_name": table.path.name,
                "table_type": table.type,
            }
        ]

    def _column_rows(self, table: SchemaTable) -> list[dict[str, Any]]:
        self._ctx.check_deadline()
        schema = visible_schema(self._ctx, table.path)
        return [
            {
                "table_catalog": CATALOG_NAME,
                "table_schema": table.schema,
                "table_name": table.path.name,
                "column_name": field.name,
                "ordinal_position": position,
                "data_type": str(field.type),
                "is_nullable": "YES" if field.nullable else "NO",
            }
            for position, field in enumerate(schema, 1)
        ]
