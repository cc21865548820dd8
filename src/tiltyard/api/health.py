"""Pages that are no operations: health, and the OpenAPI document."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec
from lance_namespace.errors import LanceNamespaceError

from tiltyard import __version__
from tiltyard.api.openapi import openapi_json
from tiltyard.context import Services

log = logging.getLogger("tiltyard.api")

Page = Callable[[Services], tuple[int, bytes]]


def live(services: Services) -> tuple[int, bytes]:
    """The process answers."""
    return 200, msgspec.json.encode({"status": "ok", "version": __version__})


def ready(services: Services) -> tuple[int, bytes]:
    """The database and the storage answer: both are really asked. Strangers are not told what is wrong: the log is."""
    checks: dict[str, str] = {}
    for name, ask in (("database", services.store.check_ready), ("storage", services.storage.probe)):
        try:
            ask()
            checks[name] = "ok"
        except LanceNamespaceError as error:
            checks[name] = str(error)
            if not services.outage_log.report(error):
                log.warning("not ready: %s", error)
    fine = all(found == "ok" for found in checks.values())
    told: dict[str, object] = {"status": "ok" if fine else "unavailable"}
    if not services.settings.auth:
        told["checks"] = checks
    return 200 if fine else 503, msgspec.json.encode(told)


def openapi(services: Services) -> tuple[int, bytes]:
    """What this server serves."""
    return 200, openapi_json(services.settings.auth)


PAGES: Mapping[bytes, Page] = {b"/health/live": live, b"/health/ready": ready, b"/openapi.json": openapi}
