"""Reach a catalog for a command: through a server, or in this process.

An error of the catalog ends the command with one sentence for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import LanceNamespaceError

from tiltyard.cli.database import require_database
from tiltyard.cli.session.failures import describe_failure, status_of
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.operations import bound_operations
from tiltyard.model.principals import OPERATOR, SERVER
from tiltyard.model.spec import models
from tiltyard.pipeline.operation_client import OperationClient
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.runtime.fatal import refuse
from tiltyard.server.process import open_services_or_refuse

if TYPE_CHECKING:
    Call = Callable[..., dict[str, Any]]
    """Run an operation by its name, with the fields of its request; return its response as a mapping."""

PATIENCE_SECONDS = 5.0
"""How long a command retries a server that does not answer."""


@contextmanager
def connect(
    settings: Settings, url: str, key: str, *, creates: bool = False, database_alone: bool = False
) -> Iterator[Call]:
    """Yield a function that runs operations: on the server at `url`, or in this process where that is empty.

    A catalog that does not exist is made only if the command `creates`: a mistyped root would look like an empty one.
    Operations that need the `database_alone` run in this process without its storage and its mounts.
    """
    try:
        if url:
            header = (("header.x-api-key", key),) if key else ()
            calls = OperationClient(CatalogConnection("rest", (("uri", url), *header)))
            yield lambda name, /, **fields: calls.call(name, retry_seconds=PATIENCE_SECONDS, **fields)
            return
        if not creates:
            require_database(settings)
        services = open_services_or_refuse(settings, database_alone=database_alone)
        try:
            ctx = Context(services, "cli", principal=OPERATOR)
            yield lambda name, /, **fields: _run_in_process(ctx, name, fields)
        finally:
            services.close()
    except LanceNamespaceError as error:
        refuse(describe_failure(error, str(error)), status_of(error))


def _run_in_process(ctx: Context, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    operation, served = bound_operations()[name]
    assert served is not None
    assert operation.request is not None
    present = {field: value for field, value in fields.items() if value is not None}
    request = msgspec.convert(present, getattr(models, operation.request))
    response: dict[str, Any] = msgspec.to_builtins(served.run(ctx, request))
    return response


def list_pages(call: Call, operation: str, field: str, **request: Any) -> Iterator[dict[str, Any]]:
    """Run a list operation page by page; yield the entries, which are in `field` of its responses."""
    token = None
    while True:
        page = call(operation, **request, page_token=token)
        yield from page[field]
        token = page.get("page_token")
        if not token:
            return


@contextmanager
def open_context(settings: Settings) -> Iterator[Context]:
    """Yield a context of the server's own principal on an existing catalog, for maintenance.

    No catalog is created: there would be nothing to maintain, and a mistyped root would look like a sound one.
    """
    require_database(settings)
    services = open_services_or_refuse(settings)
    try:
        yield Context(services, "cli", principal=SERVER)
    except LanceNamespaceError as error:
        refuse(str(error), status_of(error))
    finally:
        services.close()
