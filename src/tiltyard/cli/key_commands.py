"""`tiltyard key …` and `tiltyard principal …`, on the catalog's database: servers notice within seconds."""

from __future__ import annotations

from typing import Any

import click

from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse

DAYS = click.FloatRange(min=0, min_open=True, max=36_500)
HOURS = click.FloatRange(min=0, max=876_000)


@click.group("key", short_help="API keys: who may ask.")
def key() -> None:
    """Look after API keys.

    \b
    Examples:
      tiltyard key create ann --root ./data
      tiltyard key list --root ./data
    """


@key.command("create", short_help="Create a key, and print it once.")
@click.argument("principal", default="administrator")
@click.option("--administrator", is_flag=True, help="Make the principal an administrator, too.")
@click.option("--expires-days", type=DAYS, help="Days after which the key ends; never, unless said.")
@click.option("--note", default="", help="What the key is for.")
@settings_options(*DATABASE)
def create(settings: Settings, **wishes: Any) -> None:
    """Create an API key of a principal, who is made if there is none of this name, and print it on standard output.

    \b
    Examples:
      tiltyard key create ann --root ./data --expires-days 90 --note "the nightly load"
      tiltyard key create --administrator --root ./data
    """
    from tiltyard.cli.keys import run_create

    run_create(settings, refuse, **wishes)


@key.command("list", short_help="List keys, without their secrets.")
@click.argument("principal", required=False)
@settings_options(*DATABASE)
def list_keys(settings: Settings, principal: str | None) -> None:
    """List the keys of a principal, or all: the id, whose it is, when it was used last and when it ends.

    \b
    Example:
      tiltyard key list ann --root ./data
    """
    from tiltyard.cli.keys import run_list

    run_list(settings, refuse, principal)


@key.command("rotate", short_help="Create a key in the place of another.")
@click.argument("key_id")
@click.option("--overlap-hours", type=HOURS, default=24.0, show_default=True, help="Hours for which both keys work.")
@click.option("--expires-days", type=DAYS, help="Days after which the new key ends; never, unless said.")
@settings_options(*DATABASE)
def rotate(settings: Settings, **wishes: Any) -> None:
    """Create a key in the place of another, which goes on working for a while, and print it on standard output.

    \b
    Example:
      tiltyard key rotate 0f3c9a6b12d4e578 --overlap-hours 1 --root ./data
    """
    from tiltyard.cli.keys import run_rotate

    run_rotate(settings, refuse, **wishes)


@key.command("revoke", short_help="End keys now, or all tokens.")
@click.argument("key_ids", nargs=-1)
@click.option("--all-tokens", is_flag=True, help="End all tokens that the servers have signed.")
@settings_options(*DATABASE)
def revoke(settings: Settings, key_ids: tuple[str, ...], all_tokens: bool) -> None:
    """End keys, on every server within seconds, with the tokens that were got by them.

    \b
    Examples:
      tiltyard key revoke 0f3c9a6b12d4e578 --root ./data
      tiltyard key revoke --all-tokens --root ./data
    """
    from tiltyard.cli.keys import run_revoke

    run_revoke(settings, refuse, key_ids, all_tokens=all_tokens)


@click.group("principal", short_help="Principals: who there is.")
def principal() -> None:
    """Look after principals: those with keys, and those of a provider (named provider:name) whom you single out.

    \b
    Example:
      tiltyard principal list --root ./data
    """


@principal.command("list", short_help="List principals.")
@settings_options(*DATABASE)
def list_principals(settings: Settings) -> None:
    """List the principals that have keys or that were singled out.

    \b
    Example:
      tiltyard principal list --root ./data
    """
    from tiltyard.cli.keys import run_list_principals

    run_list_principals(settings, refuse)


@principal.command("alter", short_help="Disable a principal, or make it an administrator.")
@click.argument("name")
@click.option("--administrator/--no-administrator", default=None, help="Whether it may do everything.")
@click.option("--disabled/--enabled", default=None, help="Whether it is refused, whatever it shows.")
@settings_options(*DATABASE)
def alter(settings: Settings, name: str, administrator: bool | None, disabled: bool | None) -> None:
    """Disable a principal, or make it an administrator, or undo that; one that was not known is now.

    \b
    Examples:
      tiltyard principal alter ann --disabled --root ./data
      tiltyard principal alter corp:zoe --administrator --root ./data
    """
    from tiltyard.cli.keys import run_alter_principal

    run_alter_principal(settings, refuse, name, administrator, disabled)
