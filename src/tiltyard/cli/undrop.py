"""`tiltyard undrop`: bring back dropped tables and namespaces, or list them. Servers may run meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.ids import Id


@click.command("undrop", short_help="Bring back a dropped table or namespace.")
@click.argument("table", required=False)
@click.option("--namespace", help="Bring back this namespace, with all that was dropped with it.")
@click.option("--as", "new_name", help="The new name; the old one by default.")
@click.option(
    "--which", "dropped_id", type=int, help="The number from the list, where several dropped objects had this name."
)
@settings_options(*DATABASE)
def undrop(
    settings: Settings, table: str | None, namespace: str | None, new_name: str | None, dropped_id: int | None
) -> None:
    """Bring back a dropped or deregistered table, or a dropped namespace; without arguments, list them.

    \b
    Examples:
      tiltyard undrop --root ./data
      tiltyard undrop --root ./data films
      tiltyard undrop --root ./data 'library$books' --as 'library$books_of_may'
      tiltyard undrop --root ./data --namespace library
    """
    from tiltyard.cli.client import open_context

    if table is not None and namespace is not None:
        refuse("Name a table or a --namespace, not both.")
    if (new_name is not None or dropped_id is not None) and table is namespace is None:
        refuse("Name the table or the --namespace to bring back.")
    with open_context(settings) as ctx:
        if table is not None:
            _undrop_table(ctx, _parse(table), _parse(table if new_name is None else new_name), dropped_id)
        elif namespace is not None:
            _undrop_namespace(ctx, _parse(namespace), _parse(namespace if new_name is None else new_name), dropped_id)
        else:
            _list_dropped(ctx)


def _undrop_table(ctx: Context, path: Id, new_path: Id, dropped_id: int | None) -> None:
    from tiltyard.catalog.undrop import undrop_table
    from tiltyard.model.ids import Id
    from tiltyard.model.spec import models

    new_name = new_path.name if new_path else None
    request = models.UndropTableRequest(
        id=list(path), dropped_id=dropped_id, new_namespace_id=list(new_path.parent), new_table_name=new_name
    )
    table = undrop_table(ctx, request)
    click.echo(f"{Id(table.id)} is back, at {table.location}")


def _undrop_namespace(ctx: Context, path: Id, new_path: Id, dropped_id: int | None) -> None:
    from tiltyard.catalog.undrop import undrop_namespace
    from tiltyard.model.ids import Id
    from tiltyard.model.spec import models

    request = models.UndropNamespaceRequest(id=list(path), dropped_id=dropped_id, new_namespace_id=list(new_path))
    namespace = undrop_namespace(ctx, request)
    click.echo(f"{Id(namespace.id)} is back, with {namespace.tables} tables")


def _list_dropped(ctx: Context) -> None:
    """Print all namespaces and tables that can be brought back, newest first."""
    from tiltyard.catalog.undrop import list_dropped_namespaces, list_dropped_tables
    from tiltyard.model.spec import models

    token, is_first = None, True
    while is_first or token:
        namespaces = list_dropped_namespaces(ctx, models.ListDroppedNamespacesRequest(page_token=token))
        for namespace in namespaces.namespaces:
            _print_dropped(namespace.dropped_id, "namespace", namespace.due_at_millis, namespace.id)
        token, is_first = namespaces.page_token, False
    token, is_first = None, True
    while is_first or token:
        tables = list_dropped_tables(ctx, models.ListDroppedTablesRequest(page_token=token))
        for table in tables.tables:
            _print_dropped(table.dropped_id, f"{table.kind} table", table.due_at_millis, table.id)
        token, is_first = tables.page_token, False


def _print_dropped(dropped_id: int, kind: str, due_at_millis: int, names: list[str]) -> None:
    from tiltyard.model.ids import Id

    until = datetime.fromtimestamp(due_at_millis / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    click.echo(f"{dropped_id:>8}  {kind:<18}  until {until}  {Id(names)}")


def _parse(text: str) -> Id:
    from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id

    return parse_id(text, DEFAULT_DELIMITER)
