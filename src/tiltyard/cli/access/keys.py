"""`tiltyard key …` and `tiltyard principal …`: on a server, or on the catalog's database.

The database is enough: keys can be made where the storage cannot be reached, or has no credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import catalog_options
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.session.target import CatalogTarget, opened_catalog
from tiltyard.runtime.process import refuse

DAYS = click.FloatRange(min=0, min_open=True, max=36_500)
HOURS = click.FloatRange(min=0, max=876_000)
DAY_SECONDS, HOUR_SECONDS = 86_400, 3_600


@click.group("key", cls=CommandGroup, short_help="Manage API keys.")
def key() -> None:
    """Manage API keys.

    \b
    Examples:
      tiltyard key create ann --root ./data
      tiltyard key list
    """


@key.command("create", short_help="Create a key, and print it once.")
@click.argument("principal", default="administrator")
@click.option("--administrator", is_flag=True, help="Make the principal an administrator, too.")
@click.option("--expires-days", type=DAYS, help="Days after which the key expires [default: never].")
@click.option("--note", default="", help="What the key is for.")
@catalog_options
def create(
    target: CatalogTarget,
    principal: str,
    administrator: bool,
    expires_days: float | None,
    note: str,
) -> None:
    """Create an API key for a principal, which is created if missing, and print it on standard output.

    \b
    Examples:
      tiltyard key create ann --url https://lake.example.org --expires-days 90 --note "the nightly load"
      tiltyard key create --administrator --root ./data
    """
    with opened_catalog(target, creates=True, database_alone=True) as calls:
        created = calls.call(
            "CreateApiKey",
            principal=principal,
            administrator=administrator,
            note=note,
            expires_in_seconds=_lifetime(expires_days),
        )
    _print_key(created)


@key.command("list", short_help="List keys, without their secrets.")
@click.argument("principal", required=False)
@catalog_options
def list_keys(target: CatalogTarget, principal: str | None) -> None:
    """List the keys of a principal, or all: their ids, principals, last use and expiry.

    Who is no administrator of the server sees the own ones.

    \b
    Example:
      tiltyard key list ann --root ./data
    """
    with opened_catalog(target, database_alone=True) as calls:
        for entry in calls.entries("ListApiKeys", "keys", principal=principal):
            click.echo(_format_key(entry))


@key.command("rotate", short_help="Replace a key by a new one.")
@click.argument("key_id")
@click.option("--overlap-hours", type=HOURS, default=24.0, show_default=True, help="Hours for which both keys work.")
@click.option("--expires-days", type=DAYS, help="Days after which the new key expires [default: never].")
@catalog_options
def rotate(target: CatalogTarget, key_id: str, overlap_hours: float, expires_days: float | None) -> None:
    """Create a key that replaces another one, which keeps working for a while; print it on standard output.

    \b
    Example:
      tiltyard key rotate 0f3c9a6b12d4e578 --overlap-hours 1
    """
    with opened_catalog(target, database_alone=True) as calls:
        overlap = int(overlap_hours * HOUR_SECONDS)
        lifetime = _lifetime(expires_days)
        created = calls.call("RotateApiKey", key_id=key_id, overlap_seconds=overlap, expires_in_seconds=lifetime)
    _print_key(created)


@key.command("revoke", short_help="Revoke keys, or all tokens.")
@click.argument("key_ids", nargs=-1)
@click.option("--all-tokens", is_flag=True, help="Revoke all tokens that the servers have signed; on the database.")
@catalog_options
def revoke(target: CatalogTarget, key_ids: tuple[str, ...], all_tokens: bool) -> None:
    """Revoke keys, on every server within seconds, with the tokens that were issued for them.

    \b
    Examples:
      tiltyard key revoke 0f3c9a6b12d4e578
      tiltyard key revoke --all-tokens --root ./data
    """
    from tiltyard.cli.database import open_database

    if not key_ids and not all_tokens:
        refuse("Name the keys to revoke, or set --all-tokens.")
    if all_tokens and target.url:
        refuse("--all-tokens works on the catalog's database: name it by --root or --db.")
    if key_ids:
        with opened_catalog(target, database_alone=True) as calls:
            for key_id in key_ids:
                calls.call("RevokeApiKey", key_id=key_id)
                click.echo(f"{key_id} is revoked.")
    if all_tokens:
        with open_database(target.read_settings()) as store:
            store.delete_signing_keys()
        click.echo("All tokens are revoked.")


@click.group("principal", cls=CommandGroup, short_help="Manage principals.")
def principal() -> None:
    """Manage principals: those with keys, and those of a provider (provider:name) that were altered here.

    \b
    Example:
      tiltyard principal list --root ./data
    """


@principal.command("list", short_help="List principals.")
@catalog_options
def list_principals(target: CatalogTarget) -> None:
    """List the principals that have keys or were altered.

    \b
    Example:
      tiltyard principal list --root ./data
    """
    with opened_catalog(target, database_alone=True) as calls:
        for entry in calls.entries("ListPrincipals", "principals"):
            words = " ".join(word for word in ("administrator", "disabled") if entry[word])
            click.echo(f"{format_time(entry['created_at_millis'])}  {entry['name']}  {words}".rstrip())


@principal.command("alter", short_help="Disable a principal, or make it an administrator.")
@click.argument("name")
@click.option("--administrator/--no-administrator", default=None, help="Whether it has all privileges.")
@click.option("--disabled/--enabled", default=None, help="Whether its requests are refused.")
@catalog_options
def alter(target: CatalogTarget, name: str, administrator: bool | None, disabled: bool | None) -> None:
    """Disable a principal or make it an administrator, or revert that. A new name is added.

    \b
    Examples:
      tiltyard principal alter ann --disabled
      tiltyard principal alter corp:zoe --administrator --root ./data
    """
    if administrator is None and disabled is None:
        refuse("Choose what to change: --administrator, --no-administrator, --disabled or --enabled.")
    with opened_catalog(target, database_alone=True) as calls:
        entry = calls.call("AlterPrincipal", principal=name, administrator=administrator, disabled=disabled)[
            "principal"
        ]
    state = "disabled" if entry["disabled"] else "enabled"
    click.echo(f"{entry['name']} is {state}, {'an' if entry['administrator'] else 'no'} administrator.")


def _print_key(created: Mapping[str, Any]) -> None:
    """Print the key alone on standard output, so that a script can read it."""
    entry = created["key"]
    click.echo(f"The key {entry['key_id']} of '{entry['principal']}', shown this once:", err=True)
    click.echo(created["api_key"])


def _format_key(entry: Mapping[str, Any]) -> str:
    used_at, revoked_at = entry.get("last_used_at_millis"), entry.get("revoked_at_millis")
    expires_at = entry.get("expires_at_millis")
    used = f"used {format_time(used_at)}" if used_at else "never used"
    if revoked_at is not None:
        end = f"revoked {format_time(revoked_at)}"
    else:
        end = f"until {format_time(expires_at)}" if expires_at is not None else "for ever"
    created, note = format_time(entry["created_at_millis"]), entry.get("note") or ""
    return f"{entry['key_id']}  {created}  {end:<27}  {used:<24}  {entry['principal']}  {note}".rstrip()


def _lifetime(days: float | None) -> int | None:
    """Return a number of days in seconds, one at least; None for no end."""
    return None if days is None else max(1, int(days * DAY_SECONDS))
