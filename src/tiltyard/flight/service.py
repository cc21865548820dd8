"""The service of Arrow Flight: queries of lancedb, ADBC and JDBC (Flight SQL), and their rows.

lancedb submits a query by DoGet, or by DoExchange with parameters, whose answer has its rows, or says where to poll for
them where none come soon; before 0.41 by PollFlightInfo, which starts it, and it reads it by DoGet while it runs. The
drivers of Flight SQL plan it by GetFlightInfo, or prepare it, and DoGet runs it. Tickets and descriptors carry the
query itself, so that
any process of the server can serve each of these calls: one about a query that another process runs is passed on to it
(`siblings`), and a ticket whose query is not known any more is run again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.api.execution.threaded import executor_for
from tiltyard.flight.calls import POLLING_METADATA, Call, Calls
from tiltyard.flight.catalog_commands import answer, schema_of
from tiltyard.flight.encoding import BatchEncoder, encode_schema, schema_message
from tiltyard.flight.handles import QueryHandle, decode_handle
from tiltyard.flight.messages import (
    CANCELLED,
    MESSAGES,
    NOT_CANCELLABLE,
    pack,
    pack_decision,
    unpack_submission,
)
from tiltyard.flight.methods import Method, Methods
from tiltyard.flight.queries import (
    Queries,
    QueryState,
    SubmittedQuery,
)
from tiltyard.flight.query_messages import (
    REFUSALS,
    descriptor_of,
    flight_info,
    join_messages,
    new_handle,
    new_statement_handle,
    new_update_handle,
    parameters_of_drivers,
    poll_info,
    read_command,
    unpack_command,
)
from tiltyard.flight.query_starter import PLAN, QueryStarter, query_deadline
from tiltyard.flight.siblings import Siblings
from tiltyard.flight.view_statements import SCHEMAS, find_statement
from tiltyard.model.operations import PoolName
from tiltyard.sql.errors import READ_ONLY
from tiltyard.sql.read_grounds import REAUTHORIZE_SECONDS, check_grounds
from tiltyard.sql.remote_query import EXECUTE
from tiltyard.sql.statements.text_checks import MAX_PARAMETER_BYTES, bind_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tiltyard.api.app import Shared
    from tiltyard.flight.connections import FlightConnections

AUTHENTICATE = "Authenticate"
DESCRIBE = "DescribeQuery"
READ = "ReadQuery"
CANCEL = "CancelQuery"
LIST_CATALOG = "ListCatalog"
"""Names of what calls do, in the audit log and the metrics."""

FIRST_ROWS_SECONDS = 0.5
"""How long a submission waits for the first rows of its query. lancedb's client waits 50 ms more at the end of a query
that it was told to be running, when it has all rows: an aggregate of 250 ms would take a fifth longer."""
SUBMIT_SECONDS = 0.05
"""How long a submission then waits for the end of its query."""
QUIET_SECONDS = 30.0
"""How long nothing comes of a query until its reader gets a batch without rows; lancedb gives up after 300 s."""
POLL_SECONDS = 0.2
"""How long a poll waits for the end of its query."""
MAX_PUT_MESSAGES = 100
"""Messages that they may come in: a schema, dictionaries, and a batch."""
MAX_SMALL_BYTES = 4 << 10
"""Bytes of a message that says nothing which is used."""
_ACTIONS = {
    "CancelFlightInfo": "Cancel a query.",
    "CreatePreparedStatement": "Prepare a query.",
    "ClosePreparedStatement": "Forget a prepared query.",
    "CancelQuery": "Cancel a query.",
}


class FlightService:
    """The calls of Flight, in one process. Runs on the event loop; planning and encoding take threads."""

    def __init__(self, shared: Shared, siblings: Siblings, connections: FlightConnections) -> None:
        self._shared = shared
        self._siblings = siblings
        self._calls = Calls(shared, connections)
        self._pool = shared.pools[PoolName.QUERIES]
        self.queries = Queries(shared.services.settings.sql_kept_bytes)
        self._starter = QueryStarter(shared, self.queries)

    def methods(self) -> Methods:
        """Return the handlers of all methods, for a server of gRPC."""
        find, find_target = self._siblings.find, self._siblings.find_target
        decode = {name: message.FromString for name, message in MESSAGES.items()}
        descriptor, small = decode["FlightDescriptor"], MAX_SMALL_BYTES
        return Methods(
            self._calls,
            [
                Method("Handshake", decode["HandshakeRequest"], AUTHENTICATE, self.handshake, max_bytes=small),
                Method("GetFlightInfo", descriptor, PLAN, self.get_flight_info),
                Method("PollFlightInfo", descriptor, EXECUTE, self.poll_flight_info, lambda asked: find(asked.cmd)),
                Method("GetSchema", descriptor, PLAN, self.get_schema),
                Method("DoGet", decode["Ticket"], READ, self.do_get, lambda ticket: find(ticket.ticket)),
                Method("DoAction", decode["Action"], PLAN, self.do_action, find_target),
                Method("ListActions", decode["Empty"], LIST_CATALOG, self.list_actions, max_bytes=small),
                Method("DoPut", decode["FlightData"], PLAN, self.do_put),
                Method("DoExchange", decode["FlightData"], EXECUTE, self.do_exchange),
            ],
        )

    async def handshake(self, call: Call, _: Any) -> AsyncIterator[bytes]:
        """Return the credentials of a call as the token that further calls have to bring.

        The drivers of JDBC and ADBC send a user and a password here, and here alone.
        """
        if call.token is not None:
            await call.send_initial_metadata((("authorization", call.token),))
        messages: tuple[bytes, ...] = ()  # the token is in the metadata alone
        for message in messages:
            yield message

    # Plan

    async def get_flight_info(self, call: Call, request: Any) -> AsyncIterator[bytes]:
        """Plan a query, or describe the table that answers a question about the catalog."""
        name, command = read_command(request)
        schema, ticket = schema_of(name, command), request.cmd
        if schema is None:
            handle = new_handle(name, command, call)
            schema, ticket = await self._starter.plan_schema(call, handle), handle.ticket
        yield flight_info(schema, request, ticket).SerializeToString()

    async def get_schema(self, call: Call, request: Any) -> AsyncIterator[bytes]:
        """Return the schema of what GetFlightInfo would describe."""
        name, command = read_command(request)
        schema = schema_of(name, command)
        if schema is None:
            schema = await self._starter.plan_schema(call, new_handle(name, command, call))
        yield MESSAGES["SchemaResult"](schema=schema_message(schema)).SerializeToString()

    # Run

    async def poll_flight_info(self, call: Call, request: Any) -> AsyncIterator[bytes]:
        """Start a query, or tell how one that was started does."""
        name, command = read_command(request)
        if name != "TicketStatementQuery":
            handle = structs.replace(new_handle(name, command, call), process=self._siblings.id)
            query = await self._starter.start(call, handle)
            await query.wait_rows(FIRST_ROWS_SECONDS)
            await query.wait_ended(SUBMIT_SECONDS)
        else:
            call.record_tables(DESCRIBE, ())
            found = self.queries.find(decode_handle(command.statement_handle), call.ctx)
            if found is None:
                raise InvalidInputError("The server no longer knows this query: read its rows, or submit it again.")
            query = found
            await query.wait_ended(POLL_SECONDS)
            await self._check_grounds(call, query)
        yield poll_info(query, request).SerializeToString()

    async def do_get(self, call: Call, request: Any) -> AsyncIterator[bytes]:
        """Stream the rows of a query, which is run now unless it was submitted, or those of a question's answer."""
        if (submitted := unpack_submission(request.ticket)) is not None:
            answers = self._submit(call, new_statement_handle(*submitted, call))
        else:
            name, command = unpack_command(request.ticket)
            is_ticket = name == "TicketStatementQuery"
            answers = self._read(call, command) if is_ticket else self._answer(call, name, command)
        async for message in answers:
            yield message

    async def do_exchange(self, call: Call, request: Any) -> AsyncIterator[bytes]:
        """Run a query with parameters, which come as a batch of one row, and stream its rows."""
        call.record_tables(EXECUTE, ())
        handle = new_statement_handle(*read_command(request.flight_descriptor), call)
        parameters = await _read_parameters(call, request)
        text = bind_names(handle.query, parameters, call.ctx.settings.sql_max_length)
        async for message in self._submit(call, structs.replace(handle, query=text, parameters=parameters)):
            yield message

    async def _submit(self, call: Call, handle: QueryHandle) -> AsyncIterator[bytes]:
        """Start a query and stream its rows. Where none come soon, a client that can poll for them is told to."""
        call.record_tables(EXECUTE, ())
        query = await self._starter.start(call, structs.replace(handle, process=self._siblings.id))
        is_deferred = False
        try:
            call.when_done(lambda: None if is_deferred else query.cancel())
            if not call.can_poll:
                await call.send_initial_metadata(())  # which the client waits for
            else:
                await query.wait_rows(FIRST_ROWS_SECONDS)
                is_deferred = not query.has_rows
                await call.send_initial_metadata(POLLING_METADATA)
                yield pack_decision(poll_info(query, descriptor_of(handle)) if is_deferred else None)
            if not is_deferred:
                async for message in self._stream(call, query):
                    yield message
        finally:
            if not is_deferred:
                query.cancel()

    async def _read(self, call: Call, command: Any) -> AsyncIterator[bytes]:
        """Stream the rows of a query that a ticket names: one that was submitted, else it is run now."""
        handle = decode_handle(command.statement_handle)
        query = self.queries.take_unread(handle, call.ctx)
        if query is None:
            if handle.process and (statement := find_statement(call.ctx, handle)) is not None and statement.changes:
                raise InvalidInputError(
                    "This statement was sent once, and is not run again: look what has become of it."
                )
            query = await self._starter.start(call, handle)
        else:
            call.record_tables(READ, query.paths)
            await self._check_grounds(call, query)
        call.when_done(query.cancel)  # its client may leave while gRPC sends
        try:
            async for message in self._stream(call, query):
                yield message
        finally:
            query.cancel()  # its client may have left

    async def _stream(self, call: Call, query: SubmittedQuery) -> AsyncIterator[bytes]:
        """Yield the rows of a query, and batches without rows where none come for a while: clients give up on silence.

        Its reader is authorized again while it reads.
        """
        clock = asyncio.get_running_loop().time
        checked_at, has_schema, has_come = clock(), False, False
        async for message in query.messages(QUIET_SECONDS):
            call.on_first_byte()
            if clock() - checked_at > REAUTHORIZE_SECONDS:
                await self._check_grounds(call, query)
                checked_at = clock()
            if message is None and has_schema:
                for parts in BatchEncoder(query.schema).encode_nothing():
                    yield b"".join(parts)
            elif message is None:
                yield encode_schema(query.schema)
            elif has_come or not has_schema:  # the first message has the schema
                yield message
            has_schema, has_come = True, has_come or message is not None

    async def _check_grounds(self, call: Call, query: SubmittedQuery) -> None:
        """End a query whose reader may not read its tables any more as when it was planned. Raises why it may not."""
        if self._shared.authentication.is_open:
            return  # everybody may read everything
        pool = self._shared.pools[PoolName.CATALOG]
        try:
            await asyncio.get_running_loop().run_in_executor(pool, check_grounds, call.ctx, query.grounds)
        except LanceNamespaceError as error:
            if not isinstance(error, ServiceUnavailableError):
                query.end_with(error)
            raise

    async def _answer(self, call: Call, name: str, command: Any) -> AsyncIterator[bytes]:
        """Yield the rows that answer a question about the catalog."""
        schema = schema_of(name, command)
        if schema is None:
            raise UnsupportedOperationError(f"{name} is not supported by this server.")
        call.record_tables(LIST_CATALOG, ())
        ctx = query_deadline(call.ctx).apply_to(call.ctx)
        yield encode_schema(schema)
        encoder = BatchEncoder(schema)
        loop, rows = asyncio.get_running_loop(), answer(ctx, name, command)
        pool = executor_for(self._pool, call.ctx, call.address)
        while (batch := await loop.run_in_executor(pool, next, rows, None)) is not None:
            for parts in encoder.encode(batch):
                yield b"".join(parts)

    # Actions and prepared statements

    async def do_action(self, call: Call, request: Any) -> AsyncIterator[bytes]:
        """Cancel a query, or prepare one."""
        match request.type:
            case "CancelFlightInfo":
                info = MESSAGES["CancelFlightInfoRequest"].FromString(request.body).info
                status = self._cancel(call, info)
                result = MESSAGES["CancelFlightInfoResult"](status=status).SerializeToString()
            case "CancelQuery":
                _, command = unpack_command(request.body)
                status = self._cancel(call, MESSAGES["FlightInfo"].FromString(command.info))
                result = pack("ActionCancelQueryResult", result=status)
            case "CreatePreparedStatement":
                result = await self._prepare(call, unpack_command(request.body)[1])
            case "ClosePreparedStatement":
                return
            case kind:
                supported = f"The action {kind[:60]!r} is not supported: {', '.join(_ACTIONS)}."
                raise UnsupportedOperationError(REFUSALS.get(kind, supported))
        yield MESSAGES["Result"](body=result).SerializeToString()

    async def list_actions(self, _: Call, __: Any) -> AsyncIterator[bytes]:
        """List the actions."""
        for name, text in _ACTIONS.items():
            yield MESSAGES["ActionType"](type=name, description=text).SerializeToString()

    def _cancel(self, call: Call, info: Any) -> int:
        """Cancel a query; return whether that had an effect, as the format says it."""
        call.record_tables(CANCEL, ())
        if not info.endpoint:
            raise InvalidInputError("The FlightInfo names no query to cancel.")
        name, command = unpack_command(info.endpoint[0].ticket.ticket)
        if name != "TicketStatementQuery":
            return NOT_CANCELLABLE
        query = self.queries.find(decode_handle(command.statement_handle), call.ctx)
        if query is None:
            return NOT_CANCELLABLE
        query.cancel()
        return CANCELLED if query.state is QueryState.CANCELLED else NOT_CANCELLABLE

    async def _prepare(self, call: Call, command: Any) -> bytes:
        """Prepare a query: its handle is all that there is of it."""
        handle = QueryHandle.of(command.query, call.namespace, call.ctx.database)
        if (statement := find_statement(call.ctx, handle)) is not None:
            schema, parameters = SCHEMAS[statement.action], pa.schema([])
        else:
            planned = await self._starter.plan(call, handle, has_values=False)
            schema, parameters = planned.schema, parameters_of_drivers(planned.parameters)
        return pack(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=handle.encode(),
            dataset_schema=schema_message(schema),
            parameter_schema=schema_message(parameters) if parameters.names else b"",
        )

    async def do_put(self, call: Call, request: Any) -> AsyncIterator[bytes]:
        """Bind parameters to a prepared statement: its new handle has them. Or run a statement that returns no rows."""
        name, command = read_command(request.flight_descriptor)
        if name != "CommandPreparedStatementQuery":
            yield await self._update(call, new_update_handle(name, command, call))
            return
        call.record_tables(PLAN, ())
        parameters = await _read_parameters(call, request)
        handle = decode_handle(command.prepared_statement_handle)
        bound = structs.replace(handle, parameters=parameters).encode()
        result = MESSAGES["DoPutPreparedStatementResult"](prepared_statement_handle=bound).SerializeToString()
        yield MESSAGES["PutResult"](app_metadata=result).SerializeToString()

    async def _update(self, call: Call, handle: QueryHandle) -> bytes:
        """Run a statement that changes something to its end. Raises UnsupportedOperationError for any other."""
        statement = find_statement(call.ctx, handle)
        if statement is None or not statement.changes:
            raise UnsupportedOperationError(READ_ONLY)
        query = await self._starter.start(call, handle)
        call.when_done(query.cancel)
        async for _ in self._stream(call, query):
            pass  # they are for those who read them
        result = MESSAGES["DoPutUpdateResult"](record_count=0).SerializeToString()
        encoded: bytes = MESSAGES["PutResult"](app_metadata=result).SerializeToString()
        return encoded


async def _read_parameters(call: Call, first: Any) -> bytes:
    """Return the Arrow stream of parameters that a call sends from its first message on. Raises InvalidInputError."""
    messages, size, message = [], 0, first
    while message is not None:
        size += len(message.data_header) + len(message.data_body)
        messages.append(message)
        if size > MAX_PARAMETER_BYTES or len(messages) > MAX_PUT_MESSAGES:
            raise InvalidInputError(f"The parameters have more than {MAX_PARAMETER_BYTES} bytes.")
        message = await call.read(MESSAGES["FlightData"].FromString)
    return join_messages(messages)
