"""The operation CheckMount: what is wrong with the entries of a mounted catalog, one after the other.

An entry is looked up as a request for it would be, so what is found is what a caller would get. The walk through the
catalog is cut into responses by time; a page token says where it goes on, and no server keeps anything in between.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableNotFoundError,
    ThrottlingError,
)

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.catalog.mounts.mounts import find_mount
from tiltyard.model.ids import Id, check_id, namespace_id
from tiltyard.model.operations import PoolName, operation
from tiltyard.model.spec import models
from tiltyard.mounts import NamePage
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.mounts.registry.mount import LocationInUseError
from tiltyard.store import LocationTakenError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tiltyard.context import Context
    from tiltyard.mounts.registry.mount import Mount

CHECK_SECONDS = 15.0
"""After which a response ends: clients and proxies give up on one that takes a minute."""
TABLES_AT_ONCE = 50
"""Tables that are checked before the time is looked at."""
NAMESPACES_AT_ONCE = 500

_NOT_FOUND = (
    "It is listed, but not found by its name, which the other catalog folds or cannot look up: rename it there. (Or it "
    "was dropped a moment ago.)"
)
_NO_TABLE = "There is no Lance table in its folder: it was declared and never written, or its files are gone."


@operation(needs=ADMINISTRATORS, pool=PoolName.WRITES)
def check_mount(ctx: Context, request: models.CheckMountRequest) -> models.CheckMountResponse:
    """Check whether a mounted catalog answers, and each Lance table in it; `convert` makes unsafe entries safe.

    Raises NamespaceNotFoundError (no mount), InvalidInputError, ServiceUnavailableError and ThrottlingError where the
    other catalog stops answering on the way.
    """
    mount = find_mount(ctx, namespace_id(request.id))
    scope = f"check of the mount {mount.path}"
    position = ctx.paging.read_key(scope, request.page_token)
    try:
        mount.list_namespaces(Id(), 1, None)
    except LanceNamespaceError as error:
        return models.CheckMountResponse(reachable=False, outage=str(error), namespaces=0, tables=0, findings=[])
    check = _Check(ctx, mount, convert=bool(request.convert))
    walk = _Walk(mount, position)
    deadline = time.monotonic() + CHECK_SECONDS
    while walk.namespace is not None:
        if walk.tables_token is None:
            check.check_namespace(walk.namespace)
        walk.advance(check.check_tables(walk.namespace, walk.tables_token))
        if time.monotonic() >= deadline:
            break
    token = None if walk.namespace is None else ctx.paging.make_token(scope, walk.position)
    return models.CheckMountResponse(
        reachable=True, namespaces=check.namespaces, tables=check.tables, findings=check.findings, page_token=token
    )


def _describe_conflict(error: InvalidTableStateError) -> str:
    """Return the problem of an entry that cannot be opened; of one whose location overlaps a table's, which it is."""
    taken = error.__cause__
    if not isinstance(taken, LocationTakenError):
        return str(error)
    if isinstance(error, LocationInUseError) and taken.record.location != error.location:
        return f"Its location is inside or around the folder of {Id(taken.path)}: deregister one of the two."
    return f"It has the same location as {Id(taken.path)}: deregister one of the two."


@dataclass(slots=True)
class _Level:
    """A page of the namespaces in `parent`, its token, and the number of the name that the walk is at."""

    parent: Id
    token: str | None
    page: NamePage
    number: int = 0


