"""What a server says and refuses at its start, so that nobody serves everybody without knowing it."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import sys
from typing import Any

from tiltyard.config import Settings
from tiltyard.context import Services
from tiltyard.identity.keys import FIRST_NAME, first_key
from tiltyard.runtime.fatal import Refuse

ONLY_HTTPS = ("strict-transport-security", "max-age=31536000")
"""To browsers: a year without plain HTTP."""

log = logging.getLogger("tiltyard")


def require_safe(settings: Settings, address: str, refuse: Refuse) -> None:
    """Refuse to serve strangers on an address that others can reach, unless told to; or with a broken certificate."""
    if not (settings.auth or settings.insecure or _is_loopback(address)):
        refuse(
            f"Others can reach {address}, and this server would let in everybody: ask them who they are with --auth, "
            "or say --insecure."
        )
    if settings.tls_certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
        except OSError as error:
            refuse(f"Cannot serve HTTPS with {settings.tls_certificate} and {settings.tls_key}: {error}.")


def network(settings: Settings) -> dict[str, Any]:
    """What the HTTP server is told: its certificate, and whose word about callers it takes."""
    options: dict[str, Any] = {
        "proxy_headers": bool(settings.trusted_proxies),
        "forwarded_allow_ips": list(settings.trusted_proxies),
    }
    if settings.tls_certificate:
        options |= {"ssl_certfile": settings.tls_certificate, "ssl_keyfile": settings.tls_key, "headers": [ONLY_HTTPS]}
    return options


def scheme(settings: Settings) -> str:
    """How its URL begins."""
    return "https" if settings.tls_certificate else "http"


def greet(services: Services, address: str) -> None:
    """Say loudly that everybody is let in; or print the first key, once, on standard output, which is no log."""
    if not services.settings.auth:
        log.warning("EVERYBODY WHO REACHES %s IS AN ADMINISTRATOR HERE: start with --auth to change that.", address)
        return
    if not (services.settings.tls_certificate or services.settings.trusted_proxies or _is_loopback(address)):
        log.warning("keys and tokens go over the network as they are: set tls_certificate, or a proxy that has one")
    key = first_key(services.store)
    if key is not None:
        print(f"The key of '{FIRST_NAME}', shown this once: {key}", file=sys.stdout, flush=True)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
