"""Looking after a catalog from the command line: undrop, gc, repair. Servers may run meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import click
from lance_namespace.errors import LanceNamespaceError

from tiltyard.catalog.folder_deletion import sweep
from tiltyard.catalog.garbage import all_tables, remove_folders, unknown_folders
from tiltyard.catalog.undrop import list_dropped_namespaces, list_dropped_tables, undrop_namespace, undrop_table
from tiltyard.config import ConfigError, Settings
from tiltyard.context import Context
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, display, parse_id
from tiltyard.model.principals import SERVER
from tiltyard.model.spec import models
from tiltyard.runtime.fatal import Refuse
from tiltyard.server.serve import open_or_refuse
from tiltyard.store import TableRecord, is_there
from tiltyard.tables.maintenance.garbage import checked_wish, collect, try_collect
from tiltyard.tables.maintenance.repair import repair
from tiltyard.tables.opening import find_table

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@contextmanager
def _context(settings: Settings, refuse: Refuse) -> Iterator[Context]:
    """What the operations run in; what they raise is one sentence to the operator.

    A catalog is not made here: there would be nothing to look after, and a mistyped root would look like a sound one.
    """
    try:
        url = settings.database_url
    except ConfigError as error:
        refuse(str(error))
    if not is_there(url):
        refuse(f"There is no catalog at {url}: look at --root and --db.")
    services = open_or_refuse(settings, refuse)
    try:
        yield Context(services, "cli", principal=SERVER)
    except LanceNamespaceError as error:
        refuse(str(error))
    finally:
        services.store.close()


def run_undrop(
    settings: Settings,
    refuse: Refuse,
    table: str | None,
    namespace: str | None,
    new_name: str | None,
    which: int | None,
) -> None:
    """Bring back a table or a namespace, or list what could be."""
    if table is not None and namespace is not None:
        refuse("Name a table or a --namespace, not both.")
    if (new_name is not None or which is not None) and table is namespace is None:
        refuse("Name the table or the --namespace to bring back.")
    with _context(settings, refuse) as ctx:
        if table is not None:
            _undrop_table(ctx, _id(table), _id(table if new_name is None else new_name), which)
        elif namespace is not None:
            _undrop_namespace(ctx, _id(namespace), _id(namespace if new_name is None else new_name), which)
        else:
            _list_dropped(ctx)


def _undrop_table(ctx: Context, path: Id, new: Id, which: int | None) -> None:
    request = models.UndropTableRequest(
        id=list(path), dropped_id=which, new_namespace_id=list(new[:-1]), new_table_name=new[-1] if new else None
    )
    found = undrop_table(ctx, request)
    click.echo(f"{display(tuple(found.id))} is back, at {found.location}")


def _undrop_namespace(ctx: Context, path: Id, new: Id, which: int | None) -> None:
    request = models.UndropNamespaceRequest(id=list(path), dropped_id=which, new_namespace_id=list(new))
    found = undrop_namespace(ctx, request)
    click.echo(f"{display(tuple(found.id))} is back, with {found.tables} tables")


def _list_dropped(ctx: Context) -> None:
    """All that can be brought back, newest first."""
    token, shown = None, False
    while not shown or token:
        page = list_dropped_namespaces(ctx, models.ListDroppedNamespacesRequest(page_token=token))
        for space in page.namespaces:
            _line(space.dropped_id, "namespace", space.due_at_millis, space.id)
        token, shown = page.page_token, True
    token, shown = None, False
    while not shown or token:
        found = list_dropped_tables(ctx, models.ListDroppedTablesRequest(page_token=token))
        for one in found.tables:
            _line(one.dropped_id, f"{one.kind} table", one.due_at_millis, one.id)
        token, shown = found.page_token, True


def _line(number: int, what: str, due: int, names: list[str]) -> None:
    until = datetime.fromtimestamp(due / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    click.echo(f"{number:>8}  {what:<18}  until {until}  {display(tuple(names))}")


def run_gc(
    settings: Settings,
    refuse: Refuse,
    table: str | None,
    *,
    dry_run: bool,
    keep_versions_days: float | None,
    unknown_folders: bool,
) -> None:
    """List or remove garbage, of one table or of all."""
    if unknown_folders and table is not None:
        refuse("--unknown-folders is about all tables: leave out the table's name.")
    with _context(settings, refuse) as ctx:
        wish = checked_wish(dry_run, keep_versions_days)
        files = size = 0
        everywhere = table is None
        for path, record in _tables(ctx, () if table is None else (table,)):
            found = try_collect(ctx, record, wish) if everywhere else collect(ctx, record, wish)
            for file in found.garbage:
                click.echo(f"{_size(file.size):>12}  {file.kind:<16}  {display(path)}  {file.path}")
            for note in found.notes:
                click.echo(f"{display(path)}: {note}", err=True)
            files, size = files + len(found.garbage), size + found.size
        if everywhere:
            _gc_folders(ctx, remove=unknown_folders and not dry_run)
        click.echo(f"{'Found' if dry_run else 'Removed'} {files} files, {_size(size)}.")


def _gc_folders(ctx: Context, *, remove: bool) -> None:
    folders = unknown_folders(ctx)
    for folder in folders:
        click.echo(f"{_size(folder.size):>12}  {'unknown folder':<16}  {folder.location}")
    if remove:
        removed = remove_folders(ctx, folders)
        while sweep(ctx):
            pass
        click.echo(f"Removed {len(removed)} unknown folders, {_size(sum(folder.size for folder in removed))}.")


def run_repair(settings: Settings, refuse: Refuse, tables: tuple[str, ...], *, dry_run: bool) -> None:
    """Say what is wrong with tables, and what was done."""
    with _context(settings, refuse) as ctx:
        number = 0
        for path, record in _tables(ctx, tables):
            for finding in repair(ctx, record, dry_run=dry_run):
                click.echo(f"{display(path)}: {finding.kind}: {finding.found} {finding.done}".rstrip())
                number += 1
        if not number:
            click.echo("Nothing is wrong.")


def _tables(ctx: Context, names: tuple[str, ...]) -> Iterator[tuple[Id, TableRecord]]:
    if not names:
        yield from all_tables(ctx)
    for name in names:
        yield _id(name), find_table(ctx, _id(name))


def _id(text: str) -> Id:
    return parse_id(text, DEFAULT_DELIMITER)


def _size(number: float) -> str:
    """A number of bytes, for people."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_UNITS[unit]}" if not unit else f"{number:.1f} {_UNITS[unit]}"
