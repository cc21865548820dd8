"""The messages of a query in Arrow Flight: the commands that name it, its parameters, and its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.flight.encoding import schema_message
from tiltyard.flight.handles import QueryHandle, decode_handle
from tiltyard.flight.messages import DESCRIPTOR_OF_COMMAND, MESSAGES, TYPE_URL, Any_, Timestamp, unpack
from tiltyard.flight.queries import QueryState, SubmittedQuery
from tiltyard.sql.errors import READ_ONLY

if TYPE_CHECKING:
    from tiltyard.flight.calls import Call

_NO_TRANSACTION = "There are no transactions: a query reads one snapshot of each table, and changes nothing."
_NO_SESSION = (
    "There are no sessions: name the database and the default namespace of each call by its metadata `database` and"
    " `namespace-path`."
)
REFUSALS = {
    "CommandStatementIngest": "Rows are not ingested by SQL: create tables and insert rows by lancedb, or by HTTP.",
    "CommandStatementSubstraitPlan": "Plans of Substrait are not run: send a query of SQL.",
    **dict.fromkeys(("BeginTransaction", "EndTransaction", "BeginSavepoint", "EndSavepoint"), _NO_TRANSACTION),
    **dict.fromkeys(("SetSessionOptions", "GetSessionOptions", "CloseSession"), _NO_SESSION),
}
"""Why commands and actions that drivers know are not supported."""


def read_command(descriptor: Any) -> tuple[str, Any]:
    """Return the command of a descriptor. Raises InvalidInputError."""
    if descriptor.type != DESCRIPTOR_OF_COMMAND:
        raise InvalidInputError("The descriptor names no command: this server has no paths.")
    return unpack_command(descriptor.cmd)


def unpack_command(command: bytes) -> tuple[str, Any]:
    """Return a command of Flight SQL. Raises InvalidInputError, UnsupportedOperationError."""
    unpacked = unpack(command)
    if unpacked is None:
        name = Any_.FromString(command).type_url.removeprefix(TYPE_URL)
        raise UnsupportedOperationError(
            REFUSALS.get(name, "The command is none of Flight SQL's that this server supports.")
        )
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


def new_statement_handle(name: str, command: Any, call: Call) -> QueryHandle:
    """Return the handle of a query that is submitted on one call. Raises as `new_handle`."""
    if name != "CommandStatementQuery":
        raise UnsupportedOperationError("A call that runs a query has a CommandStatementQuery, with its text.")
    return new_handle(name, command, call)


def new_update_handle(name: str, command: Any, call: Call) -> QueryHandle:
    """Return the handle of a statement that returns no rows. Raises InvalidInputError, UnsupportedOperationError."""
    if name == "CommandStatementUpdate":
        return new_handle("CommandStatementQuery", command, call)
    if name == "CommandPreparedStatementUpdate":
        return new_handle("CommandPreparedStatementQuery", command, call)
    raise UnsupportedOperationError(READ_ONLY)


def descriptor_of(handle: QueryHandle) -> Any:
    """Return the descriptor of a submitted query, by which it is polled."""
    return MESSAGES["FlightDescriptor"](type=DESCRIPTOR_OF_COMMAND, cmd=handle.ticket)


def parameters_of_drivers(parameters: pa.Schema) -> pa.Schema:
    """Return the types of parameters as drivers are told them: times in milliseconds.

    The JDBC driver binds the milliseconds of a time as they are, in whatever unit it is told.
    """
    return pa.schema([field.with_type(_in_milliseconds(field.type)) for field in parameters])


def _in_milliseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if pa.types.is_time(kind) else kind


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
        poll.flight_descriptor.CopyFrom(descriptor_of(query.handle))
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
