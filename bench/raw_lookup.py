"""A server that does a catalog's look-ups alone, as a limit: uvicorn with the same loop and parser, SQLite, JSON.

It finds a table, or a page of tables, of one namespace by one prepared statement. It has no routes, ids, principals,
limits, log, metrics or errors.
"""

from __future__ import annotations

import argparse
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import uvicorn

FIND = """
    SELECT tables.id, namespace_id, tables.name, location, tables.properties, managed FROM tables
    JOIN namespaces ON namespaces.id = namespace_id WHERE namespaces.parent_id = 1 AND namespaces.name = ?
    AND tables.name = ?
"""
PAGE = """
    SELECT tables.name FROM tables WHERE namespace_id = (SELECT id FROM namespaces WHERE parent_id = 1 AND name = ?)
    ORDER BY tables.name LIMIT ?
"""


class RawLookup:
    """The ASGI application."""

    def __init__(self, database: Path) -> None:
        self._connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer `POST /v1/table/NAMESPACE$TABLE/describe` and `GET /v1/namespace/NAMESPACE/table/list?limit=N`."""
        if scope["type"] != "http":
            return
        parts = scope["raw_path"].split(b"/")
        if scope["method"] == "POST":
            msgspec.json.decode((await receive())["body"])
            namespace, table = unquote(parts[3].decode()).split("$")
            row = self._connection.execute(FIND, (namespace, table)).fetchone()
            answer = {
                "table": table,
                "namespace": [namespace],
                "location": row[3],
                "properties": msgspec.json.decode(row[4]),
                "managed_versioning": bool(row[5]),
            }
        else:
            limit = int(scope["query_string"].rpartition(b"=")[2])
            rows = self._connection.execute(PAGE, (parts[3].decode(), limit)).fetchall()
            answer = {"tables": [row[0] for row in rows], "page_token": rows[-1][0]}
        body = msgspec.json.encode(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve a catalog's file until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    listener = socket.create_server(("127.0.0.1", 0))
    application = RawLookup(parser.parse_args().database)
    config = uvicorn.Config(
        application, http="httptools", loop="uvloop", ws="none", lifespan="off", access_log=False, log_level="warning"
    )
    print(f"raw look-ups on http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
