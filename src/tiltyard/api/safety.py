"""Headers of every answer: what a browser must not do with it."""

from __future__ import annotations

SAFETY = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
SAFETY_LINES = b"".join(b"%s: %s\r\n" % pair for pair in SAFETY)
"""The same, as they go over the wire."""
