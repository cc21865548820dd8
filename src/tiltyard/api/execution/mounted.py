"""Run requests for what is below a mount: whatever waits for the other catalog does so in threads of the mount.

So a catalog that does not answer costs the requests below its mount, and no thread that others need.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)
from msgspec import structs

from tiltyard.api.execution.choice import Idempotent
from tiltyard.api.execution.threaded import Threaded
from tiltyard.context import MountedObjects
from tiltyard.model.ids import Id

if TYPE_CHECKING:
    from tiltyard.api.execution.threaded import Execution
    from tiltyard.api.routing import Route
    from tiltyard.context import Context
    from tiltyard.mounts.registry.mount import Mount
    from tiltyard.store import NamespaceRecord, TableRecord

_OUTCOMES = (NamespaceNotFoundError, TableNotFoundError, InvalidTableStateError, PermissionDeniedError)
"""Errors that say how the object is: whether the caller may know that is for authorization to decide."""


async def prepare(
    route: Route, execution: Execution, ctx: Context, request: Any, mount: Mount, below: Id, *, is_idempotent: bool
) -> tuple[Context, Execution]:
    """Return the context and the execution of a request for an object below a mount.

    An operation on a table's data runs as ever, once its table has been looked up; one that the other catalog has to
    take part in runs in a thread of the mount. Raises ServiceUnavailableError, ThrottlingError.
    """
    mount.check_queue()
    handler = route.handler
    assert handler is not None
    if handler.below_mount is not None:
        threaded = Threaded(handler, mount.pool)
        return ctx, Idempotent(threaded, takes_upload=False) if is_idempotent else threaded
    if not below or route.names_namespace:
        return ctx, execution
    mounted = mount.peek_table(below)
    if mounted is None:
        loop = asyncio.get_running_loop()
        objects = await loop.run_in_executor(mount.pool, _look_up, mount, below)
    else:
        objects = MountedObjects({Id((*mount.path, *below)): mounted}, {})
    return structs.replace(ctx, mounted=objects), execution


def _look_up(mount: Mount, below: Id) -> MountedObjects:
    """Look up a table, and if it is not there its namespace."""
    path = Id((*mount.path, *below))
    table: TableRecord | LanceNamespaceError
    namespaces: dict[Id, NamespaceRecord | LanceNamespaceError] = {}
    try:
        table = mount.find_table(below)
    except _OUTCOMES as error:
        table = error
        if below.parent:
            try:
                namespaces[path.parent] = mount.find_namespace(below.parent)
            except NamespaceNotFoundError as missing:
                namespaces[path.parent] = missing
    return MountedObjects({path: table}, namespaces)
