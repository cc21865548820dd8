"""`tiltyard backup …`: back up a catalog with its tables, list, verify, restore and remove backups."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiltyard.cli.command_groups import CommandGroup, near_words
from tiltyard.cli.options import parse_pairs, settings_options
from tiltyard.cli.output.cells import format_size, format_time
from tiltyard.cli.session.failures import ExitStatus
from tiltyard.config import ConfigError, Settings
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from tiltyard.backup.target import BackupTarget

MAX_EXPIRE_DAYS = 36_500
PROBLEM_STATUS = 3
"""Exit status of a command that did its work, and found tables or files that are not whole."""


class BackupGroup(CommandGroup):
    """A group whose first argument may be a target: `tiltyard backup TARGET` takes a backup."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `create` before what is no command. Raises click.UsageError for what a command is mistyped as."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            near = near_words(args[0], list(self.commands))
            if near and os.sep not in args[0] and not Path(args[0]).exists():
                meant = " or ".join(near)
                raise click.UsageError(f"Did you mean {meant}? A new folder is written ./{args[0]}", ctx)
            args = ["create", *args]
        return super().parse_args(ctx, args)


@click.group("backup", cls=BackupGroup, short_help="Back up a catalog with its tables, and restore it.")
def backup() -> None:
    """Back up a catalog with its tables, verify and restore backups. Servers may run meanwhile.

    A target is a folder or a URI of an object store. What it holds is to be protected as the catalog itself is.

    \b
    Examples:
      tiltyard backup /mnt/backups --root ./data
      tiltyard backup list /mnt/backups
      tiltyard backup verify /mnt/backups
      tiltyard backup restore /mnt/backups --root ./restored
      tiltyard backup prune /mnt/backups --keep 14
    """


@backup.command("create", short_help="Take a backup.")
@click.argument("target")
@click.option(
    "--expire-days",
    type=click.IntRange(1, MAX_EXPIRE_DAYS),
    help="Days until `prune --expired` removes it.",
)
@settings_options("root", "db")
def create(settings: Settings, target: str, expire_days: int | None) -> None:
    """Take a backup of the catalog and of all files of its tables; files that the target has are not copied again.

    `tiltyard backup TARGET` is the same. Ends with status 3 where a table is not whole in the catalog itself.

    \b
    Example:
      tiltyard backup s3://backups/lake --config tiltyard.toml --expire-days 35
    """
    from tiltyard.backup.create import create_backup
    from tiltyard.cli.database import open_context
    from tiltyard.tables.erasure.backups import record_backup

    with _refusing(), open_context(settings) as ctx:
        opened = _open_target(settings, target, creates=True)
        point = create_backup(ctx, opened, _report, expire_days=expire_days or 0)
        record_backup(ctx, opened.location, point.id, point.expires_at)
    click.echo(
        f"Backup {point.id}: {point.tables} tables, {point.num_files} files, {format_size(point.num_bytes)}; "
        f"copied {point.copied_files} files, {format_size(point.copied_bytes)}."
    )
    _end_with([f"{name} is not whole: {reason}." for name, reason in point.problems.items()])


@backup.command("list", short_help="List the backups of a target.")
@click.argument("target")
@settings_options()
def list_backups(settings: Settings, target: str) -> None:
    """List the backups of a target, oldest first.

    \b
    Example:
      tiltyard backup list /mnt/backups
    """
    from tiltyard.backup.points import list_points, read_point

    with _refusing():
        opened = _open_target(settings, target)
        points = [read_point(opened, point_id) for point_id in list_points(opened)]
    for point in points:
        problems = f"  {len(point.problems)} tables are not whole" if point.problems else ""
        expires = f"  expires {format_time(point.expires_at)}" if point.expires_at else ""
        size = format_size(point.num_bytes)
        click.echo(f"{point.id}  {point.tables:>7} tables  {size:>10}  {point.root}{expires}{problems}")
    if not points:
        click.echo(f"There is no backup at {target}.")


@backup.command("verify", short_help="Check all files of a backup, and open its tables.")
@click.argument("target")
@click.option("--id", "point_id", default="", help="Id of the backup [default: the latest].")
@settings_options()
def verify(settings: Settings, target: str, point_id: str) -> None:
    """Read all files of a backup, compare their digests, and open the latest version of each table in it.

    Ends with status 3 where something is wrong.

    \b
    Example:
      tiltyard backup verify /mnt/backups
    """
    from tiltyard.backup.points import read_point
    from tiltyard.backup.verify import verify_point

    with _refusing():
        opened = _open_target(settings, target)
        point = read_point(opened, point_id)
        result = verify_point(opened, point)
    click.echo(
        f"Verified {point.id}: {result.tables} tables, {result.files} files, {format_size(result.size)}, "
        f"{len(result.problems) or 'no'} problems."
    )
    _end_with(result.problems)


