"""Reach a catalog for a command: through a server, or in this process.

An error of the catalog ends the command with one sentence for the operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.calls.http_caller import HttpCaller, key_headers
from tiltyard.cli.database import require_database
from tiltyard.cli.session.failures import CommandError, describe_failure, status_of
from tiltyard.cli.session.target import open_root
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.context import Context


@contextmanager
def connect(
    settings: Settings, url: str, key: str, *, creates: bool = False, database_alone: bool = False
) -> Iterator[Caller]:
    """Yield what calls the operations of the server at `url`, or of a catalog in this process where that is empty.

    A catalog that does not exist is made only if the command `creates`: a mistyped root would look like an empty one.
    Operations that need the `database_alone` run in this process without its storage and its mounts.
    """
    try:
        if url:
            caller: Caller = HttpCaller(url, key_headers(key))
        else:
            caller = open_root(settings, creates=creates, database_alone=database_alone)
        with caller:
            yield caller
    except CommandError as error:
        refuse(str(error), error.status)
    except LanceNamespaceError as error:
        refuse(describe_failure(error, str(error)), status_of(error))


@contextmanager
def open_context(settings: Settings) -> Iterator[Context]:
    """Yield a context of the server's own principal on an existing catalog, for maintenance.

    No catalog is created: there would be nothing to maintain, and a mistyped root would look like a sound one.
    """
    from tiltyard.context import Context
    from tiltyard.model.principals import SERVER
    from tiltyard.server.process import open_services_or_refuse

    require_database(settings)
    services = open_services_or_refuse(settings)
    try:
        yield Context(services, "cli", principal=SERVER)
    except LanceNamespaceError as error:
        refuse(str(error), status_of(error))
    finally:
        services.close()
