"""One TLS context for the clients of tests: httpx reads the certificates of public authorities for each, in 25 ms."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import httpx
from httpx._transports import default

_new_context = httpx.create_ssl_context


def share_tls_context() -> None:
    """Have httpx's clients without settings of their own share a context, if the environment names the same files."""
    default.create_ssl_context = _shared_context


def _shared_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
    if verify is True and cert is None and trust_env:
        return _default_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return _new_context(verify, cert, trust_env)


@cache
def _default_context(_file: str | None, _folder: str | None) -> Any:
    return _new_context()
