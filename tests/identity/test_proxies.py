"""Forwarded headers: accepted from listed proxies only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from tests.identity.responses import wait_for
from tiltyard.config import load_settings
from tiltyard.server.startup_checks import uvicorn_network_options

FORGED = {"x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https"}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer who the caller is taken for."""
    body = json.dumps([scope["client"][0], scope["scheme"]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def echoing(trusted: list[str]) -> Iterator[str]:
    """A server with the network options that `tiltyard serve` would give it."""
    options = uvicorn_network_options(load_settings({"trusted_proxies": trusted}, environ={}))
    server = uvicorn.Server(uvicorn.Config(echo, port=0, lifespan="off", log_config=None, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.mark.parametrize("trusted", [["127.0.0.1"], ["127.0.0.0/8"], ["10.0.0.1", "127.0.0.1"]])
def test_forwarded_headers_of_a_listed_proxy_are_used(trusted: list[str]) -> None:
    with echoing(trusted) as url:
        assert httpx.get(url, headers=FORGED, timeout=60).json() == ["203.0.113.7", "https"]
        through_two = {**FORGED, "x-forwarded-for": "198.51.100.9, 203.0.113.7"}
        assert httpx.get(url, headers=through_two, timeout=60).json() == ["203.0.113.7", "https"]


@pytest.mark.parametrize("trusted", [[], ["10.0.0.1"], ["::1"]])
def test_forwarded_headers_of_others_are_ignored(trusted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's own variable has no say
    with echoing(trusted) as url:
        assert httpx.get(url, headers=FORGED, timeout=60).json() == ["127.0.0.1", "http"]
