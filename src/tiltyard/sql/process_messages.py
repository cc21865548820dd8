"""What a server and the processes that run its SQL queries send each other, over a Unix socket.

A message is a head (its kind and length) and a body. The server sends a `QueryRequest`; the process answers with
PLANNED, then, if the query is to run, with DATA for each part of its rows, and with END; or with FAILED at any time.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from tiltyard.model.principals import Principal
from tiltyard.sql.read_grounds import ReadGrounds

HEAD = struct.Struct("<BQ")
MAX_MESSAGE_BYTES = 1 << 32


class Kind(IntEnum):
    """What a message is."""

    REQUEST = 1
    PLANNED = 2
    DATA = 3
    END = 4
    FAILED = 5


class Form(IntEnum):
    """How rows are sent."""

    FLIGHT = 1
    """As FlightData, ready for gRPC."""
    STREAM = 2
    """As an Arrow IPC stream for each batch."""


class ViewRead(msgspec.Struct, frozen=True, array_like=True):
    """What is read of a view: some columns (all if None) of some rows, in their order; or how many rows it has."""

    path: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    offset: int = 0
    limit: int | None = None
    is_count: bool = False


class QueryRequest(msgspec.Struct, frozen=True, array_like=True):
    """A query, and for whom it is planned.

    - `parameters` is an Arrow stream of one row of values; None plans for the schema a query that is not run.
    - `database` is what its names are relative to.
    - `form` is how its rows are sent; None only plans it.
    - `view` is read instead of the query, which is empty then.
    - `is_view` says that a view is to be created of the query.
    """

    query: str
    principal: Principal
    request_id: str
    namespace: tuple[str, ...] = ()
    database: tuple[str, ...] = ()
    parameters: bytes | None = b""
    form: Form | None = None
    view: ViewRead | None = None
    is_view: bool = False


class PlanDescription(msgspec.Struct, frozen=True, array_like=True):
    """A query that was planned: its schema, the ids of its tables, the types of its parameters, as a schema.

    `grounds` say why its reader may read them.
    """

    schema: bytes
    tables: tuple[tuple[str, ...], ...]
    parameters: bytes
    grounds: tuple[ReadGrounds, ...]


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a query failed, by the specification's code, and the ids of the tables that it has named."""

    code: int
    message: str
    tables: tuple[tuple[str, ...], ...]