@backup.command("restore", short_help="Restore a backup into an empty root and database.")
@click.argument("target")
@click.option("--id", "point_id", default="", help="Id of the backup [default: the latest].")
@click.option("--map", "maps", multiple=True, help="OLD=NEW: restore tables below the folder OLD below NEW.")
@settings_options("root", "db")
def restore(settings: Settings, target: str, point_id: str, maps: tuple[str, ...]) -> None:
    """Restore a backup into an empty root and an empty database, of whichever kind the old ones were.

    Tables below the old root come below the new one; those elsewhere go where they were, or where --map says. Run it
    again to go on after an interruption.

    \b
    Example:
      tiltyard backup restore s3://backups/lake --root ./data --db postgresql://catalog@db/tiltyard
    """
    from tiltyard.backup.points import read_point
    from tiltyard.backup.restore import restore_point
    from tiltyard.storage import Storage
    from tiltyard.storage.locations import canonical_location

    with _refusing():
        opened = _open_target(settings, target)
        point = read_point(opened, point_id)
        storage = Storage(settings)
        storage.prepare()
        pairs = {canonical_location(old): canonical_location(new) for old, new in parse_pairs(maps).items()}
        mapping = {point.root: storage.root, **pairs}
        files = restore_point(opened, point, storage, settings.database_url, mapping, _report)
    click.echo(f"Restored {point.id}: {point.tables} tables, {files} files.")
    _end_with([f"{name} was not whole when the backup was taken: {why}." for name, why in point.problems.items()])


@backup.command("prune", short_help="Remove old backups.")
@click.argument("target")
@click.option("--keep", type=click.IntRange(min=1), help="Remove all but so many of the latest backups.")
@click.option("--expired", is_flag=True, help="Remove the backups that have expired; the latest one stays.")
@click.option("--force", is_flag=True, help="Forget backups that were killed: none must be running.")
@settings_options()
def prune(settings: Settings, target: str, keep: int | None, expired: bool, force: bool) -> None:
    """Remove all backups but the latest ones, or those that have expired, and the files that no other backup needs.

    \b
    Examples:
      tiltyard backup prune /mnt/backups --keep 14
      tiltyard backup prune /mnt/backups --expired
    """
    from tiltyard.backup.prune import prune_points

    if keep is None and not expired:
        raise click.UsageError("Say which backups are to be removed: --keep N, --expired, or both.")
    expired_at = int(time.time() * 1000) if expired else None
    with _refusing():
        pruned = prune_points(_open_target(settings, target), keep, expired_at=expired_at, force=force)
    if not (pruned.kept or pruned.files):
        refuse(f"There is no backup at {target}.", ExitStatus.NOT_FOUND)
    click.echo(f"Removed {len(pruned.points)} backups, {pruned.files} files, {format_size(pruned.size)}.")


def _open_target(settings: Settings, text: str, *, creates: bool = False) -> BackupTarget:
    """Open a target, with the options of the named storage that it lies in, or else `storage_options`.

    A folder that does not exist is made only if the command `creates`: a mistyped one stays none.
    """
    from pathlib import Path

    from tiltyard.backup.target import BackupTarget
    from tiltyard.storage.locations import canonical_location, is_local
    from tiltyard.storage.roots import storage_options_of

    location = canonical_location(text if "://" in text else str(Path(text).expanduser().absolute()))
    if is_local(location) and not Path(location).is_dir():
        if Path(location).exists():
            refuse(f"{location} is not a folder.")
        if not creates:
            refuse(f"There is no backup at {location}.", ExitStatus.NOT_FOUND)
    return BackupTarget(location, storage_options_of(settings, location))


@contextmanager
def _refusing() -> Iterator[None]:
    """End the command with one sentence for errors of the catalog, the storage, and the settings."""
    from lance_namespace.errors import LanceNamespaceError
    from obstore.exceptions import BaseError

    from tiltyard.storage import StorageError
    from tiltyard.storage.errors import lance_errors
    from tiltyard.store import StoreVersionError

    try:
        with lance_errors():
            yield
    except (LanceNamespaceError, StorageError, StoreVersionError, ConfigError, ValueError, OSError, BaseError) as error:
        refuse(str(error).splitlines()[0] if str(error) else type(error).__name__)


def _report(line: str) -> None:
    click.echo(line, err=True)


def _end_with(problems: list[str]) -> None:
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        raise SystemExit(PROBLEM_STATUS)
