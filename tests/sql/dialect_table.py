"""The table of docs/sql-dialects.md: what each example answers here, in DuckDB and in PostgreSQL.

    python -m tests.sql.dialect_table     # runs each example, and writes the cells

An example is an expression, or a SELECT from behind its first word on. A cell is `=` for the answer of here, a word for
an error, or the answer.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
from lance_namespace.errors import LanceNamespaceError

from tests.services.postgres import postgres_server
from tests.sql.conftest import Queries

DOCS = Path(__file__).resolve().parents[2] / "docs/sql-dialects.md"
SAME, NONE = "=", "none"
"""A cell of an answer that is that of here, and of a dialect that has no such word, or refuses these values."""
_ROW = re.compile(r"\| `(.+?)` \| (.*?) \| (.*?) \| (.*?) \|")
_REFUSED = re.compile(r"is not served: write (.*)\.$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: an example, and its cells."""

    example: str
    here: str
    duckdb: str
    postgresql: str

    @property
    def statement(self) -> str:
        return f"SELECT {self.example}"

    @property
    def line(self) -> str:
        cells = (f"`{self.example}`", self.here, self.duckdb, self.postgresql)
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def read_rows(text: str) -> Iterator[Row]:
    """Yield the rows of the tables of a page."""
    for line in text.splitlines():
        if match := _ROW.fullmatch(line.replace(r"\|", "\N{DOUBLE VERTICAL LINE}")):
            yield Row(*(cell.replace("\N{DOUBLE VERTICAL LINE}", "|") for cell in match.groups()))


def answer_here(queries: Queries, statement: str) -> str:
    """Return a statement's answer, or its refusal with the word to use."""
    try:
        table = queries.run(statement)
    except LanceNamespaceError as error:
        match = _REFUSED.search(str(error))
        return f"refused: write {match[1]}" if match else "an error"
    return _code(to_text([tuple(row.values()) for row in table.to_pylist()]))


def answer_there(execute: Callable[[str], Any], statement: str) -> str:
    """Return what another dialect answers."""
    try:
        rows = execute(statement).fetchall()
    except (duckdb.Error, psycopg.Error):
        return NONE
    return _code(to_text(rows))


def _code(text: str) -> str:
    return f"`{text}`"


def to_text(rows: list[tuple[Any, ...]]) -> str:
    """Return rows as a text, in which values that differ by their types alone are the same."""
    return "; ".join(", ".join(map(_value_text, row)) for row in rows) or "no rows"


def _value_text(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case float() | Decimal():
            return f"{float(value):.10g}"
        case datetime.datetime():
            return str(value.replace(tzinfo=None)).removesuffix(" 00:00:00")
        case bytes():
            return value.hex()
        case list() | tuple():
            return f"[{', '.join(map(_value_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{key}: {_value_text(each)}' for key, each in value.items())}}}"
        case str() if value[:1] in ("{", "["):  # JSON, which is written with other spaces
            return re.sub(r"([:,]) ", r"\1", value)
        case "":
            return "''"
    return str(value)


def connect_duckdb() -> Callable[[str], Any]:
    """Return what runs a statement in DuckDB."""
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    return database.execute


def compared(row: Row, here: str, duckdb_answer: str, postgresql: str) -> Row:
    """Return a row with its cells."""
    return replace(
        row,
        here=here,
        duckdb=SAME if duckdb_answer == here else duckdb_answer,
        postgresql=SAME if postgresql == here else postgresql,
    )


def main() -> None:
    """Run the examples of the page, and write their cells."""
    text = DOCS.read_text("utf-8")
    in_duckdb = connect_duckdb()
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        queries = Queries(Path(folder) / "root")
        url = server.new_database().replace("postgresql+psycopg", "postgresql")
        postgres = psycopg.connect(url, autocommit=True)
        postgres.execute("SET TIME ZONE 'UTC'")
        for row in list(read_rows(text)):
            made = compared(
                row,
                answer_here(queries, row.statement),
                answer_there(in_duckdb, row.statement),
                answer_there(postgres.execute, row.statement),
            )
            text = text.replace(row.line, made.line)
        queries.services.close()
    DOCS.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
