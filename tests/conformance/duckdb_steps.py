"""The statements of DuckDB with its extension for Lance, with their expected results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLUMNS = "id BIGINT, name VARCHAR, vec FLOAT[2]"
VALUES = "(1, 'ann', [1, 0]), (2, 'bob', [0, 1]), (3, 'cleo', [1, 1])"
MERGED = "(SELECT 1 AS id, 'anna' AS name UNION ALL SELECT 9, 'new')"
NEAREST = "'lake.main.people', 'vec', [1.0, 0.0]::FLOAT[2]"


@dataclass(frozen=True, slots=True)
class Step:
    """A statement, whose catalog is `lake`; FOLDER is one for files.

    `rows` is what it gives, in any order; None is not looked at. `known` names a fault of the client's own, whose error
    has `refusal` in it. A step that is `anew` is run in a new session, since a session goes on with what it has seen.
    """

    what: str
    sql: str
    rows: Sequence[Sequence[object]] | None = None
    refusal: str = ""
    known: str = ""
    anew: bool = False


TRANSACTIONS = "no DDL in transactions"
NO_SUPPORT = "not supported"

TABLES = (
    Step("list tables", "SHOW ALL TABLES", []),
    Step("create a table", f"CREATE TABLE lake.main.people ({COLUMNS})"),
    Step("create it if it is missing", f"CREATE TABLE IF NOT EXISTS lake.main.people ({COLUMNS})"),
    Step("create it again", f"CREATE TABLE lake.main.people ({COLUMNS})", refusal="already exists"),
    Step("list tables of the schema", "SHOW TABLES FROM lake.main", [["people"]]),
    Step("insert", f"INSERT INTO lake.main.people VALUES {VALUES}", [[3]]),
    Step("list again, since CTAS needs a list after CREATE", "SHOW ALL TABLES"),
    Step("create a table of a query", "CREATE TABLE lake.main.made AS SELECT id FROM lake.main.people", [[3]]),
    Step("read it", "SELECT count(id) FROM lake.main.made", [[3]], anew=True),
)
ROWS = (
    Step("read", "SELECT id, name FROM lake.main.people", [[1, "ann"], [2, "bob"], [3, "cleo"]], anew=True),
    Step("filter, within Lance", "SELECT vec FROM lake.main.people WHERE id > 1 AND name LIKE 'b%'", [[[0.0, 1.0]]]),
    Step("order and limit", "SELECT id FROM lake.main.people ORDER BY id DESC LIMIT 1", [[3]]),
    Step("aggregate", "SELECT count(*), min(id), max(name) FROM lake.main.people", [[3, 1, "cleo"]]),
    Step("insert from a query", "INSERT INTO lake.main.people SELECT id + 3, name, vec FROM lake.main.people", [[3]]),
    Step("update", "UPDATE lake.main.people SET name = 'bo' WHERE id = 2", [[1]]),
    Step("delete", "DELETE FROM lake.main.people WHERE id > 3", [[3]]),
    Step(
        "merge",
        f"MERGE INTO lake.main.people p USING {MERGED} s ON p.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name"
        " WHEN NOT MATCHED THEN INSERT (id, name, vec) VALUES (s.id, s.name, [0, 0])",
        [[2]],
    ),
    Step(
        "see all that",
        "SELECT id, name FROM lake.main.people",
        [[1, "anna"], [2, "bo"], [3, "cleo"], [9, "new"]],
    ),
    Step("begin", "BEGIN"),
    Step("insert in a transaction", "INSERT INTO lake.main.people VALUES (10, 'ten', [0, 0])", [[1]]),
    Step("roll back", "ROLLBACK"),
    Step("begin", "BEGIN"),
    Step("delete in a transaction", "DELETE FROM lake.main.people WHERE id = 9", [[1]]),
    Step("commit", "COMMIT"),
    Step("see what was committed", "SELECT id FROM lake.main.people", [[1], [2], [3]]),
    Step("write a file", "COPY lake.main.people TO 'FOLDER/people.parquet'", [[3]]),
    Step("read a file in", "COPY lake.main.made FROM 'FOLDER/ids.csv'", [[2]]),
    Step("see the rows of the file", "SELECT id FROM lake.main.made WHERE id > 99", [[100], [101]]),
    Step("truncate", "TRUNCATE lake.main.made"),
    Step("see no rows", "SELECT id FROM lake.main.made", []),
    Step(
        "return what is written",
        "INSERT INTO lake.main.people VALUES (4, 'd', [0, 0]) RETURNING id",
        refusal="RETURNING",
        known=NO_SUPPORT,
    ),
    Step(
        "insert or ignore",
        "INSERT INTO lake.main.people VALUES (4, 'd', [0, 0]) ON CONFLICT DO NOTHING",
        refusal="ON CONFLICT",
        known=NO_SUPPORT,
    ),
    Step(
        "an earlier version",
        "SELECT id FROM lake.main.people AT (VERSION => 1)",
        refusal="time travel",
        known=NO_SUPPORT,
    ),
)
COLUMN_CHANGES = (
    Step("add a column", "ALTER TABLE lake.main.people ADD COLUMN age INTEGER DEFAULT 7"),
    Step("rename it", "ALTER TABLE lake.main.people RENAME COLUMN age TO years"),
    Step("change its type", "ALTER TABLE lake.main.people ALTER COLUMN years TYPE BIGINT"),
    Step("comment on a table", "COMMENT ON TABLE lake.main.people IS 'who is here'"),
    Step("comment on a column", "COMMENT ON COLUMN lake.main.people.years IS 'of age'"),
    Step("see the column", "SELECT DISTINCT years FROM lake.main.people", [[7]], anew=True),
    Step("drop it", "ALTER TABLE lake.main.people DROP COLUMN years"),
    Step(
        "add a column of an expression",
        "ALTER TABLE lake.main.people ADD COLUMN twice BIGINT DEFAULT (1 + 1)",
        refusal="explicit transactions",
        known=TRANSACTIONS,
    ),
    Step("leave that transaction", "ROLLBACK"),
    Step(
        "rename a table",
        "ALTER TABLE lake.main.people RENAME TO folk",
        refusal="not supported",
        known=NO_SUPPORT,
        anew=True,
    ),
)
INDEXES = (
    Step("a scalar index", "CREATE INDEX id_idx ON lake.main.people(id) USING BTREE", anew=True),
    Step("a text index", "CREATE INDEX name_idx ON lake.main.people(name) USING INVERTED"),
    Step(
        "a vector index",
        "CREATE INDEX vec_idx ON lake.main.people(vec) USING IVF_FLAT WITH (num_partitions = 1, metric_type = 'l2')",
    ),
    Step("list indexes", "SHOW INDEXES ON lake.main.people"),
    Step("extend an index", "ALTER INDEX id_idx ON lake.main.people OPTIMIZE"),
    Step("drop an index", "DROP INDEX id_idx ON lake.main.people"),
    Step(
        "an index without its kind",
        "CREATE INDEX plain_idx ON lake.main.people(id)",
        refusal="can only be created on DuckDB tables",
        known=NO_SUPPORT,
    ),
    Step(
        "vector search, by the server",
        f"SELECT id FROM lance_vector_search({NEAREST}, k = 1)",
        [[1]],
    ),
    Step(
        "vector search with a filter",
        f"SELECT id FROM lance_vector_search({NEAREST}, k = 1, prefilter = true, filter = 'id > 1')",
        [[3]],
    ),
    Step("text search, by the server", "SELECT id FROM lance_fts('lake.main.people', 'name', 'cleo', k = 2)", [[3]]),
    Step(
        "hybrid search, in the files",
        f"SELECT id FROM lance_hybrid_search({NEAREST}, 'name', 'anna', k = 1)",
        [[1]],
    ),
)
UPKEEP = (
    Step("compact", "OPTIMIZE lake.main.people"),
    Step("delete old versions, behind the server", "VACUUM LANCE lake.main.people"),
    Step("see that the rows are there", "SELECT id FROM lake.main.people", [[1], [2], [3]], anew=True),
    Step("list tables", "SHOW ALL TABLES"),
    Step("copy the database", "COPY FROM DATABASE lake TO memory"),
    Step("see the copy", "SELECT count(*) FROM memory.main.people", [[3]]),
)
DROPS = (
    Step("replace a table", "CREATE OR REPLACE TABLE lake.main.made (n INTEGER)", anew=True),
    Step("drop a table", "DROP TABLE lake.main.made", anew=True),
    Step("drop it if it is there", "DROP TABLE IF EXISTS lake.main.people", anew=True),
)
STEPS = (*TABLES, *ROWS, *COLUMN_CHANGES, *INDEXES, *UPKEEP, *DROPS)

FROM_THE_ROOT = "it asks for a drop of the root's table of that name"
WITHOUT_DATABASE: Mapping[str, tuple[str, str]] = {
    "replace a table": ("Table not found", FROM_THE_ROOT),
    "drop a table": ("Table not found", FROM_THE_ROOT),
    "drop it if it is there": ("Table not found", FROM_THE_ROOT),
}
"""Where `ATTACH 'ns'` fails: a part of the error, and the client's fault."""
