"""Keys and principals from the command line, straight on the catalog's database."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from tiltyard.cli.database import opened
from tiltyard.config import DAY_MS, Settings
from tiltyard.identity import keys
from tiltyard.identity.keys import KeyWish, NewKey
from tiltyard.model.ids import check_name
from tiltyard.runtime.fatal import Refuse
from tiltyard.store import KeyRecord, wall_clock

HOUR_MS = 3_600_000
PAGE = 1_000


def run_create(
    settings: Settings, refuse: Refuse, principal: str, administrator: bool, expires_days: float | None, note: str
) -> None:
    """Create a key and print it."""
    with opened(settings, refuse) as store:
        wish = KeyWish(note, _in_days(expires_days))
        made = keys.create_key(store, wall_clock, principal, wish, administrator=administrator)
    _print(made)


def run_rotate(
    settings: Settings, refuse: Refuse, key_id: str, overlap_hours: float, expires_days: float | None
) -> None:
    """Create a key in the place of another, and print it."""
    with opened(settings, refuse) as store:
        wish = KeyWish(expires_at=_in_days(expires_days))
        made = keys.rotate_key(store, wall_clock, key_id, wish, int(overlap_hours * HOUR_MS))
    _print(made)


def run_revoke(settings: Settings, refuse: Refuse, key_ids: tuple[str, ...], *, all_tokens: bool) -> None:
    """End keys, or all tokens."""
    if not key_ids and not all_tokens:
        refuse("Name the keys to revoke, or say --all-tokens.")
    with opened(settings, refuse) as store:
        for key_id in key_ids:
            keys.existing_key(store, key_id)
        for key_id in key_ids:
            store.revoke_key(key_id)
            click.echo(f"{key_id} is revoked.")
        if all_tokens:
            store.forget_signing_keys()
            click.echo("All tokens are revoked.")


def run_list(settings: Settings, refuse: Refuse, principal: str | None) -> None:
    """Print keys, a line each."""
    with opened(settings, refuse) as store:
        after: tuple[object, ...] | None = None
        while page := store.list_keys(principal, after, PAGE):
            for key in page:
                click.echo(_line(key))
            after = (page[-1].principal, page[-1].created_at, page[-1].id)


def run_list_principals(settings: Settings, refuse: Refuse) -> None:
    """Print principals, a line each."""
    with opened(settings, refuse) as store:
        after: str | None = None
        while page := store.list_principals(after, PAGE):
            for one in page:
                words = [word for word, so in (("administrator", one.administrator), ("disabled", one.disabled)) if so]
                click.echo(f"{_date(one.created_at)}  {one.name}  {' '.join(words)}".rstrip())
            after = page[-1].name


def run_alter_principal(
    settings: Settings, refuse: Refuse, name: str, administrator: bool | None, disabled: bool | None
) -> None:
    """Change a principal."""
    if administrator is None and disabled is None:
        refuse("Say what to change: --administrator, --no-administrator, --disabled or --enabled.")
    with opened(settings, refuse) as store:
        record = keys.alter_principal(store, check_name(name, "principal's name"), administrator, disabled)
    is_ = "disabled" if record.disabled else "enabled"
    click.echo(f"{record.name} is {is_}, {'an' if record.administrator else 'no'} administrator.")


def _print(made: NewKey) -> None:
    """The key alone on standard output, so that a script can take it."""
    click.echo(f"The key {made.record.id} of '{made.record.principal}', shown this once:", err=True)
    click.echo(made.text)


def _line(key: KeyRecord) -> str:
    used = f"used {_date(key.last_used_at)}" if key.last_used_at else "never used"
    if key.revoked_at is not None:
        ends = f"revoked {_date(key.revoked_at)}"
    else:
        ends = f"until {_date(key.expires_at)}" if key.expires_at is not None else "for ever"
    return f"{key.id}  {_date(key.created_at)}  {ends:<22}  {used:<21}  {key.principal}  {key.note}".rstrip()


def _date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _in_days(days: float | None) -> int | None:
    return None if days is None else wall_clock() + int(days * DAY_MS)
