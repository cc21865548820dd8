"""`tiltyard sql`: a query over the tables of the catalog, by Arrow Flight or in this process."""

from __future__ import annotations

import os
import re
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from tiltyard.cli.output.formats import OutputFormat, format_option
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller
    from tiltyard.calls.http_caller import HttpCaller

_QUERY_TYPE = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_ANSWER_SECONDS = 310.0
_UNTRUSTED = re.compile("CERTIFICATE_VERIFY_FAILED|certificate verify failed", re.IGNORECASE)
_DETAILS = re.compile(r"\. (?:Detail|gRPC client debug context|Client context): .*", re.DOTALL)


@click.command("sql", short_help="Run a SQL query.")
@click.argument("query")
@click.option(
    "--sql-server", metavar="URL", help="Where SQL is served: grpc://host:port [default: the server's next port]."
)
@format_option
@catalog_command
def sql(catalog: Caller, query: str, sql_server: str | None, form: OutputFormat) -> None:
    """Run a SELECT over the tables of the catalog and print its rows; - reads the query from standard input.

    A table is written library.books, one in a nested namespace "library$fiction".books (docs/sql.md).

    \b
    Examples:
      tiltyard sql 'SELECT year, count(*) AS films FROM films GROUP BY year ORDER BY year'
      tiltyard sql - --format csv < report.sql
    """
    from tiltyard.cli.output.formats import print_rows

    print_rows(run_query(catalog, sys.stdin.read() if query == "-" else query, sql_server), form)


def run_query(catalog: Caller, text: str, sql_server: str | None) -> pa.RecordBatchReader:
    """Run a query where the catalog is. Raises CommandError, lance_namespace.errors, as the reader does."""
    from tiltyard.calls.http_caller import HttpCaller

    if isinstance(catalog, HttpCaller):
        return _query_server(catalog, text, sql_server)
    import pyarrow as pa

    from tiltyard.calls.in_process_caller import InProcessCaller
    from tiltyard.sql.engine import run

    assert isinstance(catalog, InProcessCaller)
    answer = run(catalog.context(), text)
    return pa.RecordBatchReader.from_batches(answer.schema, answer.batches)


def _query_server(catalog: HttpCaller, text: str, address: str | None) -> pa.RecordBatchReader:
    """Run a query by Flight SQL. Raises CommandError, as reading its rows does."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import pyarrow as pa
    from pyarrow import flight

    headers = [(name.encode(), value.encode()) for name, value in catalog.headers.items()]
    options = flight.FlightCallOptions(timeout=_ANSWER_SECONDS, headers=headers)
    client = flight.connect(address or sql_address(catalog.address), tls_root_certs=_authorities())
    try:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(encode_query(text)), options)
        reader = client.do_get(info.endpoints[0].ticket, options).to_reader()
    except pa.ArrowException as error:
        raise _explain(error, catalog.address) from error
    return pa.RecordBatchReader.from_batches(reader.schema, _batches(reader, catalog.address))


def _authorities() -> str | None:
    """Return the certificates that calls by HTTPS trust (SSL_CERT_FILE, SSL_CERT_DIR); None for those of gRPC itself.

    Raises CommandError for a file that cannot be read.
    """
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if folder := os.environ.get("SSL_CERT_DIR"):
        files += sorted(file for file in Path(folder).glob("*") if file.is_file())
    try:
        return "\n".join(file.read_text(errors="replace") for file in files) or None
    except OSError as error:
        raise CommandError(f"The trusted certificates cannot be read: {error}.") from error


def _batches(reader: pa.RecordBatchReader, address: str) -> object:
    import pyarrow as pa

    try:
        yield from reader
    except pa.ArrowException as error:
        raise _explain(error, address) from error


def _explain(error: Exception, address: str) -> CommandError:
    """Return the error of a call of Flight as a sentence."""
    from pyarrow import flight

    message = _DETAILS.sub("", str(error)).removeprefix("Flight error: ").removeprefix("Flight returned ")
    message = re.sub(r"^[a-z ]+ error, with message: ", "", message)
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return CommandError(message, ExitStatus.NOT_ALLOWED)
    if _UNTRUSTED.search(str(error)):
        return CommandError(
            f"The certificate of {address} for SQL is not trusted: name its authority by SSL_CERT_FILE.",
            ExitStatus.UNAVAILABLE,
        )
    if isinstance(error, flight.FlightUnavailableError):
        return CommandError(
            f"{address} serves no SQL on the port after that of HTTP: it needs tiltyard[sql] there, and sql_port "
            "(docs/sql.md); another place is named by --sql-server.",
            ExitStatus.UNAVAILABLE,
        )
    return CommandError(message)


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
