"""What the console asks of browsers: its security headers, and where a request may come from."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "media", "connect", "font")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing inline, nothing from elsewhere, and no page of others around these."""
CELL_POLICY = "default-src 'none'; sandbox"
"""Of bytes out of tables: even where a browser shows them as a page of their own, nothing in them runs."""
NO_STORE = "no-store"
"""The Cache-Control of all but the console's own files: what a page shows, a policy or a revoked grant can hide."""
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": NO_STORE,
}
_OWN_SITE = frozenset({"same-origin", "none"})


def check_request(headers: Mapping[str, str], *, changes: bool, is_open: bool) -> None:
    """Raise PermissionDeniedError for a request that a page of others sends.

    A change may come from the console's own pages alone. Without authentication (`is_open`) no page of others may read,
    either; and since such a page can point its own name to this machine's address (DNS rebinding), the server has to be
    called by a name of loopback.
    """
    host = headers.get("host", "")
    if is_open and not is_loopback_name(host):
        raise PermissionDeniedError(
            "Without authentication the console is for this machine only: open it as http://localhost or "
            "http://127.0.0.1 there, or start the server with --auth."
        )
    if (changes or is_open) and not _is_own_page(headers, host):
        raise PermissionDeniedError("This request comes from a page of another origin: open the console itself.")


def _is_own_page(headers: Mapping[str, str], host: str) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        return False
    return origin is None or origin.partition("://")[2].lower() == host.lower() != ""


def is_loopback_name(host: str) -> bool:
    """Whether a Host header is a name or an address of this machine itself."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        return ip_address(name).is_loopback
    except ValueError:
        return False
