"""Statements in sessions of DuckDB with its extension for Lance, for `tests.conformance.duckdb_lance`.

    python duckdb_statements.py FOLDER

Statements write their files into the folder. A line of standard input is a JSON object: `sql`, and the name of a
`session`, which is opened where it is not. The answer to each is a line of standard output that begins with MARK:
`rows`, or `error`. Imports nothing of the tests: the interpreter that runs it has another DuckDB.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_lance

MARK = "\x1e"
EXTENSION = next(Path(duckdb_extension_lance.__file__).parent.rglob("lance.duckdb_extension"))


def open_session() -> Any:
    """Open a session; the file was checked when it was installed, so its 250 MB are not hashed at each load."""
    session = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    session.load_extension(str(EXTENSION))
    return session


def answer(session: Any, sql: str) -> dict[str, Any]:
    try:
        rows = session.execute(sql).fetchall()
    except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    return {"rows": [list(row) for row in rows]}


def main() -> None:
    os.chdir(sys.argv[1])
    sessions: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["session"] not in sessions:
            sessions[request["session"]] = open_session()
        response = answer(sessions[request["session"]], request["sql"])
        print(f"{MARK}{json.dumps(response, default=str)}", flush=True)  # noqa: T201  # the parent reads it


if __name__ == "__main__":
    main()
