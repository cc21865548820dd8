"""The statements of lance-spark, with their expected results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

PEOPLE = "id BIGINT NOT NULL, name STRING, vector ARRAY<FLOAT> NOT NULL"
FIXED = "TBLPROPERTIES ('vector.arrow.fixed-size-list.size' = '2')"
VALUES = "(1, 'ann', array(1f, 0f)), (2, 'bob', array(0f, 1f)), (3, 'cleo', array(1f, 1f))"


@dataclass(frozen=True, slots=True)
class Step:
    """A statement (`CAT` is the catalog), or a name in the driver's FRAMES with its table.

    `rows` is what it gives, in any order; None is not looked at. `refusal` is a part of the error it must end with.
    `known` names a fault of the client's own, where this version of it has one.
    """

    what: str
    sql: str = ""
    rows: Sequence[Sequence[object]] | None = None
    refusal: str = ""
    frame: str = ""
    table: str = ""
    known: str = ""

    def request(self, catalog: str) -> dict[str, str]:
        if self.sql:
            return {"sql": self.sql.replace("CAT", catalog)}
        return {"frame": self.frame, "table": self.table.replace("CAT", catalog)}

    @property
    def shown(self) -> str:
        return self.sql.replace("CAT", "lance") or FRAMES[self.frame]


FRAMES = {
    "create": "df.writeTo(table).create()",
    "append": "df.writeTo(table).append()",
    "overwrite": "df.writeTo(table).overwrite(lit(True))",
    "create_or_replace": "df.writeTo(table).createOrReplace()",
    "save_as_table": 'df.write.format("lance").mode("append").saveAsTable(table)',
    "insert_into": "df.write.insertInto(table)",
    "count": "spark.table(table).count()",
    "first_version": 'spark.read.option("version", "1").table(table).count()',
    "top": 'spark.table(table).orderBy(desc("id")).limit(2)',
}
"""How what the driver does is written."""

NAMESPACES = (
    Step("list namespaces", "SHOW NAMESPACES IN CAT", []),
    Step("create a namespace", "CREATE NAMESPACE CAT.team"),
    Step("create a nested one", "CREATE NAMESPACE CAT.team.inner"),
    Step("create it again", "CREATE NAMESPACE CAT.team", refusal="SCHEMA_ALREADY_EXISTS"),
    Step("create it if it is missing", "CREATE NAMESPACE IF NOT EXISTS CAT.team"),
    Step("describe it", "DESCRIBE NAMESPACE CAT.team"),
    Step("list namespaces in it", "SHOW NAMESPACES IN CAT.team", [["team.inner"]]),
)

ROWS = (
    Step("create a table", f"CREATE TABLE CAT.team.people ({PEOPLE}) {FIXED}"),
    Step("create it again", "CREATE TABLE CAT.team.people (id BIGINT)", refusal="TABLE_OR_VIEW_ALREADY_EXISTS"),
    Step("create it if it is missing", "CREATE TABLE IF NOT EXISTS CAT.team.people (id BIGINT)"),
    Step("insert", f"INSERT INTO CAT.team.people VALUES {VALUES}"),
    Step("read", "SELECT id, name FROM CAT.team.people", [[1, "ann"], [2, "bob"], [3, "cleo"]]),
    Step("read vectors", "SELECT vector FROM CAT.team.people WHERE id = 1", [[[1.0, 0.0]]]),
    Step("filter", "SELECT name FROM CAT.team.people WHERE id > 1 AND name LIKE 'b%'", [["bob"]]),
    Step("count", "SELECT count(*) FROM CAT.team.people", [[3]]),
    Step("row addresses", "SELECT _rowid, _rowaddr, _fragid FROM CAT.team.people WHERE id = 1", None),
    Step("update", "UPDATE CAT.team.people SET name = 'bo' WHERE id = 2"),
    Step("see the update", "SELECT name FROM CAT.team.people WHERE id = 2", [["bo"]]),
    Step("delete", "DELETE FROM CAT.team.people WHERE id = 3"),
    Step(
        "merge",
        "MERGE INTO CAT.team.people t USING (SELECT 1 AS id, 'anna' AS name UNION ALL SELECT 9, 'new') s"
        " ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name"
        " WHEN NOT MATCHED THEN INSERT (id, name, vector) VALUES (s.id, s.name, array(0f, 0f))",
    ),
    Step("see the merge", "SELECT id, name FROM CAT.team.people", [[1, "anna"], [2, "bo"], [9, "new"]]),
    Step("an earlier version", "SELECT count(*) FROM CAT.team.people VERSION AS OF 2", [[3]]),
    Step("a version by time", "SELECT count(*) FROM CAT.team.people TIMESTAMP AS OF '2999-01-01'", [[3]]),
)

TABLES = (
    Step("describe a table", "DESCRIBE TABLE CAT.team.people"),
    Step("show how it was made", "SHOW CREATE TABLE CAT.team.people"),
    Step("create from a query", "CREATE TABLE CAT.team.copy AS SELECT id, name FROM CAT.team.people"),
    Step("see the copy", "SELECT count(*) FROM CAT.team.copy", [[3]]),
    Step("overwrite", "INSERT OVERWRITE CAT.team.copy SELECT 7L AS id, 'seven' AS name"),
    Step("see what overwrote", "SELECT id, name FROM CAT.team.copy", [[7, "seven"]]),
    Step("replace", "REPLACE TABLE CAT.team.copy AS SELECT 8L AS id, 'eight' AS name"),
    Step("create or replace", "CREATE OR REPLACE TABLE CAT.team.copy AS SELECT 9L AS id, 'x' AS name, true AS more"),
    Step("see what replaced", "SELECT * FROM CAT.team.copy", [[9, "x", True]]),
    Step("list tables", "SHOW TABLES IN CAT.team", [["team", "copy", False], ["team", "people", False]]),
    Step("a table in the root", "CREATE TABLE CAT.alone AS SELECT 1L AS id", None),
    Step("list tables of the root", "SHOW TABLES IN CAT", [["", "alone", False]]),
    Step("read a table that is not there", "SELECT * FROM CAT.team.none", refusal="TABLE_OR_VIEW_NOT_FOUND"),
)

DATA_FRAMES = (
    Step("create from a frame", frame="create", table="CAT.team.frame"),
    Step("append a frame", frame="append", table="CAT.team.frame"),
    Step("count", frame="count", table="CAT.team.frame", rows=[[20]]),
    Step("append by another way", frame="save_as_table", table="CAT.team.frame"),
    Step("insert a frame", frame="insert_into", table="CAT.team.frame"),
    Step("count again", frame="count", table="CAT.team.frame", rows=[[40]]),
    Step("the first version", frame="first_version", table="CAT.team.frame", rows=[[10]]),
    Step("the largest two", frame="top", table="CAT.team.frame", rows=[[9, "x"], [9, "x"]]),
    Step("overwrite with a frame", frame="overwrite", table="CAT.team.frame"),
    Step("create or replace with a frame", frame="create_or_replace", table="CAT.team.frame"),
    Step("count what is left", frame="count", table="CAT.team.frame", rows=[[10]]),
)

COLUMNS = (
    Step(
        "name new values",
        "CREATE OR REPLACE TEMPORARY VIEW fresh AS SELECT _rowaddr, _fragid, id * 2 AS twice FROM CAT.team.people",
    ),
    Step("add a column with them", "ALTER TABLE CAT.team.people ADD COLUMNS twice FROM fresh"),
    Step("see the column", "SELECT id, twice FROM CAT.team.people", [[1, 2], [2, 4], [9, 18]]),
    Step(
        "name other values",
        "CREATE OR REPLACE TEMPORARY VIEW other AS"
        " SELECT _rowaddr, _fragid, id * 3 AS twice FROM CAT.team.people WHERE id < 5",
    ),
    Step("update a column with them", "ALTER TABLE CAT.team.people UPDATE COLUMNS twice FROM other"),
    Step("see the update", "SELECT id, twice FROM CAT.team.people", [[1, 3], [2, 6], [9, 18]]),
)

UPKEEP = (
    Step("a scalar index", "ALTER TABLE CAT.team.people CREATE INDEX by_id USING btree (id)"),
    Step(
        "a text index",
        "ALTER TABLE CAT.team.people CREATE INDEX by_name USING fts (name)"
        " WITH (base_tokenizer='simple', language='English')",
    ),
    Step("list indexes", "SHOW INDEXES FROM CAT.team.people"),
    Step("read by an index", "SELECT name FROM CAT.team.people WHERE id = 9", [["new"]]),
    Step("compact", "OPTIMIZE CAT.team.people WITH (target_rows_per_fragment=100000)"),
    Step("remove old versions", "VACUUM CAT.team.people WITH (before_version=4)"),
    Step("count what is left", "SELECT count(*) FROM CAT.team.people", [[3]]),
)

DROPS = (
    Step("drop a namespace that is not empty", "DROP NAMESPACE CAT.team", refusal="Namespace is not empty: team"),
    Step("drop a table (its files stay)", "DROP TABLE CAT.team.copy"),
    Step("drop a table and its files", "DROP TABLE CAT.team.frame PURGE"),
    Step("drop one that is not there", "DROP TABLE CAT.team.copy", refusal="TABLE_OR_VIEW_NOT_FOUND"),
    Step("drop it if it is there", "DROP TABLE IF EXISTS CAT.team.copy"),
    Step("list tables", "SHOW TABLES IN CAT.team", [["team", "people", False]]),
    Step("drop a namespace", "DROP NAMESPACE CAT.team.inner"),
    Step("drop a namespace with all in it", "DROP NAMESPACE CAT.team CASCADE"),
    Step("see that it is gone", "SHOW NAMESPACES IN CAT", []),
    Step("clean up", "DROP TABLE CAT.alone PURGE"),
)

REFUSED_BY_SPARK = (
    Step(
        "add a plain column (not in the connector)",
        "ALTER TABLE CAT.team.people ADD COLUMNS (extra STRING)",
        refusal="not supported",
    ),
    Step(
        "rename a table (not in the connector)",
        "ALTER TABLE CAT.team.copy RENAME TO CAT.team.other",
        refusal="not supported",
    ),
)
"""What lance-spark itself refuses, before it asks a server."""

WITHOUT_CREDENTIALS = (
    COLUMNS[0],
    replace(COLUMNS[1], known="lance-spark #422, mended after 0.4.0", refusal="Writing job failed"),
)
"""The commit of this statement does not use the credentials that the catalog has given it."""

BEFORE_COLUMNS = (*NAMESPACES, *ROWS, *TABLES, *DATA_FRAMES)
AFTER_COLUMNS = (*REFUSED_BY_SPARK, *UPKEEP, *DROPS)
EVERYTHING = (*BEFORE_COLUMNS, *COLUMNS, *AFTER_COLUMNS)
FEW = (
    replace(NAMESPACES[0], rows=None),
    Step("create a namespace", "CREATE NAMESPACE CAT.mine"),
    *(
        replace(step, sql=step.sql.replace("CAT.team", "CAT.mine"))
        for step in (*ROWS, Step("drop a namespace with all in it", "DROP NAMESPACE CAT.team CASCADE"))
    ),
)

STORIES = (
    ("managed", "An open server; tables managed", EVERYTHING),
    ("unmanaged", "The same; tables not managed", EVERYTHING),
    ("lake", "With an API key, on S3 with vended credentials", (*BEFORE_COLUMNS, *WITHOUT_CREDENTIALS, *AFTER_COLUMNS)),
    ("token", "With a token", FEW),
)
