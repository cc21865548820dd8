"""A client of the lake in a process of its own, which a loss of power ends with everything else.

    python -m tests.power.client URL SOCKET

connects to the socket, and does one JSON command a line: the name of a function below, and its arguments.
"""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance.namespace
import pyarrow as pa

import tiltyard

Rows = dict[str, int]


def _table(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(map(int, rows), pa.int64()), "x": pa.array(rows.values(), pa.int64())})


def ingest(lake: tiltyard.Lake, url: str, table: str, rows: Rows, mode: str) -> None:
    """Create a table of rows, append or overwrite: written by threads of this process."""
    getattr(lake.table(table), "ingest" if mode == "create" else "write")(_table(rows), mode=mode)


def upsert(lake: tiltyard.Lake, url: str, table: str, rows: Rows) -> None:
    """Replace rows by their key."""
    lake.table(table).upsert(_table(rows), on="id")


def delete(lake: tiltyard.Lake, url: str, table: str, filter: str) -> None:  # noqa: A002  # the lake's name
    """Delete rows by a job."""
    lake.table(table).delete(filter)


def publish(lake: tiltyard.Lake, url: str, tables: dict[str, Rows], new: str | None) -> None:
    """Append to several tables, one of which may be new, in one commit."""
    with lake.publish() as change:
        for name, rows in tables.items():
            if name == new:
                change.table(name).ingest(_table(rows))
            else:
                change.table(name).write(_table(rows))


def stream(lake: tiltyard.Lake, url: str, table: str, folder: str, file: str, rows: Rows) -> None:
    """Write a file with rows, and let a stream append it."""
    lines = [json.dumps({"id": int(number), "x": x}) for number, x in rows.items()]
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, file).write_text("\n".join(lines) + "\n")
    lake.stream(folder, table, available_now=True)


def commit(lake: tiltyard.Lake, url: str, table: str, rows: Rows) -> None:
    """Append as pylance does, which writes files itself, and has the server commit them."""
    dataset = lance.dataset(namespace_client=lance.namespace.RestNamespace(uri=url), table_id=[table])
    dataset.insert(_table(rows))


COMMANDS: dict[str, Callable[..., None]] = {
    function.__name__: function for function in (ingest, upsert, delete, publish, stream, commit)
}


def main(url: str, address: str) -> None:
    """Do commands until the connection ends."""
    lake = tiltyard.connect(url)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw") as wire:
            for line in wire:
                command: dict[str, Any] = json.loads(line)
                answer = ""
                try:
                    COMMANDS[command.pop("do")](lake, url, **command)
                except Exception:  # noqa: BLE001  # whatever it is, whoever asked is told
                    answer = traceback.format_exc()
                wire.write(json.dumps(answer) + "\n")
                wire.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
