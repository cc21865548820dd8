"""`tiltyard gc`, `repair` and `maintain`: keep a catalog's tables in order. Servers may run meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.options import settings_options
from tiltyard.cli.output.cells import format_size
from tiltyard.cli.session.ids import TABLE, TABLE_OF_JOB, TypedId, format_id
from tiltyard.cli.session.job_target import JobTarget, job_catalog_options
from tiltyard.config import Settings
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord

UPKEEP_SETTINGS = ("root", "db", "gc_safety_days")


@click.command("gc", short_help="Remove files that no version needs.")
@click.argument("table", required=False, type=TABLE)
@click.option("--dry-run", is_flag=True, help="Only list the files, with their sizes.")
@click.option("--keep-versions-days", type=float, help="Also remove older versions, except tagged ones.")
@click.option("--unknown-folders", is_flag=True, help="Also remove folders of tables that are not in the catalog.")
@settings_options(*UPKEEP_SETTINGS)
def gc(
    settings: Settings, table: TypedId | None, dry_run: bool, keep_versions_days: float | None, unknown_folders: bool
) -> None:
    """Remove the files of a table, or of all tables, that no version, tag or branch needs.

    Nothing younger than the safety age is removed, and nothing that an unfinished transaction or upload may own.
    Without a TABLE, tags of snapshots that were not completed are removed, too.

    \b
    Examples:
      tiltyard gc --root ./data --dry-run
      tiltyard gc --root ./data films --keep-versions-days 30
    """
    from tiltyard.cli.database import open_context
    from tiltyard.tables.upkeep.garbage import collect, collect_options, try_collect
    from tiltyard.tables.versions.snapshots import sweep_snapshots

    if unknown_folders and table is not None:
        refuse("--unknown-folders is for all tables: leave out the table's name.")
    with open_context(settings) as ctx:
        options = collect_options(dry_run, keep_versions_days)
        files = size = 0
        if table is None and not dry_run:
            sweep_snapshots(ctx)
        for path, record in _tables(ctx, () if table is None else (table,)):
            collection = try_collect(ctx, record, options) if table is None else collect(ctx, record, options)
            for file in collection.garbage:
                click.echo(f"{format_size(file.size):>12}  {file.kind:<16}  {format_id(path)}  {file.path}")
            for note in collection.notes:
                click.echo(f"{format_id(path)}: {note}", err=True)
            files, size = files + len(collection.garbage), size + collection.size
        if table is None:
            _collect_folders(ctx, remove=unknown_folders and not dry_run)
        click.echo(f"{'Found' if dry_run else 'Removed'} {files} files, {format_size(size)}.")


def _collect_folders(ctx: Context, *, remove: bool) -> None:
    """List folders of tables that the catalog does not know, and remove them if told to."""
    from tiltyard.catalog import garbage
    from tiltyard.catalog.garbage import sweep

    folders = garbage.find_unknown_folders(ctx)
    for folder in folders:
        click.echo(f"{format_size(folder.size):>12}  {'unknown folder':<16}  {folder.location}")
    if remove:
        removed = garbage.schedule_deletion(ctx, folders)
        while sweep(ctx):
            pass
        size = sum(folder.size for folder in removed)
        click.echo(f"Removed {len(removed)} unknown folders, {format_size(size)}.")


@click.command("repair", short_help="Repair tables after changes that bypassed the server.")
@click.argument("tables", nargs=-1, type=TABLE)
@click.option("--dry-run", is_flag=True, help="Only report the problems.")
@click.option("--restore", is_flag=True, help="Go on from the last whole version of tables with broken files.")
@settings_options(*UPKEEP_SETTINGS)
def repair(settings: Settings, tables: tuple[TypedId, ...], dry_run: bool, restore: bool) -> None:
    """Find what bypassed the server, was left half done or is broken in the tables (all without names); repair it.

    \b
    Examples:
      tiltyard repair --root ./data films
      tiltyard repair --root ./data --dry-run
      tiltyard repair --root ./data --restore films
    """
    from tiltyard.cli.database import open_context
    from tiltyard.tables.upkeep.repair import repair as repair_table

    with open_context(settings) as ctx:
        number = 0
        for path, record in _tables(ctx, tables):
            for finding in repair_table(ctx, record, dry_run=dry_run, restore=restore):
                click.echo(f"{format_id(path)}: {finding.kind}: {finding.found} {finding.done}".rstrip())
                number += 1
        if not number:
            click.echo("Nothing is wrong.")


def _tables(ctx: Context, ids: tuple[TypedId, ...]) -> Iterator[tuple[Id, TableRecord]]:
    """Yield the tables of these ids, all tables without ids."""
    from tiltyard.catalog.garbage import all_tables
    from tiltyard.model.ids import Id
    from tiltyard.tables.opening import find_table

    if not ids:
        yield from all_tables(ctx)
    for path in map(Id, ids):
        yield path, find_table(ctx, path)


@click.command("maintain", short_help="Queue the jobs that tables need.", params=job_catalog_options())
@click.argument("tables", nargs=-1, type=TABLE_OF_JOB)
@click.option(
    "--small-fragments",
    type=click.IntRange(min=1),
    help="Number of small fragments from which on a table is compacted [default: the table's own, or 16].",
)
@click.option(
    "--unindexed",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of rows that an index may lack [default: as many rows as the table says, or 1,000].",
)
@click.option("--every", type=click.FloatRange(min=1), help="Check again after this many seconds, until SIGINT.")
@click.option("--dry-run", is_flag=True, help="Only report what is needed.")
def maintain(
    tables: tuple[str, ...],
    small_fragments: int | None,
    unindexed: float | None,
    every: float | None,
    dry_run: bool,
    **target: Any,
) -> None:
    """Queue `optimize` for tables (these, or all) that need compaction or whose indexes lack rows.

    What a table needs is decided as for upkeep by the servers themselves; without TABLES, those whose properties switch
    it off are left out. Views that refresh by themselves are refreshed. A server's workers run the jobs; one that waits
    or runs already is not queued again.

    \b
    Examples:
      tiltyard maintain --uri http://127.0.0.1:2333 --dry-run
      tiltyard maintain --uri http://127.0.0.1:2333 films --every 3600
    """
    from tiltyard.cli.jobs.job import refusing
    from tiltyard.pipeline.optimize.needed_jobs import Thresholds, queue_needed_jobs

    # A single run fails with its error; a repeated one reports it and tries again the next time.
    on_error: Callable[[str, int], None] = refuse
    if every is not None:
        on_error = _report
    while True:
        with refusing(on_error):
            calls, number = JobTarget(**target).calls(), 0
            for needed in queue_needed_jobs(calls, tables, Thresholds(small_fragments, unindexed), dry_run=dry_run):
                state = "waits already" if needed.was_queued else "would be queued" if dry_run else "is queued"
                table = format_id(needed.table.split("$"))
                click.echo(f"{table}: {needed.job} {state}: {needed.reason}  {needed.job_id}".rstrip())
                number += 1
            if not number:
                click.echo("No table needs a job.")
        if every is None:
            return
        time.sleep(every)


def _report(message: str, _status: int) -> None:
    click.echo(f"tiltyard: {message}", err=True)
