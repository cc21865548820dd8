"""`tiltyard key …` and `tiltyard principal …`, on the catalog's database: servers notice within seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tiltyard.cli.database import open_database
from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.config import DAY_MS, Settings
from tiltyard.runtime.clocks import wall_clock
from tiltyard.runtime.fatal import refuse

if TYPE_CHECKING:
    from tiltyard.identity.keys import CreatedKey
    from tiltyard.store import KeyRecord

DAYS = click.FloatRange(min=0, min_open=True, max=36_500)
HOURS = click.FloatRange(min=0, max=876_000)
HOUR_MS = 3_600_000
PAGE_SIZE = 1_000


@click.group("key", short_help="Manage API keys.")
def key() -> None:
    """Manage API keys.

    \b
    Examples:
      tiltyard key create ann --root ./data
      tiltyard key list --root ./data
    """


@key.command("create", short_help="Create a key, and print it once.")
@click.argument("principal", default="administrator")
@click.option("--administrator", is_flag=True, help="Make the principal an administrator, too.")
@click.option("--expires-days", type=DAYS, help="Days after which the key expires [default: never].")
@click.option("--note", default="", help="What the key is for.")
@settings_options(*DATABASE)
def create(settings: Settings, principal: str, administrator: bool, expires_days: float | None, note: str) -> None:
    """Create an API key for a principal, which is created if missing, and print it on standard output.

    \b
    Examples:
      tiltyard key create ann --root ./data --expires-days 90 --note "the nightly load"
      tiltyard key create --administrator --root ./data
    """
    from tiltyard.identity.keys import NewKeyOptions, create_key

    with open_database(settings, creates=True) as store:
        options = NewKeyOptions(note, _expiry(expires_days))
        new_key = create_key(store, wall_clock, principal, options, administrator=administrator)
    _print_key(new_key)


@key.command("list", short_help="List keys, without their secrets.")
@click.argument("principal", required=False)
@settings_options(*DATABASE)
def list_keys(settings: Settings, principal: str | None) -> None:
    """List the keys of a principal, or all: their ids, principals, last use and expiry.

    \b
    Example:
      tiltyard key list ann --root ./data
    """
    with open_database(settings) as store:
        after: tuple[object, ...] | None = None
        while page := store.list_keys(principal, after, PAGE_SIZE):
            for record in page:
                click.echo(_format_key(record))
            after = (page[-1].principal, page[-1].created_at, page[-1].id)


@key.command("rotate", short_help="Replace a key by a new one.")
@click.argument("key_id")
@click.option("--overlap-hours", type=HOURS, default=24.0, show_default=True, help="Hours for which both keys work.")
@click.option("--expires-days", type=DAYS, help="Days after which the new key expires [default: never].")
@settings_options(*DATABASE)
def rotate(settings: Settings, key_id: str, overlap_hours: float, expires_days: float | None) -> None:
    """Create a key that replaces another one, which keeps working for a while; print it on standard output.

    \b
    Example:
      tiltyard key rotate 0f3c9a6b12d4e578 --overlap-hours 1 --root ./data
    """
    from tiltyard.identity.keys import NewKeyOptions, rotate_key

    with open_database(settings) as store:
        options = NewKeyOptions(expires_at=_expiry(expires_days))
        new_key = rotate_key(store, wall_clock, key_id, options, int(overlap_hours * HOUR_MS))
    _print_key(new_key)


@key.command("revoke", short_help="Revoke keys, or all tokens.")
@click.argument("key_ids", nargs=-1)
@click.option("--all-tokens", is_flag=True, help="Revoke all tokens that the servers have signed.")
@settings_options(*DATABASE)
def revoke(settings: Settings, key_ids: tuple[str, ...], all_tokens: bool) -> None:
    """Revoke keys, on every server within seconds, with the tokens that were issued for them.

    \b
    Examples:
      tiltyard key revoke 0f3c9a6b12d4e578 --root ./data
      tiltyard key revoke --all-tokens --root ./data
    """
    from tiltyard.identity.keys import get_key

    if not key_ids and not all_tokens:
        refuse("Name the keys to revoke, or set --all-tokens.")
    with open_database(settings) as store:
        for key_id in key_ids:
            get_key(store, key_id)
        for key_id in key_ids:
            store.revoke_key(key_id)
            click.echo(f"{key_id} is revoked.")
        if all_tokens:
            store.delete_signing_keys()
            click.echo("All tokens are revoked.")


@click.group("principal", short_help="Manage principals.")
def principal() -> None:
    """Manage principals: those with keys, and those of a provider (provider:name) that were altered here.

    \b
    Example:
      tiltyard principal list --root ./data
    """


@principal.command("list", short_help="List principals.")
@settings_options(*DATABASE)
def list_principals(settings: Settings) -> None:
    """List the principals that have keys or were altered.

    \b
    Example:
      tiltyard principal list --root ./data
    """
    with open_database(settings) as store:
        after: str | None = None
        while page := store.list_principals(after, PAGE_SIZE):
            for record in page:
                flags = (("administrator", record.administrator), ("disabled", record.disabled))
                words = " ".join(word for word, is_set in flags if is_set)
                click.echo(f"{_format_time(record.created_at)}  {record.name}  {words}".rstrip())
            after = page[-1].name


@principal.command("alter", short_help="Disable a principal, or make it an administrator.")
@click.argument("name")
@click.option("--administrator/--no-administrator", default=None, help="Whether it has all privileges.")
@click.option("--disabled/--enabled", default=None, help="Whether its requests are refused.")
@settings_options(*DATABASE)
def alter(settings: Settings, name: str, administrator: bool | None, disabled: bool | None) -> None:
    """Disable a principal or make it an administrator, or revert that. A new name is added.

    \b
    Examples:
      tiltyard principal alter ann --disabled --root ./data
      tiltyard principal alter corp:zoe --administrator --root ./data
    """
    from tiltyard.identity.keys import alter_principal
    from tiltyard.model.ids import check_name

    if administrator is None and disabled is None:
        refuse("Choose what to change: --administrator, --no-administrator, --disabled or --enabled.")
    with open_database(settings) as store:
        record = alter_principal(store, check_name(name, "principal's name"), administrator, disabled)
    state = "disabled" if record.disabled else "enabled"
    click.echo(f"{record.name} is {state}, {'an' if record.administrator else 'no'} administrator.")


def _print_key(new_key: CreatedKey) -> None:
    """Print the key alone on standard output, so that a script can read it."""
    click.echo(f"The key {new_key.record.id} of '{new_key.record.principal}', shown this once:", err=True)
    click.echo(new_key.text)


def _format_key(record: KeyRecord) -> str:
    used = f"used {_format_time(record.last_used_at)}" if record.last_used_at else "never used"
    if record.revoked_at is not None:
        end = f"revoked {_format_time(record.revoked_at)}"
    else:
        end = f"until {_format_time(record.expires_at)}" if record.expires_at is not None else "for ever"
    created = _format_time(record.created_at)
    return f"{record.id}  {created}  {end:<22}  {used:<21}  {record.principal}  {record.note}".rstrip()


def _format_time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _expiry(days: float | None) -> int | None:
    """Return the time in so many days, in milliseconds since 1970; None for no end."""
    return None if days is None else wall_clock() + int(days * DAY_MS)
