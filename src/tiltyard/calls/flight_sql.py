"""Run SQL where a server serves it, by Arrow Flight SQL, with the credentials of its other calls."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_TYPE = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_ANSWER_SECONDS = 310.0
_UNTRUSTED = re.compile("CERTIFICATE_VERIFY_FAILED|certificate verify failed", re.IGNORECASE)
_DETAILS = re.compile(r"\. (?:Detail|gRPC client debug context|Client context): .*", re.DOTALL)


class SqlNotServedError(ServiceUnavailableError):
    """No SQL is served where it was looked for."""


def query_server(server: str, headers: Mapping[str, str], text: str, address: str | None) -> pa.RecordBatchReader:
    """Run a query of a server, at the address where it serves SQL (None: the port after that of HTTP).

    Raises SqlNotServedError and others of lance_namespace.errors, as reading its rows does.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import pyarrow as pa
    from pyarrow import flight

    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    # Lance panics at rows that are not aligned, as in a message they need not be.
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
    options = flight.FlightCallOptions(timeout=_ANSWER_SECONDS, headers=sent, read_options=aligned)
    client = flight.connect(address or sql_address(server), tls_root_certs=_authorities())
    try:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(encode_query(text)), options)
        reader = client.do_get(info.endpoints[0].ticket, options).to_reader()
    except pa.ArrowException as error:
        raise _explain(error, server, address) from error
    return pa.RecordBatchReader.from_batches(reader.schema, _batches(reader, server, address))


def _authorities() -> str | None:
    """Return the certificates that calls by HTTPS trust (SSL_CERT_FILE, SSL_CERT_DIR); None for those of gRPC itself.

    Raises InvalidInputError for a file that cannot be read.
    """
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if folder := os.environ.get("SSL_CERT_DIR"):
        files += sorted(file for file in Path(folder).glob("*") if file.is_file())
    try:
        return "\n".join(file.read_text(errors="replace") for file in files) or None
    except OSError as error:
        raise InvalidInputError(f"The trusted certificates cannot be read: {error}.") from error


def _batches(reader: pa.RecordBatchReader, server: str, address: str | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        yield from reader
    except pa.ArrowException as error:
        raise _explain(error, server, address) from error


def _explain(error: Exception, server: str, address: str | None) -> LanceNamespaceError:
    """Return the error of a call of Flight as a sentence."""
    from pyarrow import flight

    message = _DETAILS.sub("", str(error)).removeprefix("Flight error: ").removeprefix("Flight returned ")
    message = re.sub(r"^[a-z ]+ error, with message: ", "", message)
    if isinstance(error, flight.FlightUnauthenticatedError):
        return UnauthenticatedError(message)
    if isinstance(error, flight.FlightUnauthorizedError):
        return PermissionDeniedError(message)
    if _UNTRUSTED.search(str(error)):
        return ServiceUnavailableError(
            f"The certificate of {address or server} for SQL is not trusted: name its authority by SSL_CERT_FILE."
        )
    if isinstance(error, flight.FlightUnavailableError):
        where = (
            f"Nothing serves SQL at {address}" if address else f"{server} serves no SQL on the port after that of HTTP"
        )
        return SqlNotServedError(f"{where}: its setting sql_port says where it does (docs/sql.md).")
    return InvalidInputError(message)


def sql_address(server: str) -> str:
    """Return where a server serves SQL: the port after that of HTTP, with TLS where HTTP has it."""
    parts = urlsplit(server)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{'grpc+tls' if parts.scheme == 'https' else 'grpc+tcp'}://{host}:{port + 1}"


def encode_query(text: str) -> bytes:
    """Encode Flight SQL's CommandStatementQuery within protobuf's Any: two messages of one text field each."""
    return _field(1, _QUERY_TYPE) + _field(2, _field(1, text.encode()))


def _field(number: int, data: bytes) -> bytes:
    """Encode a field of protobuf that holds bytes: its tag, its length as a varint, the bytes."""
    length, varint = len(data), b""
    while length > 127:
        varint += bytes((length & 127 | 128,))
        length >>= 7
    return bytes((number << 3 | 2,)) + varint + bytes((length,)) + data
