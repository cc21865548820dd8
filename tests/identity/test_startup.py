"""Start of a server: open on loopback only, its first key, TLS, security headers, settings of providers."""

from __future__ import annotations

import re
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.identity.responses import LIST, ask, refused, wait_for
from tests.services.forked_process import run_tiltyard
from tests.services.postgres import PostgresServer
from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess


def serve(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A start that is refused."""
    return run_tiltyard("serve", "--root", str(root), "--port", "0", *flags)


def said_keys(server: ServerProcess) -> list[str]:
    """The keys that a server printed."""
    return [line.split(": ")[1].strip() for line in server.said if "shown this once" in line]


def test_serve_on_loopback_without_auth_warns_that_it_is_open(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    try:
        assert sum("EVERY CLIENT" in line and "WARNING" in line for line in server.log) == 1
        assert ask(server.url).status_code == 200
        assert said_keys(server) == []
    finally:
        server.stop()


def test_serve_on_loopback_without_auth_refuses_pages_of_other_origins(tmp_path: Path) -> None:
    """Send requests as pages do: with `fetch(…, {mode: "no-cors"})`, and with a name that resolves to this machine."""
    server = ServerProcess(tmp_path)
    try:
        assert httpx.post(f"{server.url}/v1/namespace/n/create", json={}).status_code == 200
        host = server.url.partition("//")[2]
        pages: list[dict[str, str]] = [
            {"origin": "https://evil.example", "sec-fetch-site": "cross-site", "content-type": "text/plain"},
            {"origin": "http://evil.example:2333", "host": "evil.example:2333", "sec-fetch-site": "same-origin"},
            {"host": "evil.example:2333"},
        ]
        for page in pages:
            refusal = httpx.post(f"{server.url}/v1/namespace/n/drop", content="{}", headers=page)
            assert (refusal.status_code, refusal.json()["code"]) == (403, 15)
            assert httpx.get(f"{server.url}/v1/namespace/$/list", headers=page).status_code == 403
        own_page = {"origin": server.url, "host": host, "sec-fetch-site": "same-origin"}
        named = httpx.get(f"{server.url}/v1/namespace/$/list", headers=own_page).json()["namespaces"]
        assert named == ["n"]
    finally:
        server.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_serve_on_another_address_without_auth_is_refused(tmp_path: Path, host: str) -> None:
    done = serve(tmp_path, "--host", host)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "--auth" in done.stderr and "--insecure" in done.stderr


def test_serve_on_another_address_with_insecure_serves_all_callers(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--host", "0.0.0.0", "--insecure")
    try:
        assert any("EVERY CLIENT" in line for line in server.log)
        assert ask(server.url.replace("0.0.0.0", "127.0.0.1")).status_code == 200
    finally:
        server.stop()


def test_serve_on_another_address_with_auth_requires_credentials_and_warns_of_cleartext_keys(tmp_path: Path) -> None:
    with secured_server(tmp_path, "--host", "0.0.0.0") as secured:
        url = secured.url.replace("0.0.0.0", "127.0.0.1")
        refused(ask(url))
        assert ask(url, {"x-api-key": secured.keys["ann"]}).status_code == 200
        assert any("unencrypted" in line for line in secured.server.log)


def test_first_start_with_auth_prints_one_key_once(tmp_path: Path) -> None:
    first = ServerProcess(tmp_path, "--auth", "--workers", "2")
    try:
        wait_for(lambda: said_keys(first))
        (key,) = said_keys(first)
        assert ask(first.url, {"x-api-key": key}).status_code == 200
        assert not any(key in line or key.split("_", 2)[2] in line for line in first.log)
    finally:
        first.stop()
    assert len(said_keys(first)) == 1
    restarted = ServerProcess(tmp_path, "--auth")
    try:
        assert ask(restarted.url, {"x-api-key": key}).status_code == 200
    finally:
        restarted.stop()
    assert said_keys(restarted) == []


def test_first_start_of_two_replicas_at_once_prints_one_key(tmp_path: Path, postgres: PostgresServer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    db = postgres.new_database()
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(ServerProcess, tmp_path, "--auth", "--db", db) for _ in range(2)]
    replicas = [start.result() for start in starts]
    for replica in replicas:
        replica.stop()
    assert sum(len(said_keys(replica)) for replica in replicas) == 1


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/openapi.json"])
def test_pages_need_no_credentials_and_reveal_no_internals(secured: Secured, path: str) -> None:
    response = httpx.get(secured.url + path, timeout=60)
    assert response.status_code == 200
    assert "checks" not in response.json()


def test_openapi_describes_the_security_schemes(secured: Secured) -> None:
    document = httpx.get(f"{secured.url}/openapi.json", timeout=60).json()
    assert set(document["components"]["securitySchemes"]) == {"OAuth2", "BearerAuth", "ApiKeyAuth"}
    assert {} not in document["security"]


def test_every_response_has_the_security_headers(secured: Secured) -> None:
    for path in ("/health/live", LIST, "/nothing", "/oauth/token"):
        headers = httpx.get(secured.url + path, timeout=60).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers and "strict-transport-security" not in headers


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tiltyard tests")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "server.pem", folder / "server.key"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.extended)])
def test_serve_with_a_certificate_serves_https_only(tmp_path: Path, workers: str) -> None:
    chain, key = certificate(tmp_path)
    flags = ("--tls-certificate", str(chain), "--tls-key", str(key), "--workers", workers)
    with secured_server(tmp_path / "root", *flags) as secured:
        trust = ssl.create_default_context(cafile=str(chain))
        response = httpx.get(secured.url + LIST, headers={"x-api-key": secured.keys["ann"]}, verify=trust, timeout=60)
        assert secured.url.startswith("https://") and response.status_code == 200
        assert "max-age" in response.headers["strict-transport-security"]
        with pytest.raises(httpx.TransportError):
            httpx.get(secured.url.replace("https", "http") + LIST, timeout=60)


def test_serve_with_a_certificate_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    chain.write_text("nonsense")
    for flags, says in (
        (("--tls-certificate", str(chain), "--tls-key", str(key)), "Cannot serve HTTPS"),
        (("--tls-certificate", str(tmp_path / "none"), "--tls-key", str(key)), "Cannot serve HTTPS"),
        (("--tls-certificate", str(chain)), "both"),
    ):
        done = serve(tmp_path, *flags)
        assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ({"issuer": "https://id", "audience": "a", "jwks_url": "http://id/keys"}, "https"),
        ({"issuer": "https://id", "audience": "a", "jwks_url": "file:///keys"}, "https"),
        ({"issuer": "https://id", "audience": "", "jwks_url": "https://id/keys"}, "audience"),
        ({"issuer": "tiltyard", "audience": "a", "jwks_url": "https://id/keys"}, "issuer"),
        ({"issuer": "https://id", "audience": "a", "jwks_url": "https://id/k", "algorithms": ["HS256"]}, "algorithms"),
        ({"issuer": "https://id", "audience": "a", "jwks_url": "https://id/k", "algorithms": ["none"]}, "algorithms"),
        ({"issuer": "https://id", "audience": "a", "jwks_url": "https://id/k", "algorithms": []}, "algorithms"),
        ({"issuer": "https://id", "audience": "a", "jwks_url": "https://id/k", "audiences": "b"}, "audiences"),
        ({"issuer": "https://id", "audience": "a", "jwks_url": "https://id/k", "leeway": 1e9}, "leeway"),
        ({"issuer": "https://id", "audience": "a"}, "jwks_url"),
    ],
)
def test_settings_with_an_unsafe_provider_are_refused(provider: dict[str, Any], says: str) -> None:
    from tiltyard.config import ConfigError, load_settings

    with pytest.raises(ConfigError, match=says):
        load_settings({"auth": True, "providers": {"corp": provider}}, environ={})


def test_settings_with_providers_but_without_auth_are_refused() -> None:
    from tiltyard.config import ConfigError, load_settings

    provider = {"issuer": "https://id", "audience": "a", "jwks_url": "https://id/keys"}
    with pytest.raises(ConfigError, match="auth"):
        load_settings({"providers": {"corp": provider}}, environ={})
    with pytest.raises(ConfigError, match="same issuer"):
        load_settings({"auth": True, "providers": {"a": provider, "b": provider}}, environ={})
    with pytest.raises(ConfigError, match="trusted_proxies"):
        load_settings({"trusted_proxies": ["everybody"]}, environ={})


def test_identity_page_example_is_a_settings_file(tmp_path: Path) -> None:
    from tiltyard.config import load_settings

    page = (Path(__file__).parents[2] / "docs/identity.md").read_text()
    example = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    file = tmp_path / "tiltyard.toml"
    file.write_text(example[1])
    provider = load_settings({}, file, environ={}).providers["corp"]
    assert provider.algorithms == ("RS256", "ES256") and provider.principal_claim == "email"
