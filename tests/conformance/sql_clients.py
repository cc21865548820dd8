"""Make the calls of ADBC, of pandas over it and of JDBC against a server with authentication, by TLS."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import httpx
import lancedb
import pytest
from adbc_driver_flightsql import DatabaseOptions
from lancedb.remote import ClientConfig, TlsConfig

from tests.conformance.observations import ObservedCall, ServerObservations
from tests.conformance.packages import NoWheelError
from tests.flight.adbc_calls import TYPES, AdbcCaller, adbc_calls, pandas_calls
from tests.flight.conftest import flight_port, prepare
from tests.flight.jdbc_calls import CALLS, jdbc_answers
from tests.services.certificates import CertificateFiles, loopback_certificate
from tests.services.jdbc import DRIVER, jdbc_driver
from tests.services.secured import Secured, secured_server

TITLE = "outcome"
ABOUT = {
    "ADBC": f"Seen with adbc-driver-flightsql {version('adbc-driver-flightsql')}, by TLS with an API key.",
    "pandas by ADBC": f"Seen with pandas {version('pandas')}, by the same connection.",
    "JDBC": f"Seen with flight-sql-jdbc-driver {DRIVER.rpartition(':')[2]}, by TLS with an API key, in a process"
    " whose zone is Europe/Berlin.",
}


@contextmanager
def _server(folder: Path) -> Iterator[tuple[Secured, CertificateFiles]]:
    """Start a server with a certificate, and the tables that the calls are about."""
    files = loopback_certificate(folder)
    flags = ("--tls-certificate", str(files.certificate), "--tls-key", str(files.key))
    with secured_server(folder / "root", *flags, names=("ann", "bob", "cy")) as server:
        key = server.keys["administrator"]
        config = ClientConfig(tls_config=TlsConfig(ssl_ca_cert=str(files.certificate)))
        db = lancedb.connect("db://dev", api_key=key, host_override=server.url, client_config=config)
        context = ssl.create_default_context(cafile=str(files.certificate))
        with httpx.Client(base_url=server.url, headers={"x-api-key": key}, verify=context, timeout=60) as http:
            prepare(db, http)
        db.create_table("types", TYPES)
        yield server, files


@cache
def _observe_all() -> dict[str, tuple[ObservedCall, ...]]:
    try:
        driver = jdbc_driver()
    except pytest.skip.Exception as error:
        raise NoWheelError(str(error)) from None
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as (server, files):
        port = flight_port(server.url)
        options = {DatabaseOptions.TLS_ROOT_CERTS.value: files.certificate.read_text()}
        caller = AdbcCaller(f"grpc+tls://127.0.0.1:{port}", server.keys, options)
        by_adbc = {
            "ADBC": tuple(call.observe() for call in adbc_calls(caller)),
            "pandas by ADBC": tuple(call.observe() for call in pandas_calls(caller)),
        }
        url = f"jdbc:arrow-flight-sql://127.0.0.1:{port}/?tlsRootCerts={files.certificate}"
        answers = jdbc_answers(driver, url, server.keys["administrator"], server.keys["bob"])
    return {**by_adbc, "JDBC": tuple(call.observe(answers) for call in CALLS)}


def observe(client: str) -> list[ServerObservations]:
    """Make every call of a client. Raises NoWheelError without the driver of JDBC."""
    return [ServerObservations(TITLE, _observe_all()[client])]
