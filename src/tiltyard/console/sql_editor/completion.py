"""What completes a query: keywords, and tables and columns as far as whoever writes it may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from tiltyard.console.browse.find import MAX_SEARCH, find
from tiltyard.console.browser_checks import HEADERS
from tiltyard.console.table.heads import parse_ref, read_head
from tiltyard.model.text.sql_text import sql_literal, sql_name, sql_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from tiltyard.console.page import PageRequest
    from tiltyard.console.table.heads import TableHead
    from tiltyard.model.ids import Id

KEYWORDS = tuple(
    """
    SELECT FROM WHERE GROUP BY ORDER BY HAVING LIMIT OFFSET JOIN LEFT RIGHT FULL INNER OUTER CROSS ON USING AS AND OR
    NOT IN IS NULL LIKE ILIKE BETWEEN EXISTS CASE WHEN THEN ELSE END DISTINCT UNION ALL INTERSECT EXCEPT WITH VALUES
    ASC DESC NULLS FIRST LAST OVER PARTITION ROWS RANGE UNBOUNDED PRECEDING FOLLOWING CURRENT ROW FILTER CAST INTERVAL
    TRUE FALSE EXPLAIN ANALYZE DESCRIBE SHOW TABLES COLUMNS CREATE REFRESH DROP MATERIALIZED VIEW QUALIFY UNNEST
    """.split()  # noqa: SIM905  # a list of words is read as one
)
MAX_LISTED_COLUMNS = 40
"""Columns that the first query of a table names; of more it takes all by *."""
MAX_LINE = 88
"""Characters of a line of names."""
FIRST_ROWS = 100


def list_tables(page: PageRequest) -> Response:
    """Return tables whose names have a text in them; `has_all` says that there are no others."""
    findings = find(page.calls, page.text("q")[:MAX_SEARCH], "name", "")
    tables = [{"path": hit.path} for hit in findings.hits]
    return JSONResponse({"tables": tables, "has_all": not findings.cursor}, headers=HEADERS)


def list_columns(page: PageRequest) -> Response:
    """Return the columns of a table that the reader may read. Raises as `read_head`."""
    head = read_head(page)
    shown = [column for column in head.columns if column.name not in head.hidden]
    columns = [{"name": column.name, "type": column.type} for column in shown]
    return JSONResponse({"columns": columns}, headers=HEADERS)


def select_from(path: Id, head: TableHead) -> str:
    """Return the query of a table's first rows, at the version that its page shows.

    Blobs, which a query does not return, and columns that policies hide are left out.
    """
    shown = [column for column in head.columns if column.kind != "blob" and column.name not in head.hidden]
    is_all = len(shown) == len(head.columns) and len(shown) > MAX_LISTED_COLUMNS
    names = ["*"] if is_all or not shown else [sql_name(column.name) for column in shown]
    return f"SELECT {_in_lines(names)}\nFROM {_source(path, head)}\nLIMIT {FIRST_ROWS}"


def _source(path: Id, head: TableHead) -> str:
    """Return the table, or the table function that reads it at a version, a tag or a branch."""
    if not head.ref:
        return sql_table(path)
    ref = parse_ref(head.ref)
    kind = next(iter(ref))
    name = ".".join((str(path.parent), path.name) if path.parent else path)
    arguments = [sql_literal(value, kind) for value in (name, *ref.values())]
    return f"table_{kind}({', '.join(arguments)})"


def _in_lines(names: Sequence[str]) -> str:
    lines = [names[0]]
    for name in names[1:]:
        if len(lines[-1]) + len(name) > MAX_LINE:
            lines[-1] += ","
            lines.append(name)
        else:
            lines[-1] += f", {name}"
    return "\n       ".join(lines)
