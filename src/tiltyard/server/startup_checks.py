"""Check at its start that a server can listen, and is not open to strangers by mistake; say who has access."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import sys
import tempfile
from typing import Any

from tiltyard.access.decisions.decisions import decision_problems
from tiltyard.config import Settings
from tiltyard.context import Services
from tiltyard.identity.keys import FIRST_ADMINISTRATOR, create_first_key
from tiltyard.runtime.process import refuse

STRICT_TRANSPORT_SECURITY = ("strict-transport-security", "max-age=31536000")
"""Have browsers use HTTPS alone for a year."""
MAX_TEMPORARY_PATH_BYTES = 70
"""The length of the temporary folder's path: Python's sockets in it take 32 bytes more, and the system allows 103."""

log = logging.getLogger("tiltyard")


def check_exposure(settings: Settings, address: str) -> None:
    """End the command where strangers would be served on an address that others can reach, unless settings say so.

    Also where the TLS certificate cannot be loaded. That SQL cannot be run is logged: all else can be served.
    """
    if problem := exposure_problem(settings, address) or tls_problem(settings):
        refuse(problem)
    if problem := temporary_folder_problem():
        log.warning("SQL will fail. %s", problem)


def check_decisions(settings: Settings) -> None:
    """Log which services that decide about requests do not answer: what they are asked about is refused meanwhile."""
    for name, problem in decision_problems(settings).items():
        if problem:
            log.warning("'%s' decides about requests. What it is asked about is refused: %s.", name, problem)


def exposure_problem(settings: Settings, address: str) -> str | None:
    """Return that strangers would be served on an address that others can reach, against what the settings say."""
    if settings.auth or settings.insecure or is_loopback(address):
        return None
    return (
        f"Others can reach {address}, and this server does not authenticate callers: start it with --auth, "
        "or allow this with --insecure."
    )


def tls_problem(settings: Settings) -> str | None:
    """Return why the TLS certificate of the settings cannot be loaded, if there is one."""
    if settings.tls_certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
        except OSError as error:
            return f"Cannot serve HTTPS with {settings.tls_certificate} and {settings.tls_key}: {error}."
    return None


def temporary_folder_problem() -> str | None:
    """Return that sockets cannot be made in the folder of temporary files, through which SQL's processes start."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) <= MAX_TEMPORARY_PATH_BYTES:
        return None
    return (
        f"The folder of temporary files, {folder}, has a path of more than {MAX_TEMPORARY_PATH_BYTES} bytes, too many "
        "for the sockets through which processes for SQL are started: set TMPDIR to a shorter one."
    )


def crosses_unencrypted(settings: Settings, address: str) -> bool:
    """Return whether keys and tokens come to an address without TLS, neither the server's nor that of a proxy."""
    return not (settings.tls_certificate or settings.trusted_proxies or is_loopback(address))


def uvicorn_network_options(settings: Settings) -> dict[str, Any]:
    """Return uvicorn's options for its certificate and for the proxies whose forwarded headers it trusts."""
    options: dict[str, Any] = {
        "proxy_headers": bool(settings.trusted_proxies),
        "forwarded_allow_ips": list(settings.trusted_proxies),
    }
    if settings.tls_certificate:
        options |= {
            "ssl_certfile": settings.tls_certificate,
            "ssl_keyfile": settings.tls_key,
            "headers": [STRICT_TRANSPORT_SECURITY],
        }
    return options


def url_scheme(settings: Settings) -> str:
    """Return the scheme of the server's URL."""
    return "https" if settings.tls_certificate else "http"


def announce_access(services: Services, address: str) -> None:
    """Warn loudly that everybody is let in; or print the first key, once, on standard output, which is no log."""
    if not services.settings.auth:
        log.warning("EVERY CLIENT THAT REACHES %s IS AN ADMINISTRATOR: start with --auth to change that.", address)
        return
    if crosses_unencrypted(services.settings, address):
        log.warning(
            "keys and tokens cross the network unencrypted: set tls_certificate, or use a proxy that terminates TLS"
        )
    key = create_first_key(services.store)
    if key is not None:
        print(f"The key of '{FIRST_ADMINISTRATOR}', shown this once: {key}", file=sys.stdout, flush=True)


def is_loopback(address: str) -> bool:
    """Return whether nobody but this machine reaches an address."""
    return ipaddress.ip_address(address).is_loopback


def local_address(host: str) -> str:
    """Return by which address this machine reaches what listens on a host, which may be all addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return host
