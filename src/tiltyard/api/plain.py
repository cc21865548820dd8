"""Pages that are no operations: health, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from lance_namespace.errors import LanceNamespaceError

from tiltyard import __version__
from tiltyard.api.openapi import openapi_json
from tiltyard.context import Services

Page = Callable[[Services], tuple[int, bytes]]


def live(services: Services) -> tuple[int, bytes]:
    """The process answers."""
    return 200, msgspec.json.encode({"status": "ok", "version": __version__})


def ready(services: Services) -> tuple[int, bytes]:
    """The database and the storage answer: both are really asked."""
    checks: dict[str, str] = {}
    for name, ask in (("database", services.store.ping), ("storage", services.storage.probe)):
        try:
            ask()
            checks[name] = "ok"
        except LanceNamespaceError as error:
            checks[name] = str(error)
    fine = all(found == "ok" for found in checks.values())
    return 200 if fine else 503, msgspec.json.encode({"status": "ok" if fine else "unavailable", "checks": checks})


def openapi(services: Services) -> tuple[int, bytes]:
    """What this server serves."""
    return 200, openapi_json()


PAGES: Mapping[bytes, Page] = {b"/health/live": live, b"/health/ready": ready, b"/openapi.json": openapi}
