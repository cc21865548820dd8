"""The messages of a query in Arrow Flight: the commands that name it, its parameters, and its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.flight.encoding import schema_message
from tiltyard.flight.handles import QueryHandle, decode_handle
from tiltyard.flight.messages import DESCRIPTOR_OF_COMMAND, MESSAGES, Timestamp, unpack
from tiltyard.flight.queries import QueryState, SubmittedQuery
from tiltyard.sql.errors import READ_ONLY

if TYPE_CHECKING:
    from tiltyard.flight.calls import Call


def read_command(descriptor: Any) -> tuple[str, Any]:
    """Return the command of a descriptor. Raises InvalidInputError."""
    if descriptor.type != DESCRIPTOR_OF_COMMAND:
        raise InvalidInputError("The descriptor names no command: this server has no paths.")
    return unpack_command(descriptor.cmd)


def unpack_command(command: bytes) -> tuple[str, Any]:
    """Return a command of Flight SQL. Raises InvalidInputError, UnsupportedOperationError."""
    unpacked = unpack(command)
    if unpacked is None:
        raise UnsupportedOperationError("The command is none of Flight SQL's that this server supports.")
    return unpacked


def new_handle(name: str, command: Any, call: Call) -> QueryHandle:
    """Return the handle of a new query. Raises InvalidInputError, UnsupportedOperationError."""
    if name == "CommandStatementQuery":
        return QueryHandle.of(command.query, call.namespace, call.ctx.database)
    if name == "CommandPreparedStatementQuery":
        prepared = decode_handle(command.prepared_statement_handle)
        return QueryHandle.of(prepared.query, prepared.namespace, prepared.database, prepared.parameters)
    if name in ("CommandStatementUpdate", "CommandPreparedStatementUpdate"):
        raise UnsupportedOperationError(READ_ONLY)
    raise UnsupportedOperationError(f"{name} is not supported by this server.")


def flight_info(schema: pa.Schema, descriptor: Any, ticket: bytes) -> Any:
    """Return the FlightInfo of a query, whose rows a ticket fetches."""
    endpoint = MESSAGES["FlightEndpoint"](ticket=MESSAGES["Ticket"](ticket=ticket))
    return MESSAGES["FlightInfo"](
        schema=schema_message(schema),
        flight_descriptor=descriptor,
        endpoint=[endpoint],
        total_records=-1,
        total_bytes=-1,
    )


def poll_info(query: SubmittedQuery, descriptor: Any) -> Any:
    """Return the state of a query: without a descriptor to poll once it is complete. Raises what it failed by."""
    if query.state is QueryState.FAILED and query.error is not None:
        raise query.error
    info = flight_info(query.schema, descriptor, query.handle.ticket)
    seconds = int(query.expires_at)
    poll = MESSAGES["PollInfo"](info=info, expiration_time=Timestamp(seconds=seconds))
    if query.state is QueryState.RUNNING:
        poll.flight_descriptor.type = DESCRIPTOR_OF_COMMAND
        poll.flight_descriptor.cmd = query.handle.ticket
        poll.progress = 0.0
    else:
        poll.progress = 1.0
    return poll


def join_messages(messages: list[Any]) -> bytes:
    """Return the Arrow stream that FlightData carries, as it came: it is decoded where the query runs."""
    return b"".join(
        b"\xff\xff\xff\xff" + len(message.data_header).to_bytes(4, "little") + message.data_header + message.data_body
        for message in messages
        if message.data_header
    )
