"""Showing the audit on a terminal, or to another program."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import click
import msgspec

from tiltyard.audit import entry
from tiltyard.cli.database import opened
from tiltyard.config import Settings
from tiltyard.model.modes import Outcome, parse_mode
from tiltyard.runtime.fatal import Refuse
from tiltyard.store import AuditFilter, AuditRecord, Store, wall_clock

PAGE = 1000
FOLLOW_SECONDS = 1.0
LATE_MS = 10_000
"""How much later than its call a record may be written: what is followed looks back as far."""

_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def run_audit(
    settings: Settings,
    refuse: Refuse,
    *,
    since: str | None,
    until: str | None,
    principal: str | None,
    operation: str | None,
    object: str | None,  # noqa: A002 - the option's name
    outcome: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print records, oldest first; with `follow`, until a signal ends it."""
    with suppress(KeyboardInterrupt), opened(settings, refuse) as store:
        wanted = AuditFilter(
            since=_moment(since, refuse),
            until=_moment(until, refuse),
            principal=principal,
            operation=operation,
            object=object,
            outcome=None if outcome is None else parse_mode(Outcome, outcome, Outcome.OK, "outcome").value,
        )
        for record in _followed(store, wanted) if follow else _found(store, wanted):
            click.echo(_json(record) if as_json else _line(record))


def _found(store: Store, wanted: AuditFilter) -> list[AuditRecord]:
    """All that fits, oldest first."""
    found: list[AuditRecord] = []
    before: tuple[int, str] | None = None
    while page := store.list_audit(wanted, before, PAGE):
        found += page
        before = page[-1].at, page[-1].id
    return found[::-1]


def _followed(store: Store, wanted: AuditFilter) -> Iterator[AuditRecord]:
    """What fits, and what will. Records come a little late and not in order: each is shown once."""
    shown: dict[tuple[int, str], None] = {}
    while True:
        for record in _found(store, wanted):
            key = record.at, record.id
            if key not in shown:
                shown[key] = None
                yield record
        since = max(wanted.since or 0, wall_clock() - LATE_MS)
        wanted = replace(wanted, since=since)
        shown = {key: None for key in shown if key[0] >= since}
        time.sleep(FOLLOW_SECONDS)


def _moment(text: str | None, refuse: Refuse) -> int | None:
    """A time in ms since 1970, from a time or from how long ago it was; without a zone it is local time."""
    if text is None:
        return None
    if ago := re.fullmatch(r"(\d+)([smhd])", text):
        return wall_clock() - int(ago[1]) * _UNITS[ago[2]]
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        refuse(f"'{text}' is no time: write 2026-05-01, 2026-05-01T12:00Z, or 30m, 12h, 7d for how long ago.")


def _json(record: AuditRecord) -> str:
    return msgspec.json.encode(entry(record)).decode()


def _line(record: AuditRecord) -> str:
    at = datetime.fromtimestamp(record.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{record.at % 1000:03}Z"
    code = "" if record.code is None else f" code {record.code}"
    context = "".join(f" {name}={value!r}" for name, value in sorted(record.context.items()))
    return (
        f"{at} {record.outcome:<8} {record.status}{code} {record.principal or '-'} {record.address or '-'} "
        f"{record.operation} {record.object or '-'} {record.micros / 1000:.1f} ms {record.request_id}{context}"
    )
