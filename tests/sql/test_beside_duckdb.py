"""What SQL answers, beside DuckDB over the rows and columns that the reader may see: of tables, views, views of views.

DuckDB gets the visible rows as its tables and the same views, so it also says what a policy beneath a view means.
"""

from __future__ import annotations

import datetime
import math
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from tests.sql.conftest import Queries
from tiltyard.catalog.views import create_view
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.tables.query.query import count_table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 60
DAY = datetime.date(2024, 1, 1)
ORDERS = pa.table(
    {
        "id": pa.array(range(1, ROWS + 1), pa.int64()),
        "team": [("red", "blue", "green")[n % 3] for n in range(ROWS)],
        "price": [round(n * 1.25, 2) if n % 7 else None for n in range(ROWS)],
        "amount": pa.array([n % 11 for n in range(ROWS)], pa.int32()),
        "day": [DAY + datetime.timedelta(days=n % 20) for n in range(ROWS)],
        "note": [f"note {n}%" if n % 4 else None for n in range(ROWS)],
        "secret": [f"s{n}" for n in range(ROWS)],
    }
)
TEAMS = pa.table({"name": ["red", "blue", "pink"], "boss": ["ann", "bob", None], "size": [3, 5, 8]})
VIEWS = {
    "plain": "SELECT id, team, price, amount, day, note FROM orders",
    "nested": "SELECT * FROM plain WHERE id > 0",
    "recent": "SELECT id, team, price, amount, day, note FROM nested WHERE day >= DATE '2024-01-05'",
    "totals": "SELECT team, count(*) AS n, sum(price) AS total, max(day) AS latest FROM plain GROUP BY team",
    "led": "SELECT o.id, o.team, t.boss FROM nested o LEFT JOIN teams t ON t.name = o.team",
}
SOURCES = ("orders", "plain", "nested", "recent")
OVER_EACH = (
    "SELECT count(*) AS n, count(price) AS p, min(price) AS a, max(price) AS b, avg(price) AS c FROM {s}",
    "SELECT id, team FROM {s} WHERE team = 'red' AND price > 10 ORDER BY id",
    "SELECT team, sum(amount) AS s FROM {s} GROUP BY team HAVING count(*) > 3 ORDER BY team",
    "SELECT id, row_number() OVER (PARTITION BY team ORDER BY id DESC) AS r FROM {s}",
    "SELECT id, lag(amount) OVER (ORDER BY id) AS l, sum(amount) OVER (ORDER BY id ROWS 2 PRECEDING) AS s FROM {s}",
    "SELECT DISTINCT amount, team FROM {s} WHERE note IS NOT NULL",
    "SELECT id FROM {s} WHERE note LIKE 'note 1%' ORDER BY id LIMIT 3 OFFSET 1",
    "SELECT id FROM {s} WHERE note LIKE '%\\%' ESCAPE '\\' AND id < 9",
    "SELECT o.id, t.boss FROM {s} o JOIN teams t ON t.name = o.team WHERE t.size > 3",
    "SELECT t.name, count(o.id) AS n FROM teams t LEFT JOIN {s} o ON t.name = o.team GROUP BY t.name",
    "SELECT t.name FROM teams t WHERE NOT EXISTS (SELECT 1 FROM {s} o WHERE o.team = t.name)",
    "SELECT id FROM {s} WHERE team IN (SELECT name FROM teams WHERE size < 5)",
    "SELECT id FROM {s} WHERE team = ANY(SELECT name FROM teams)",
    "SELECT id FROM {s} WHERE id + 1 <> ALL (SELECT size FROM teams) AND NOT team = SOME(SELECT name FROM teams)",
    "SELECT id FROM {s} WHERE team NOT IN (SELECT boss FROM teams) AND id < 50",
    "SELECT id FROM {s} WHERE note NOT IN (SELECT note FROM {s} WHERE id < 20 AND note IS NOT NULL)",
    "SELECT id FROM {s} WHERE price IN (SELECT price FROM {s} WHERE id < 9)",
    "SELECT id, (SELECT max(size) FROM teams t WHERE t.name = o.team) AS m FROM {s} o",
    "SELECT o.id, x.boss FROM {s} o, LATERAL (SELECT boss FROM teams t WHERE t.name = o.team) x",
    "SELECT id FROM {s} WHERE price > (SELECT avg(price) FROM {s})",
    "WITH big AS (SELECT * FROM {s} WHERE amount > 5) SELECT a.id FROM big a JOIN big b ON a.id = b.id + 11",
    "SELECT id FROM {s} WHERE id < 5 UNION SELECT id FROM {s} WHERE id > 55 EXCEPT SELECT 57",
    "SELECT team FROM {s} INTERSECT SELECT name FROM teams",
    "SELECT CASE WHEN price IS NULL THEN 'none' WHEN price < 30 THEN 'low' END AS c, count(*) AS n FROM {s} GROUP BY 1",
    "SELECT date_trunc('month', day) AS m, count(*) AS n FROM {s} GROUP BY 1",
    "SELECT upper(team) || '-' || CAST(id AS VARCHAR) AS k, coalesce(note, '?') AS t FROM {s} WHERE id % 9 = 0",
    "SELECT team, count(*) FILTER (WHERE price > 20) AS f FROM {s} GROUP BY ROLLUP (team)",
    "SELECT a.id FROM {s} a FULL JOIN orders b ON a.id = b.id AND b.amount > 3 WHERE a.amount = 2 OR b.amount = 4",
)
OVER_ALL = (
    "SELECT * FROM totals ORDER BY team",
    "SELECT l.boss, t.total FROM led l JOIN totals t ON t.team = l.team WHERE l.id < 10",
    "SELECT team FROM totals WHERE n = (SELECT max(n) FROM totals)",
    "SELECT r.id, p.id AS other FROM recent r JOIN plain p ON r.id = p.id + 1 JOIN orders o ON o.id = p.id",
)


