"""`tiltyard audit`: print the audit log on a terminal, or for another program."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tiltyard.cli.database import open_database
from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.config import Settings
from tiltyard.runtime.process import refuse, wall_clock

if TYPE_CHECKING:
    from tiltyard.store import AuditFilter, AuditRecord, Store

FOLLOW_SECONDS = 1.0
LATE_MS = 10_000
"""How much later than its request a record may be written: --follow reads again from that far back."""

_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@click.command("audit", short_help="Show the recorded requests.")
@click.option(
    "--since", help="Only requests since this time (2026-05-01, 2026-05-01T12:00Z), or since 30m, 12h, 7d ago."
)
@click.option("--until", help="Only requests before this time; written like --since.")
@click.option("--principal", help="Only requests of this principal.")
@click.option("--operation", help="Only requests of this operation: CreateTable, DropTable, …")
@click.option("--object", "object_id", help="Only requests on the object with this id, or below it.")
@click.option("--outcome", help="Only requests with this outcome: ok, repeated, refused, failed or cut.")
@click.option("--follow", is_flag=True, help="Keep running, and show new records as they are written.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON.")
@settings_options(*DATABASE)
def audit(
    settings: Settings,
    since: str | None,
    until: str | None,
    principal: str | None,
    operation: str | None,
    object_id: str | None,
    outcome: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the recorded requests, oldest first. Reads the database directly: no server has to run.

    \b
    Examples:
      tiltyard audit --root ./data --since 12h --outcome refused
      tiltyard audit --root ./data --object 'library$books' --operation DropTable
      tiltyard audit --db postgresql://catalog@db/tiltyard --root s3://lake/tables --follow --json
    """
    from tiltyard.model.modes import Outcome, parse_mode
    from tiltyard.store import AuditFilter

    with suppress(KeyboardInterrupt), open_database(settings) as store:
        conditions = AuditFilter(
            since=parse_time(since),
            until=parse_time(until),
            principal=principal,
            operation=operation,
            object=object_id,
            outcome=None if outcome is None else parse_mode(Outcome, outcome, Outcome.OK, "outcome").value,
        )
        for record in _follow(store, conditions) if follow else _list_records(store, conditions):
            click.echo(_format_json(record) if as_json else _format_line(record))


def _list_records(store: Store, conditions: AuditFilter) -> list[AuditRecord]:
    """Return all records that meet the conditions, oldest first."""
    return [*store.iterate_audit(conditions)][::-1]


def _follow(store: Store, conditions: AuditFilter) -> Iterator[AuditRecord]:
    """Yield the records that meet the conditions, then those to come, until a signal.

    Records are written a little late and out of order: each is yielded once.
    """
    shown: dict[tuple[int, str], None] = {}
    while True:
        for record in _list_records(store, conditions):
            key = record.at, record.id
            if key not in shown:
                shown[key] = None
                yield record
        since = max(conditions.since or 0, wall_clock() - LATE_MS)
        conditions = replace(conditions, since=since)
        shown = {key: None for key in shown if key[0] >= since}
        time.sleep(FOLLOW_SECONDS)


def parse_time(text: str | None) -> int | None:
    """Parse a time, or how long ago it was (12h), into milliseconds since 1970; without a zone it is local time."""
    if text is None:
        return None
    if ago := re.fullmatch(r"(\d+)([smhd])", text):
        return wall_clock() - int(ago[1]) * _UNITS[ago[2]]
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        refuse(f"'{text}' is not a time: write 2026-05-01, 2026-05-01T12:00Z, or 30m, 12h, 7d for how long ago.")


def _format_json(record: AuditRecord) -> str:
    import msgspec

    from tiltyard.audit import to_entry

    return msgspec.json.encode(to_entry(record)).decode()


def _format_line(record: AuditRecord) -> str:
    at = datetime.fromtimestamp(record.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{record.at % 1000:03}Z"
    code = "" if record.code is None else f" code {record.code}"
    context = "".join(f" {name}={value!r}" for name, value in sorted(record.context.items()))
    return (
        f"{at} {record.outcome:<8} {record.status}{code} {record.principal or '-'} {record.address or '-'} "
        f"{record.operation} {record.object or '-'} {record.duration_micros / 1000:.1f} ms {record.request_id}{context}"
    )
