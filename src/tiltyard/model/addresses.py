"""Addresses of catalogs, as people and programs name them."""

from __future__ import annotations


def is_server_address(uri: str) -> bool:
    """Return whether a URI is that of a server; all else is the root of a catalog in this process."""
    return uri.startswith(("http://", "https://"))
