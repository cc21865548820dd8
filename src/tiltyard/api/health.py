"""Health pages: whether the process answers, and whether its database and storage do."""

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
    """Report that the process answers."""
    return 200, msgspec.json.encode({"status": "ok", "version": __version__})


def ready(services: Services) -> tuple[int, bytes]:
    """Report whether the database and the storage answer, by a call to each.

    The reason for a failure goes to the log; with authentication, the page has none.
    """
    checks: dict[str, str] = {}
    for name, check in (("database", services.store.check_ready), ("storage", services.storage.probe)):
        try:
            check()
            checks[name] = "ok"
        except LanceNamespaceError as error:
            checks[name] = str(error)
            if not services.outage_log.report(error):
                log.warning("not ready: %s", error)
    is_ready = all(outcome == "ok" for outcome in checks.values())
    body: dict[str, object] = {"status": "ok" if is_ready else "unavailable"}
    if not services.settings.auth:
        body["checks"] = checks
    return 200 if is_ready else 503, msgspec.json.encode(body)


def openapi(services: Services) -> tuple[int, bytes]:
    """Return the OpenAPI document."""
    return 200, openapi_json(services.settings.auth)


PAGES: Mapping[bytes, Page] = {b"/health/live": live, b"/health/ready": ready, b"/openapi.json": openapi}
