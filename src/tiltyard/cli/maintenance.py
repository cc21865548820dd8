"""`tiltyard maintain`: jobs for the tables that need them, now or every so often."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from tiltyard.cli.jobs import Reach, refusing
from tiltyard.pipeline.optimize.maintenance import Thresholds, maintain

Refuse = Callable[[str], None]


def run_maintain(
    refuse: Refuse,
    tables: tuple[str, ...],
    uri: str,
    properties: tuple[str, ...],
    thresholds: Thresholds,
    *,
    every: float | None,
    dry_run: bool,
) -> None:
    """Look at the tables, queue what they need, and tell; again every so many seconds, until it is ended.

    Once is an error if it cannot be done. Every so often, what could not be done is told, and tried the next time.
    """
    while True:
        with refusing(refuse if every is None else _tell):
            calls, number = Reach(uri, properties, ()).calls(), 0
            for need in maintain(calls, tables, thresholds, dry_run=dry_run):
                state = "waits already" if need.there else "would be queued" if dry_run else "is queued"
                click.echo(f"{need.table}: {need.job} {state}: {need.why}  {need.job_id}".rstrip())
                number += 1
            if not number:
                click.echo("No table needs anything.")
        if every is None:
            return
        time.sleep(every)


def _tell(message: str) -> None:
    click.echo(f"tiltyard: {message}", err=True)
