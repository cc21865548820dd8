"""Connect lancedb's own tests to a running server, where they name a folder.

`PEER_CONNECTION` says how: "remote" by lancedb's remote protocol (`db://`), "namespace" by `connect_namespace`; with
"local" they open the folder, which shows what fails by their version alone.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import lancedb
import pyarrow as pa
from lancedb.remote.table import RemoteTable
from lancedb.table import AsyncTable
from peer_server import URL, database_of, is_folder, namespace_properties

CONNECTION = os.environ["PEER_CONNECTION"]
REMOTE = CONNECTION == "remote"
OF_FOLDERS = ("manifest_enabled", "namespace_client_properties")
"""Arguments that mean something for a folder alone."""

connect, connect_async = lancedb.connect, lancedb.connect_async
connect_namespace, connect_namespace_async = lancedb.connect_namespace, lancedb.connect_namespace_async


def is_of_the_client() -> bool:
    """Tell whether the client itself connects: its permutations keep their row ids in tables in memory."""
    return str(sys._getframe(2).f_globals["__name__"]).startswith("lancedb.")


def connect_here(uri: Any = None, **arguments: Any) -> Any:
    """Connect to the namespace of a folder on the server, as `lancedb.connect` to the folder."""
    if not is_folder(uri) or is_of_the_client():
        return connect(uri, **arguments)
    if CONNECTION == "local":
        database_of(uri)
        return connect(uri, **arguments)
    if REMOTE:
        connection = connect(**_remote(uri, arguments))
        connection._uri = str(uri)  # which the client's own property reads, and no connection sets
        return connection
    return connect_namespace("rest", namespace_properties(uri), **_without(arguments))


async def connect_here_async(uri: Any, **arguments: Any) -> Any:
    """Connect to the namespace of a folder on the server, as `lancedb.connect_async` to the folder."""
    if not is_folder(uri):
        return await connect_async(uri, **arguments)
    if CONNECTION == "local":
        database_of(uri)
        return await connect_async(uri, **arguments)
    if REMOTE:
        return await connect_async(**_remote(uri, arguments))
    return connect_namespace_async("rest", namespace_properties(uri), **_without(arguments))


def _remote(uri: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    own = {"uri": f"db://{database_of(uri)}", "api_key": "any", "host_override": URL}
    return {**_without(arguments), **own}


def _without(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in OF_FOLDERS}


def _redirect(function: Any) -> Any:
    def connected(implementation: str, properties: dict[str, str], **arguments: Any) -> Any:
        if implementation == "dir":
            rest = namespace_properties(properties["root"])
            implementation, properties = ("dir", properties) if CONNECTION == "local" else ("rest", rest)
        return function(implementation, properties, **arguments)

    return connected


def read_all(table: RemoteTable) -> pa.Table:
    """Read all rows by a search: the remote client has no call for it, and its `to_arrow` only says so."""
    return table.search().limit(max(1, table.count_rows())).to_arrow()


async def create_index(table: AsyncTable, column: str, **arguments: Any) -> None:
    """Create an index and wait for its job: in a folder, it is there when the call returns."""
    await (await table.create_index_async(column, **arguments)).wait()


if REMOTE:
    AsyncTable.create_index = create_index
    RemoteTable.to_arrow = read_all
    RemoteTable.to_pandas = lambda table, **arguments: read_all(table).to_pandas(**arguments)
lancedb.connect, lancedb.connect_async = connect_here, connect_here_async
lancedb.connect_namespace = _redirect(connect_namespace)
lancedb.connect_namespace_async = _redirect(connect_namespace_async)
