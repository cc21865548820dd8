"""What tickets, descriptors and prepared statements carry: all that any process of the server needs to run a query.

A handle gives its holder no right: a query runs with the privileges of whoever brings it, as the query's text would.
"""

from __future__ import annotations

import secrets

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.flight.messages import pack
from tiltyard.sql.statements.text_checks import MAX_PARAMETER_BYTES

MAX_BYTES = 4 << 20


class QueryHandle(msgspec.Struct, frozen=True, array_like=True):
    """A query: its id, text, and default namespace within a database, and its parameters as an Arrow stream of one row.

    `process` is the id of the server process that it was submitted to.
    """

    id: str
    query: str
    namespace: tuple[str, ...] = ()
    database: tuple[str, ...] = ()
    parameters: bytes = b""
    process: str = ""

    @classmethod
    def of(
        cls, query: str, namespace: tuple[str, ...], database: tuple[str, ...], parameters: bytes = b""
    ) -> QueryHandle:
        """Return a handle with a new id."""
        return cls(secrets.token_hex(16), query, tuple(namespace), tuple(database), parameters)

    def encode(self) -> bytes:
        """Return the handle as clients hold it."""
        return _encoder.encode(self)

    @property
    def ticket(self) -> bytes:
        """The command that names this query: for DoGet, and as the descriptor to poll."""
        return pack("TicketStatementQuery", statement_handle=self.encode())


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(QueryHandle)


def decode_handle(encoded: bytes) -> QueryHandle:
    """Return the handle that a client brings. Raises InvalidInputError for bytes that are none."""
    if len(encoded) > MAX_BYTES:
        raise InvalidInputError(f"The query's handle has more than {MAX_BYTES} bytes.")
    try:
        handle = _decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError("This is no handle of a query of this server.") from error
    if len(handle.parameters) > MAX_PARAMETER_BYTES:
        raise InvalidInputError(f"The query's parameters have more than {MAX_PARAMETER_BYTES} bytes.")
    return handle
