"""What tickets, descriptors and prepared statements carry: all that any process of the server needs to run a query.

A handle gives its holder no right: a query runs with the privileges of whoever brings it, as the query's text would.
"""

from __future__ import annotations

import secrets

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.flight.messages import pack

MAX_BYTES = 4 << 20
MAX_PARAMETERS = 1_000


class QueryHandle(msgspec.Struct, frozen=True, array_like=True):
    """A query: its id, text, and default namespace, and its parameters as an Arrow stream of one row."""

    id: str
    query: str
    namespace: tuple[str, ...] = ()
    parameters: bytes = b""

    @classmethod
    def of(cls, query: str, namespace: tuple[str, ...], parameters: bytes = b"") -> QueryHandle:
        """Return a handle with a new id."""
        return cls(secrets.token_hex(16), query, namespace, parameters)

    def encode(self) -> bytes:
        """Return the handle as clients hold it."""
        return _encoder.encode(self)

    @property
    def ticket(self) -> bytes:
        """The command that names this query: for DoGet, and as the descriptor to poll."""
        return pack("TicketStatementQuery", statement_handle=self.encode())

    def scalars(self) -> list[pa.Scalar]:
        """Return the values of the parameters. Raises InvalidInputError."""
        if not self.parameters:
            return []
        try:
            table = pa.ipc.open_stream(self.parameters).read_all()
        except pa.ArrowException as error:
            raise InvalidInputError("The parameters are no Arrow stream.") from error
        if table.num_rows != 1 or table.num_columns > MAX_PARAMETERS:
            raise InvalidInputError(f"The parameters are one row of {MAX_PARAMETERS} values at most.")
        return [_decoded(column[0]) for column in table.columns]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(QueryHandle)


def decode_handle(encoded: bytes) -> QueryHandle:
    """Return the handle that a client brings. Raises InvalidInputError for bytes that are none."""
    if len(encoded) > MAX_BYTES:
        raise InvalidInputError(f"The query's handle has more than {MAX_BYTES} bytes.")
    try:
        return _decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError("This is no handle of a query of this server.") from error


def encode_parameters(batch: pa.RecordBatch) -> bytes:
    """Return the parameters that a client binds. Raises InvalidInputError for more than one row of them."""
    if batch.num_rows != 1:
        raise InvalidInputError(f"A statement is run once with one row of parameters, not with {batch.num_rows}.")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _decoded(value: pa.Scalar) -> pa.Scalar:
    """Return a value without the union that some clients wrap their parameters in."""
    return value.value if pa.types.is_union(value.type) else value