def visible(reader: str | None) -> pa.Table:
    """The rows and columns of `orders` that a reader may see."""
    rows = ORDERS.to_pylist()
    match reader:
        case "rows":
            rows = [row for row in rows if row["team"] == "red" or row["id"] > 50]
        case "masks":
            rows = [row | {"price": None, "team": row["team"][0]} for row in rows]
        case "hides":
            return ORDERS.drop_columns(["secret"])
        case "both":
            rows = [row | {"amount": None} for row in rows if row["price"] is not None]
            return pa.Table.from_pylist(rows, ORDERS.schema).drop_columns(["secret"])
    return pa.Table.from_pylist(rows, ORDERS.schema)


POLICIES: dict[str, tuple[str | None, dict[str, str]]] = {
    "rows": ("team = 'red' OR id > 50", {}),
    "masks": (None, {"price": "null", "team": "left(team, 1)"}),
    "hides": (None, {"secret": "hide"}),
    "both": ("price IS NOT NULL", {"secret": "hide", "amount": "null"}),
}
"""The policy that binds each reader, while its answers are compared."""


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    folder: Path = tmp_path_factory.mktemp("beside")
    made = Queries(folder / "root")
    for name, data in ("orders", ORDERS), ("teams", TEAMS):
        made.add_table(Id((name,)), data)
    for name, query in VIEWS.items():
        create_view(made.context(), models.CreateViewRequest(id=[name], query=query))
    for reader in POLICIES:
        made.grant(reader, "read", namespace=())
    yield made
    made.services.close()


@pytest.mark.parametrize(
    "reader",
    [
        *(None, "masks", "both"),  # both: the row filter and what is hidden, too
        *(pytest.param(reader, marks=pytest.mark.extended) for reader in ("rows", "hides")),
    ],
)
def test_answers_are_those_of_duckdb_over_the_visible_rows(queries: Queries, reader: str | None) -> None:
    if reader is not None:
        row_filter, masks = POLICIES[reader]
        queries.restrict(("orders",), row_filter, **masks)
    database = duckdb.connect()
    database.register("orders", visible(reader))
    database.register("teams", TEAMS)
    for name, query in VIEWS.items():
        database.execute(f"CREATE VIEW {name} AS {query}")
    statements = [query.format(s=source) for query in OVER_EACH for source in SOURCES]
    wrong = []
    for statement in (*statements, *OVER_ALL):
        expected = database.execute(statement).fetchall()
        found = [tuple(row.values()) for row in queries.rows(statement, reader)]
        if canonical(found) != canonical(expected):
            wrong.append((statement, found[:3], expected[:3]))
    assert not wrong, wrong[:5]
    for name in ("orders", *VIEWS):
        count = count_table_rows(queries.context(reader), models.CountTableRowsRequest(id=[name]))
        assert database.execute(f"SELECT count(*) FROM {name}").fetchall() == [(count,)], name


def canonical(rows: list[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """Rows without an order, each value as both engines have it."""
    return sorted(tuple(map(_text, row)) for row in rows)


def _text(value: Any) -> str:
    match value:
        case None:
            return "null"
        case float() if math.isfinite(value):
            return f"{value:.6f}"
        case datetime.datetime():
            return value.date().isoformat()
        case bool() | str() | datetime.date():
            return str(value)
    return f"{float(value):.6f}"
