"""`tiltyard plan` and `apply`: a catalog as a file declares it, which `tiltyard export catalog.yaml` writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.declarations.plan import CatalogPlan, Change

HAS_CHANGES = 2
"""The exit status of a plan that has something to do."""
MAX_LISTED_NAMES = 3
"""Names of what an export leaves out for the same reason."""

file_argument = click.argument("file", type=click.Path(path_type=Path))
delete_option = click.option(
    "--delete", "deletes", is_flag=True, help="Take away what the file does not have, and change types of columns."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")


@click.command("plan", short_help="Show what differs between a catalog and a file that declares it.")
@file_argument
@delete_option
@json_option
@catalog_command
def plan(catalog: Caller, file: Path, deletes: bool, as_json: bool) -> None:
    """Show what `tiltyard apply` would do for the catalog to be as FILE declares it; nothing is changed.

    Exits with 0 if there is nothing to do, with 2 if there is, with another status where it fails. What the catalog has
    and the file has not is kept, and shown, unless --delete is there. Sections that the file has not are left alone.

    \b
    Examples:
      tiltyard plan catalog.yaml
      tiltyard plan catalog.yaml --delete --json
    """
    _show(_make_plan(catalog, file, deletes=deletes), as_json=as_json)


@click.command("apply", short_help="Make a catalog as a file declares it.")
@file_argument
@delete_option
@click.option("--plan-digest", metavar="DIGEST", help="Only if the plan is still this one, which `plan` has printed.")
@click.option("--dry-run", is_flag=True, help="Show the plan alone: as `tiltyard plan`.")
@json_option
@catalog_command
def apply(catalog: Caller, file: Path, deletes: bool, plan_digest: str | None, dry_run: bool, as_json: bool) -> None:
    """Make the catalog as FILE declares it: create, change, and with --delete drop what the file has not.

    Applied again, there is nothing to do. It stops at the first change that fails, says which were made, and goes on
    from there when it is run again. Rows are never touched, but for columns that --delete drops or casts.

    \b
    Examples:
      tiltyard apply catalog.yaml
      tiltyard apply catalog.yaml --plan-digest sha256:…
    """
    planned = _make_plan(catalog, file, deletes=deletes)
    if plan_digest is not None and plan_digest != planned.digest:
        raise CommandError(
            f"The plan is another one by now, {planned.digest}: look at it with `tiltyard plan {file}`. "
            "Nothing was changed."
        )
    if dry_run:
        _show(planned, as_json=as_json)
        return
    _check_refused(planned)
    planned.apply(None if as_json else _print_change)
    if as_json:
        _print_plan(planned, as_json=True)
    else:
        click.echo(f"Applied: {planned.summary}.")


def _make_plan(catalog: Caller, file: Path, *, deletes: bool) -> CatalogPlan:
    from tiltyard.declarations.catalog_file import read_catalog_file
    from tiltyard.declarations.plan import make_plan

    return make_plan(catalog, read_catalog_file(file, os.environ), deletes=deletes)


def _show(planned: CatalogPlan, *, as_json: bool) -> None:
    """Print a plan; exit with HAS_CHANGES where there is something to do. Raises CommandError (`_check_refused`)."""
    _print_plan(planned, as_json=as_json)
    _check_refused(planned)
    if planned.changes:
        sys.exit(HAS_CHANGES)


def _print_plan(planned: CatalogPlan, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(planned.record(), ensure_ascii=False))
        return
    for line in planned.lines():
        click.echo(line)
    click.echo(f"Plan: {planned.summary}.")
    if planned.changes:
        click.echo(f"Digest: {planned.digest}")


def _check_refused(planned: CatalogPlan) -> None:
    """Raise CommandError where something cannot be changed at all."""
    if planned.refused:
        raise CommandError(f"Nothing was changed. {planned.refused[0]}", ExitStatus.FAILED)


def _print_change(change: Change) -> None:
    click.echo(f"{change.action}d {change.title}")


def describe_left_out(left_out: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield what an export has left out and why, in lines: one for each section and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for (section, name), reason in left_out.items():
        grouped.setdefault((section, reason), []).append(name)
    for (section, reason), names in grouped.items():
        listed = ", ".join(filter(None, names[:MAX_LISTED_NAMES]))
        more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
        yield f"left out: {section}{f' ({listed}{more})' if listed else ''}: {reason}"
