"""SQL of a server with a certificate: by TLS alone, to lancedb's client and to the drivers of ADBC and JDBC."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import grpc
import lancedb
import pytest
from adbc_driver_flightsql import DatabaseOptions
from lancedb.remote import ClientConfig, TlsConfig

from tests.cli.conftest import printed, refused, run_command
from tests.flight.conftest import FILMS, flight_port
from tests.services.certificates import CertificateFiles, loopback_certificate
from tests.services.jdbc import run_with_driver
from tests.services.secured import Secured, secured_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore:Cannot disable autocommit")
QUERY = "SELECT title FROM films WHERE id < 3 ORDER BY id"
TITLES = ["Alien", "Brazil"]
PROGRAM = Path(__file__).parent / "jdbc" / "QueryProgram.java"
STORE_PASSWORD = "changeit"


@dataclass(frozen=True)
class TlsServer:
    """The server, the port of its SQL, and its certificate."""

    secured: Secured
    port: int
    files: CertificateFiles

    @property
    def key(self) -> str:
        return self.secured.keys["administrator"]

    def lancedb(self) -> Any:
        return lancedb.connect(
            "db://dev",
            api_key=self.key,
            host_override=self.secured.url,
            sql_host_override=f"grpc+tls://127.0.0.1:{self.port}",
            client_config=ClientConfig(tls_config=TlsConfig(ssl_ca_cert=str(self.files.certificate))),
        )

    def adbc(self, authorities: str) -> Any:
        options = {
            "adbc.flight.sql.rpc.call_header.x-api-key": self.key,
            DatabaseOptions.TLS_ROOT_CERTS.value: authorities,
        }
        return adbc.connect(f"grpc+tls://127.0.0.1:{self.port}", db_kwargs=options)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("tls")
    files = loopback_certificate(folder)
    flags = ("--tls-certificate", str(files.certificate), "--tls-key", str(files.key))
    with secured_server(folder / "root", *flags, names=()) as secured:
        server = TlsServer(secured, flight_port(secured.url), files)
        server.lancedb().create_table("films", FILMS)
        yield server


def test_query_of_lancedb_by_tls(tls: TlsServer) -> None:
    assert tls.lancedb().execute_query(QUERY).read_all()["title"].to_pylist() == TITLES


def test_query_of_adbc_by_tls(tls: TlsServer) -> None:
    authorities = tls.files.certificate.read_text()
    with tls.adbc(authorities) as connection, connection.cursor() as cursor:
        cursor.execute(QUERY)
        assert [title for (title,) in cursor.fetchall()] == TITLES


def make_trust_store(certificate: Path, folder: Path) -> Path:
    """Make a Java key store that trusts the certificate."""
    store = folder / "trust.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "tiltyard", "-storetype", "PKCS12"]
    command += ["-file", str(certificate), "-keystore", str(store), "-storepass", STORE_PASSWORD]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return store


@pytest.mark.extended
def test_query_of_jdbc_by_tls(tls: TlsServer, driver: Path, tmp_path: Path) -> None:
    store = make_trust_store(tls.files.certificate, tmp_path)
    url = f"jdbc:arrow-flight-sql://127.0.0.1:{tls.port}/"
    for trust in (
        f"tlsRootCerts={tls.files.certificate}",
        f"useSystemTrustStore=false&trustStore={store}&trustStorePassword={STORE_PASSWORD}",
    ):
        run = run_with_driver(driver, PROGRAM, f"{url}?{trust}", "administrator", tls.key, QUERY)
        assert (run.returncode, run.stdout.split()) == (0, TITLES), run.stderr
    run = run_with_driver(driver, PROGRAM, url, "administrator", tls.key, QUERY)
    assert run.returncode == 1
    assert "PKIX path building failed" in run.stderr


def test_client_that_does_not_know_the_certificate_sends_nothing(
    tls: TlsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = loopback_certificate(tmp_path_factory.mktemp("other")).certificate.read_text()
    with (
        pytest.raises(adbc_driver_manager.Error, match=r"(?i)certificate"),
        tls.adbc(other) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(QUERY)


def test_call_without_tls_is_refused(tls: TlsServer) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{tls.port}") as channel:
        call = channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"", metadata=(("x-api-key", tls.key),), timeout=60)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_command_line_trusts_the_authorities_of_the_environment(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("sql", QUERY, "--server", tls.secured.url, "--key", tls.key, "--format", "csv")
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.files.certificate))
    assert printed(run_command(*arguments)).replace('"', "").split()[1:] == TITLES
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "is not trusted: name its authority by SSL_CERT_FILE" in refused(run_command(*arguments), 6)
