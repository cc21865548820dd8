"""Catalogs over HTTP that answer what is no response: each is an error of the specification, whatever was asked."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError

from tests.services.cases import check_each
from tests.services.certificates import CertificateFiles, loopback_certificate
from tests.services.stub_catalog import Answer, StubRequest, stub_catalog
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.mounts.http import client as http_client

TABLE = Id(("a", "b", "t"))
WRONG: tuple[object, ...] = (
    b"", b"[]", b'"x"', b"null", b"{", b"\xff", {}, {"metadata": None}, {"metadata": {}}, {"metadata": {"location": 1}},
    {"table": {}}, {"table": []}, {"identifiers": [{}]}, {"identifiers": {}}, {"namespaces": [[]]}, {"namespaces": "x"},
    {"tables": [1]}, {"name": 1}, {"name": "b"}, {"properties": []}, {"properties": {"a": 1}}, {"location": {}},
    {"defaults": [], "overrides": 1}, {"overrides": {"prefix": []}}, {"next-page-token": 1}, {"page_token": []},
)  # fmt: skip
MORE: dict[str, dict[str, object]] = {"polaris": {"catalog": "c", "root": "/data"}, "unity": {"root": "/data"}}


def opened(kind: str, url: str) -> MountedCatalog:
    return open_catalog(kind, {"uri": url, "timeout": 5, "connect_timeout": 1, **MORE.get(kind, {})})


@pytest.mark.parametrize("kind", ["iceberg", "lance", "polaris", "unity"])
def test_a_wrong_answer_is_an_error_of_the_specification(kind: str) -> None:
    answered: list[object] = []

    def check(content: object) -> None:
        answered.append(content)
        catalog = opened(kind, stub.url)
        calls: list[Callable[[], object]] = [
            lambda: catalog.list_namespaces(Id(), 2),
            lambda: catalog.list_namespaces(Id(("a",))),
            lambda: catalog.get_namespace(TABLE.parent),
            lambda: catalog.create_namespace(TABLE.parent, {}),
            lambda: catalog.drop_namespace(TABLE.parent),
            lambda: catalog.list_tables(TABLE.parent, 2),
            lambda: catalog.get_table(TABLE),
            lambda: catalog.declare_table(TABLE, None, {}),
            lambda: catalog.update_table_properties(TABLE, {"a": "b"}),
            lambda: catalog.rename_table(TABLE, Id((*TABLE.parent, "u"))),
            lambda: catalog.deregister_table(TABLE),
            lambda: catalog.vend_credentials(TABLE, writable=True),
        ]
        for call in calls:
            with suppress(LanceNamespaceError):
                call()
        catalog.close()

    with stub_catalog(lambda _: (200, answered[-1])) as stub:
        check_each(WRONG, check)


@pytest.mark.parametrize("kind", ["iceberg", "lance", "polaris", "unity"])
def test_a_response_without_an_end_is_an_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_RESPONSE_BYTES", 1000)
    content = {"properties": {"a": "b" * 2000}}
    with stub_catalog(lambda _: (200, content)) as stub, pytest.raises(MalformedAnswerError, match="answers more"):
        opened(kind, stub.url).get_namespace(TABLE.parent)


def test_a_redirect_is_not_followed() -> None:
    def answer(request: StubRequest) -> Answer:
        return 307, {}

    with stub_catalog(answer) as stub, pytest.raises(LanceNamespaceError):
        opened("lance", stub.url).get_namespace(Id(("ns",)))
    assert len(stub.requests) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return loopback_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def secured_url(certificate: CertificateFiles) -> Iterator[str]:
    """A server by HTTPS that takes only clients with this certificate."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            content = b'{"properties": {"a": "b"}}'
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.load_verify_locations(certificate.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that it does not take
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_certificates_of_both_sides_are_used(secured_url: str, certificate: CertificateFiles, tmp_path: Path) -> None:
    own = {"cert_file": str(certificate.certificate), "key_file": str(certificate.key)}
    accepted = {"ca_file": str(certificate.certificate)}
    catalog = open_catalog("lance", {"uri": secured_url, **accepted, **own})
    assert catalog.get_namespace(Id(("ns",))) == {"a": "b"}
    with pytest.raises(ServiceUnavailableError, match="certificate"):
        open_catalog("lance", {"uri": secured_url, **own}).get_namespace(Id(("ns",)))
    with pytest.raises(ServiceUnavailableError):
        open_catalog("lance", {"uri": secured_url, **accepted, "timeout": 2}).get_namespace(Id(("ns",)))
    with pytest.raises(InvalidInputError, match="certificates"):
        open_catalog("lance", {"uri": secured_url, "ca_file": str(tmp_path / "none")})
