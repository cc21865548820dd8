"""Calls about a query, passed on to the process of the server that the query was submitted to.

The kernel distributes connections among the processes of a server, and a client may have several. A query runs in one
process, which alone can describe, cancel and read it; its handle names that process. Each process also listens on a
Unix socket in a folder that they share, which no other user can enter. The process that gets a call about another one's
query passes it on as it came, with its metadata: the other process authenticates it, answers it, and records it.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from lance_namespace.errors import LanceNamespaceError

from tiltyard.flight.connections import CONNECTION_METADATA
from tiltyard.flight.handles import decode_handle
from tiltyard.flight.messages import MESSAGES, SERVICE, unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

PEER_METADATA = "x-tiltyard-peer"
"""Where a call that is passed on came from; believed of other processes of the server alone."""
MAX_PATH = 100
"""Bytes of a path that a Unix socket surely can have."""
_ID = re.compile(r"[0-9a-f]{16}")
_REQUEST_ID = "x-request-id"
_LOCAL = "unix:"
_OWN = ".own"
"""Ends the name of the socket of a process's own connections: a client's metadata cannot say that it is a sibling."""
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class UnreachableError(Exception):
    """The other process has ended."""


class Siblings:
    """The processes of a server, as one of them knows them: by their ids, which name their sockets."""

    def __init__(self, folder: str) -> None:
        """`folder` has the sockets. Raises OSError where its path is longer than that of a socket can be."""
        self.id = secrets.token_hex(8)
        self._folder = Path(folder)
        self._channels: dict[str, grpc.aio.Channel] = {}
        if len(self.own_path.encode()) > MAX_PATH:
            raise OSError(f"the folder {folder} has too long a name for sockets: set TMPDIR to a shorter one")

    @property
    def address(self) -> str:
        """Where this process listens for the others."""
        return f"{_LOCAL}{self._folder / self.id}"

    @property
    def own_path(self) -> str:
        """Where gRPC listens for the connections that this process accepts."""
        return f"{self._folder / self.id}{_OWN}"

    @property
    def own_address(self) -> str:
        """The same, as gRPC writes it."""
        return f"{_LOCAL}{self.own_path}"

    def find(self, command: bytes) -> Sibling | None:
        """Return the process that has the query of a ticket; None for this one, and for what is no ticket of a query.

        What is malformed is none, too: this process says so in its own answer.
        """
        with suppress(DecodeError, LanceNamespaceError):
            name, ticket = unpack(command) or ("", MESSAGES["TicketStatementQuery"]())
            process = decode_handle(ticket.statement_handle).process if name == "TicketStatementQuery" else ""
            if process != self.id and _ID.fullmatch(process) and (self._folder / process).exists():
                return Sibling(self._channel(process))
        return None

    def find_target(self, action: Any) -> Sibling | None:
        """Return the process that has the query that an action cancels; None as `find` does."""
        with suppress(DecodeError, IndexError):
            match action.type:
                case "CancelFlightInfo":
                    info = MESSAGES["CancelFlightInfoRequest"].FromString(action.body).info
                case "CancelQuery":
                    _, command = unpack(action.body) or ("", MESSAGES["ActionCancelQueryRequest"]())
                    info = MESSAGES["FlightInfo"].FromString(command.info)
                case _:
                    return None
            return self.find(info.endpoint[0].ticket.ticket)
        return None

    def _channel(self, process: str) -> grpc.aio.Channel:
        channel = self._channels.get(process)
        if channel is None:
            channel = grpc.aio.insecure_channel(f"{_LOCAL}{self._folder}/{process}", options=_UNLIMITED)
            self._channels[process] = channel
        return channel

    async def close(self) -> None:
        """Close the connections to the others."""
        for channel in self._channels.values():
            await channel.close()


class Sibling:
    """Another process of the server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def stream(
        self, method: str, request: Any, context: grpc.aio.ServicerContext, peer: str
    ) -> AsyncIterator[bytes]:
        """Yield the messages of the other process as they are, to a call that came from `peer`.

        Raises UnreachableError, and ends the call with its errors; once a message has come, also where the other
        process has ended.
        """
        has_begun = False
        stream = self._channel.unary_stream(f"/{SERVICE}/{method}")
        call = stream(request.SerializeToString(), metadata=_metadata(context, peer), timeout=_timeout(context))
        context.add_done_callback(lambda _: call.cancel())  # its client may leave while gRPC sends
        try:
            async for message in call:
                has_begun = True
                yield message
        except grpc.aio.AioRpcError as error:
            await _fail(context, error, is_final=has_begun)
        finally:
            call.cancel()


def passed_on_address(context: grpc.aio.ServicerContext, headers: Mapping[bytes, bytes]) -> tuple[str, int] | None:
    """Return where a call that another process has passed on came from at first; None for any other call."""
    if context.peer().endswith(_OWN):
        return None
    host, _, port = headers.get(PEER_METADATA.encode(), b"").decode(errors="replace").rpartition(":")
    return (host, int(port)) if port.isdigit() else None


def write_peer(client: tuple[str, int] | None) -> str:
    """Return an address and a port as `passed_on_address` reads them."""
    return "" if client is None else f"{client[0]}:{client[1]}"


def _metadata(context: grpc.aio.ServicerContext, peer: str) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata of a call, and where it came from."""
    own = tuple(
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if name not in (PEER_METADATA, CONNECTION_METADATA, "user-agent") and not name.startswith("grpc-")
    )
    return (*own, (PEER_METADATA, peer))


def _timeout(context: grpc.aio.ServicerContext) -> float | None:
    remaining: float | None = context.time_remaining()
    return remaining


async def _fail(context: grpc.aio.ServicerContext, error: grpc.aio.AioRpcError, *, is_final: bool = False) -> None:
    """End a call as the other process has ended it.

    Raises UnreachableError if that has not answered at all, unless `is_final`: it had begun to.
    """
    trailing = tuple((name, value) for name, value in error.trailing_metadata() or () if name == _REQUEST_ID)
    if trailing:
        context.set_trailing_metadata(trailing)
        await context.abort(error.code(), error.details() or "")
    if error.code() is grpc.StatusCode.UNAVAILABLE and not is_final:
        raise UnreachableError from error
    await context.abort(error.code(), "The process of the server that ran the query has ended.")