class _Walk:
    """Goes through the namespaces of a mount, a page of tables at a time; a namespace comes before what is in it.

    `namespace` is None once it is through.
    """

    def __init__(self, mount: Mount, position: Sequence[Any] | None) -> None:
        """Start, or go on at the position of another walk."""
        self._mount = mount
        self._levels: list[_Level] = []
        self.namespace: Id | None = Id()
        start: Sequence[Any] = ([], [], None)
        names, levels, self.tables_token = position or start
        for parent, (token, number) in enumerate(levels):
            level = self._list(Id(names[:parent]), token)
            level.number = number
            self._enter(level)
            if self.namespace != Id(names[: parent + 1]):  # others were made or dropped before it
                self.tables_token = None
                return

    @property
    def position(self) -> Sequence[Any]:
        """Where the walk is, in JSON's types."""
        levels = [(level.token, level.number) for level in self._levels]
        return list(self.namespace or ()), levels, self.tables_token

    def advance(self, tables_token: str | None) -> None:
        """Go on to the page of tables that a token is for, without one to the next namespace."""
        self.tables_token = tables_token
        if tables_token is None and self.namespace is not None:
            self._enter(self._list(self.namespace, None))

    def _enter(self, level: _Level) -> None:
        """Enter the namespace at which a level is, or the one that follows where there are no more at the level."""
        while level.number >= len(level.page.names):
            if level.page.next_token is not None:
                level = self._list(level.parent, level.page.next_token)
            elif self._levels:
                level = self._levels.pop()
                level.number += 1
            else:
                self.namespace = None
                return
        self._levels.append(level)
        self.namespace = Id((*level.parent, level.page.names[level.number]))

    def _list(self, parent: Id, token: str | None) -> _Level:
        try:
            return _Level(parent, token, self._mount.list_namespaces(parent, NAMESPACES_AT_ONCE, token))
        except NamespaceNotFoundError:
            return _Level(parent, token, NamePage(()))


class _Check:
    """What was found of a mount."""

    def __init__(self, ctx: Context, mount: Mount, *, convert: bool) -> None:
        self._ctx = ctx
        self._mount = mount
        self._convert = convert
        self.namespaces = 0
        self.tables = 0
        self.findings: list[models.MountFinding] = []

    def check_namespace(self, namespace: Id) -> None:
        """Check that a namespace is found by the name that it is listed with."""
        if not namespace:
            return
        self.namespaces += 1
        look_up = partial(self._mount.namespace_properties, namespace)
        if (problem := self._problem(namespace, look_up)) is not None:
            self._add(namespace, problem)

    def check_tables(self, namespace: Id, token: str | None) -> str | None:
        """Check a page of tables; return the token of the next one."""
        try:
            page = self._mount.list_tables(namespace, TABLES_AT_ONCE, token)
        except NamespaceNotFoundError:
            return None
        tables = [Id((*namespace, name)) for name in page.names]
        self._check_safety(namespace, page.names)
        for table in tables:
            self.tables += 1
            if (problem := self._problem(table, partial(self._check_table, table))) is not None:
                self._add(table, problem)
        return page.next_token

    def _check_table(self, table: Id) -> str | None:
        """Look a table up as a request for it does; return what is wrong. Raises what that request would raise."""
        record = self._mount.find_table(table)
        self._ctx.storage.roots.root_of(record.location)
        return None if self._ctx.storage.has_table(record.location) else _NO_TABLE

    def _check_safety(self, namespace: Id, names: Collection[str]) -> None:
        for name, problem in self._mount.find_unsafe_tables(namespace, names).items():
            table = Id((*namespace, name))
            if not self._convert:
                self._add(table, problem, converted=False)
                continue
            failure = self._problem(table, partial(self._mount.convert_table, table))
            if failure is None:
                self._add(table, problem, converted=True)
            else:
                self._add(table, f"{problem} It was not converted: {failure}", converted=False)

    def _problem(self, path: Id, check: Callable[[], object]) -> str | None:
        """Return what a check finds, or by what error of the object it fails. Raises errors of the whole catalog."""
        try:
            check_id(path)
            found = check()
        except (TableNotFoundError, NamespaceNotFoundError):
            return _NOT_FOUND
        except MalformedAnswerError as error:
            return str(error)
        except (ServiceUnavailableError, ThrottlingError):
            raise
        except InvalidTableStateError as error:
            return _describe_conflict(error)
        except LanceNamespaceError as error:
            return str(error)
        return found if isinstance(found, str) else None

    def _add(self, path: Id, problem: str, *, converted: bool | None = None) -> None:
        """Add a finding; `converted` is None for what cannot be converted."""
        full = [*self._mount.path, *path]
        self.findings.append(models.MountFinding(id=full, problem=problem, converted=converted))
