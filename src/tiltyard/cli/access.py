"""Grants and roles from the command line: the same operations, on a server or in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from lance_namespace.errors import LanceNamespaceError

from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.ids import DEFAULT_DELIMITER, display, parse_id
from tiltyard.model.operations import bound_operations
from tiltyard.model.principals import Principal
from tiltyard.model.spec import models
from tiltyard.pipeline.operation_calls import Calls
from tiltyard.pipeline.table_location import Connection
from tiltyard.runtime.fatal import Refuse
from tiltyard.server.serve import open_or_refuse

Call = Callable[..., dict[str, Any]]

OPERATOR = Principal("operator", method="command line", administrator=True)
"""Whoever may write to the catalog's database."""
NOT_ALLOWED = 3
PATIENCE_SECONDS = 5.0


@contextmanager
def reaching(settings: Settings, refuse: Refuse, url: str, key: str) -> Iterator[Call]:
    """How operations are called; what they raise is one sentence to the operator."""
    try:
        if url:
            header = (("header.x-api-key", key),) if key else ()
            calls = Calls(Connection("rest", (("uri", url), *header)))
            yield lambda name, /, **fields: calls.call(name, patience=PATIENCE_SECONDS, **fields)
            return
        services = open_or_refuse(settings, refuse)
        try:
            yield lambda name, /, **fields: _called(Context(services, "cli", principal=OPERATOR), name, fields)
        finally:
            services.store.close()
    except LanceNamespaceError as error:
        refuse(str(error))


def _called(ctx: Context, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    operation, served = bound_operations()[name]
    assert served is not None
    assert operation.request is not None
    given = {field: value for field, value in fields.items() if value is not None}
    answer = served.function(ctx, msgspec.convert(given, getattr(models, operation.request)))
    told: dict[str, Any] = msgspec.to_builtins(answer)
    return told


def _object(text: str) -> dict[str, Any]:
    """`table:a$b` as the fields of a request. Raises InvalidInputError."""
    kind, _, name = text.partition(":")
    return {"object_kind": kind or "server", "id": list(parse_id(name, DEFAULT_DELIMITER)) or None}


def _grantee(text: str) -> dict[str, Any]:
    """`role:a`, or the name of a principal, as the fields of a request."""
    kind, parted, name = text.partition(":")
    if parted and kind in ("role", "group", "principal"):
        return {"grantee_kind": kind, "grantee": name}
    return {"grantee_kind": "principal", "grantee": text}


def run_change(
    settings: Settings, refuse: Refuse, operation: str, *, privileges: str, what: str, whom: str, url: str, key: str
) -> None:
    """Grant or revoke, and say what is granted on the object now."""
    with reaching(settings, refuse, url, key) as call:
        left = call(operation, **_object(what), **_grantee(whom), privileges=privileges.split(","))["privileges"]
    click.echo(f"{whom} has {', '.join(left) or 'nothing'} on {what or 'server'}")


def run_list(settings: Settings, refuse: Refuse, *, what: str, whom: str, url: str, key: str) -> None:
    """List grants, page by page."""
    asked = _grantee(whom) if whom and not what else {**_object(what), "grantee": whom or None}
    with reaching(settings, refuse, url, key) as call:
        for one in _pages(call, "ListGrants", "grants", asked):
            grantee = f"{one['grantee_kind']}:{one['grantee']}"
            click.echo(f"{_shown(one)}  {grantee}  {','.join(one['privileges'])}  by {one['granted_by']}")


def _shown(grant: dict[str, Any]) -> str:
    """The object of a grant; one that was dropped, and can be brought back, has no name."""
    kind, names = grant["object_kind"], grant.get("id")
    if kind == "server":
        return "server"
    return f"{kind}:{'(dropped)' if names is None else display(tuple(names))}"


def _pages(call: Call, name: str, entries: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    token = None
    while True:
        page = call(name, **asked, page_token=token)
        yield from page[entries]
        token = page.get("page_token")
        if not token:
            return


def run_whoami(settings: Settings, refuse: Refuse, *, url: str, key: str) -> None:
    """Say who one is."""
    with reaching(settings, refuse, url, key) as call:
        told = call("WhoAmI")
    click.echo(f"principal:  {told['principal']}{', an administrator' if told['administrator'] else ''}")
    click.echo(f"known by:   {told['method']}")
    for name in ("groups", "roles"):
        click.echo(f"{name + ':':<12}{', '.join(told[name]) or 'none'}")
    click.echo(f"everywhere: {', '.join(told['privileges']) or 'nothing'}")


def run_can(
    settings: Settings,
    refuse: Refuse,
    *,
    whom: str,
    privileges: str,
    what: str,
    groups: tuple[str, ...],
    url: str,
    key: str,
) -> None:
    """Say whether somebody may, and end with a status that says it too."""
    about = {} if whom == "me" else {**_grantee(whom), "groups": list(groups) or None}
    with reaching(settings, refuse, url, key) as call:
        told = call("CheckPrivileges", **_object(what), **about, privileges=privileges.split(","))
    if told["allowed"]:
        click.echo("yes")
        return
    click.echo(f"no: {', '.join(told['missing'])} is missing; there is {', '.join(told['privileges']) or 'nothing'}")
    sys.exit(NOT_ALLOWED)


def run_roles(settings: Settings, refuse: Refuse, *, url: str, key: str) -> None:
    """List roles with their members."""
    with reaching(settings, refuse, url, key) as call:
        for one in _pages(call, "ListRoles", "roles", {}):
            members = (f"{member['kind']}:{member['name']}" for member in one["members"])
            click.echo(f"{one['name']}  {' '.join(members)}".rstrip())


def run_members(
    settings: Settings, refuse: Refuse, action: str, *, name: str, members: tuple[str, ...], url: str, key: str
) -> None:
    """Add or remove members; a role that is not there is added, one that loses no member is dropped."""
    with reaching(settings, refuse, url, key) as call:
        if action == "add":
            known = {one["name"] for one in _pages(call, "ListRoles", "roles", {})}
            if name not in known:
                call("CreateRole", role=name)
        elif not members:
            call("DropRole", role=name)
            click.echo(f"{name} is dropped.")
        for member in members:
            fields = _grantee(member)
            operation = "AddRoleMember" if action == "add" else "RemoveRoleMember"
            call(operation, role=name, member=fields["grantee"], member_kind=fields["grantee_kind"])
            click.echo(f"{member} is {'in' if action == 'add' else 'no longer in'} {name}.")
