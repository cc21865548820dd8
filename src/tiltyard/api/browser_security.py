"""Protect browsers: security headers on responses; without authentication, no requests from foreign pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
SECURITY_LINES = b"".join(b"%s: %s\r\n" % pair for pair in SECURITY_HEADERS)
"""The same as header lines."""

_ORIGIN, _HOST, _SITE = b"origin", b"host", b"sec-fetch-site"
_OWN_SITE = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site: the page is the server's own, or the user has typed the address."""
_SINGLE = frozenset({b"authorization", b"x-api-key", b"idempotency-key", b"x-lancedb-database", b"host", b"origin"})


def check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise InvalidInputError for a repeated header of which a proxy and this server might read different ones."""
    names = set()
    for name, _ in headers:
        if name in _SINGLE and name in names:
            raise InvalidInputError(f"The header {name.decode()} came twice: send it once.")
        names.add(name)


def check_page(headers: Mapping[bytes, bytes], *, by_any_name: bool) -> None:
    """Raise PermissionDeniedError for a request that a browser sends for a foreign page.

    For servers without authentication: any page in a browser on the same machine could otherwise drop tables, since a
    browser sends simple requests anywhere. And a page can point its own host name to this machine's address (DNS
    rebinding), and then read the responses too; so a server on loopback accepts no public host name, unless
    `by_any_name`.
    """
    origin, host = headers.get(_ORIGIN), headers.get(_HOST, b"")
    if headers.get(_SITE, b"none") not in _OWN_SITE or (origin is not None and not _is_origin_of(origin, host)):
        raise PermissionDeniedError(
            "This request comes from a page of another origin: start the server with --auth to serve such pages."
        )
    if not by_any_name and not _is_local_name(host):
        raise PermissionDeniedError(
            "This server serves this machine only, and the request's Host is a network name: use localhost or "
            "127.0.0.1, or start it with --insecure, or better with --auth."
        )


def is_own_page(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request comes from no foreign page, so that its address can be trusted."""
    try:
        check_page(headers, by_any_name=False)
    except PermissionDeniedError:
        return False
    return True


@lru_cache(maxsize=256)
def _is_origin_of(origin: bytes, host: bytes) -> bool:
    """Whether a page's origin is the server that it calls."""
    return origin.partition(b"://")[2].lower() == host.lower() != b""


@lru_cache(maxsize=256)
def _is_local_name(host: bytes) -> bool:
    """Whether a Host header has an address, or a name that public DNS does not have."""
    try:
        name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
    except ValueError:
        return False
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
