"""`tiltyard protect …`: protections of the server, of namespaces and of tables; on a server, or on the database."""

from __future__ import annotations

from typing import Any

import click

from tiltyard.cli.access.grants import format_object, object_option, parse_object
from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import catalog_options
from tiltyard.cli.session.target import CatalogTarget, opened_catalog

KINDS = ("deletion", "hold", "read-only", "approval")
operations_option = click.option(
    "--operation", "operations", multiple=True, help="Of approval: an operation that needs it (DropTable); repeatable."
)
kind_argument = click.argument("kind", type=click.Choice(KINDS, case_sensitive=False))


@click.group("protect", cls=CommandGroup, short_help="Protect tables and namespaces: deletion, legal hold, read-only.")
def protect() -> None:
    """Protect the server, a namespace with all below it, or a table.

    deletion: it is not dropped, replaced or moved away. hold: a legal hold, under which nothing of it is collected
    either. read-only: nothing is changed, reads go on. approval: some operations run once a second principal has
    approved the call.

    \b
    Examples:
      tiltyard protect set deletion --on namespace:sales --root ./data
      tiltyard protect set hold --on 'table:sales$orders' --reason 'case 4711' --url https://lake.example.org
      tiltyard protect set approval --operation DropTable --on namespace:sales --root ./data
      tiltyard protect lift read-only --on server --root ./data
    """


@protect.command("set", short_help="Set a protection.")
@kind_argument
@object_option
@operations_option
@click.option("--dropped-id", type=int, help="The table is a dropped one, with this id (`tiltyard undrop list`).")
@click.option("--reason", default="", help="Why; whoever is refused reads it. A legal hold needs one.")
@catalog_options
def set_protection(
    target: CatalogTarget, kind: str, securable: str, operations: tuple[str, ...], dropped_id: int | None, reason: str
) -> None:
    """Protect an object by KIND: deletion, hold, read-only or approval.

    \b
    Examples:
      tiltyard protect set deletion --on 'table:sales$orders' --root ./data
      tiltyard protect set read-only --on server --reason 'moving to new disks' --url https://lake.example.org
    """
    fields = {**parse_object(securable), "dropped_id": dropped_id}
    with opened_catalog(target) as calls:
        calls.call("SetProtection", **fields, kind=kind, reason=reason or None, operations=list(operations) or None)
    click.echo(f"{securable or 'server'} is protected: {', '.join((kind, *operations))}")


@protect.command("lift", short_help="Lift a protection where it was set.")
@kind_argument
@object_option
@operations_option
@click.option("--dropped-id", type=int, help="The table is a dropped one, with this id (`tiltyard undrop list`).")
@catalog_options
def lift_protection(
    target: CatalogTarget, kind: str, securable: str, operations: tuple[str, ...], dropped_id: int | None
) -> None:
    """Lift the protection KIND from the object that it was set on; what that inherits stays.

    \b
    Example:
      tiltyard protect lift hold --on 'table:sales$orders' --url https://lake.example.org
    """
    fields = {**parse_object(securable), "dropped_id": dropped_id}
    with opened_catalog(target) as calls:
        lifted = calls.call("LiftProtection", **fields, kind=kind, operations=list(operations) or None)
    click.echo(f"{securable or 'server'} is no longer protected: {kind}")
    for entry in lifted["protections"]:
        click.echo(f"still: {_format(entry)}")


@protect.command("list", short_help="List protections.")
@click.option(
    "--on", "securable", default="", metavar="OBJECT", help="Only what protects this object, inherited or not."
)
@catalog_options
def list_protections(target: CatalogTarget, securable: str) -> None:
    """List the protections of the catalog, or those of an object with what it inherits.

    \b
    Examples:
      tiltyard protect list --root ./data
      tiltyard protect list --on 'table:sales$orders' --url https://lake.example.org
    """
    with opened_catalog(target) as calls:
        if securable:
            entries = calls.call("ListProtections", **parse_object(securable))["protections"]
        else:
            entries = calls.entries("ListProtections", "protections")
        for entry in entries:
            click.echo(_format(entry))


@protect.command("requests", short_help="List calls that need approval.")
@click.option("--all", "show_all", is_flag=True, help="Those that are decided, too.")
@catalog_options
def list_requests(target: CatalogTarget, show_all: bool) -> None:
    """List the calls that wait for approval: your own, and those that you may decide.

    \b
    Example:
      tiltyard protect requests --url https://lake.example.org
    """
    with opened_catalog(target) as calls:
        for entry in calls.entries("ListApprovals", "approvals"):
            if show_all or entry["status"] == "requested":
                by = f"requested by {entry['requested_by']}"
                decided = f", decided by {entry['decided_by']}" if entry.get("decided_by") else ""
                click.echo(f"{entry['id']}  {entry['status']}  {entry['operation']}  {by}{decided}  {entry['request']}")


@protect.command("approve", short_help="Approve a call of another principal.")
@click.argument("approval_id", metavar="ID")
@catalog_options
def approve(target: CatalogTarget, approval_id: str) -> None:
    """Approve a call, which its caller then sends once more. Whoever has requested it cannot.

    \b
    Example:
      tiltyard protect approve 5b0c0f3e-1f4e-4c7e-9a52-0d7f4f3a2b11 --url https://lake.example.org
    """
    _decide(target, approval_id, approved=True)


@protect.command("deny", short_help="Deny a call of another principal.")
@click.argument("approval_id", metavar="ID")
@catalog_options
def deny(target: CatalogTarget, approval_id: str) -> None:
    """Deny a call that waits for approval.

    \b
    Example:
      tiltyard protect deny 5b0c0f3e-1f4e-4c7e-9a52-0d7f4f3a2b11 --url https://lake.example.org
    """
    _decide(target, approval_id, approved=False)


def _decide(target: CatalogTarget, approval_id: str, *, approved: bool) -> None:
    with opened_catalog(target) as calls:
        entry = calls.call("DecideApproval", approval_id=approval_id, approved=approved)["approval"]
    click.echo(f"{entry['operation']} of {entry['requested_by']} is {entry['status']}: {entry['request']}")


def _format(entry: dict[str, Any]) -> str:
    """Format a protection for one line."""
    kind = " ".join((entry["kind"].replace("_", "-"), *filter(None, [entry.get("operation")])))
    reason = f": {entry['reason']}" if entry.get("reason") else ""
    return f"{format_object(entry)}  {kind}  by {entry['set_by']}{reason}"
