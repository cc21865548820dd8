"""`tiltyard undrop`: bring back dropped tables and namespaces, or list them. Servers may run meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.options import catalog_options
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.session.ids import TABLE, TABLE_OR_NAMESPACE, TypedId
from tiltyard.cli.session.target import CatalogTarget, opened_catalog
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller


@click.command("undrop", short_help="Bring back a dropped table or namespace.")
@click.argument("table", required=False, type=TABLE)
@click.option(
    "--namespace", type=TABLE_OR_NAMESPACE, help="Bring back this namespace, with all that was dropped with it."
)
@click.option("--as", "new_id", type=TABLE, help="The new name; the old one by default.")
@click.option(
    "--which", "dropped_id", type=int, help="The number from the list, where several dropped objects had this name."
)
@catalog_options
def undrop(
    target: CatalogTarget,
    table: TypedId | None,
    namespace: TypedId | None,
    new_id: TypedId | None,
    dropped_id: int | None,
) -> None:
    """Bring back a dropped or deregistered table, or a dropped namespace; without arguments, list them.

    \b
    Examples:
      tiltyard undrop
      tiltyard undrop films
      tiltyard undrop library.books --as library.books_of_may
      tiltyard undrop --namespace library --root ./data
    """
    if table is not None and namespace is not None:
        refuse("Name a table or a --namespace, not both.")
    if (new_id is not None or dropped_id is not None) and table is namespace is None:
        refuse("Name the table or the --namespace to bring back.")
    with opened_catalog(target) as calls:
        if table is not None:
            _undrop_table(calls, table, new_id or table, dropped_id)
        elif namespace is not None:
            _undrop_namespace(calls, namespace, new_id or namespace, dropped_id)
        else:
            _list_dropped(calls)


def _undrop_table(calls: Caller, table: TypedId, new_id: TypedId, dropped_id: int | None) -> None:
    restored = calls.call(
        "UndropTable",
        id=list(table),
        dropped_id=dropped_id,
        new_namespace_id=list(new_id[:-1]),
        new_table_name=new_id[-1],
    )
    click.echo(f"{TypedId(restored['id'])} is back, at {restored['location']}")


def _undrop_namespace(calls: Caller, namespace: TypedId, new_id: TypedId, dropped_id: int | None) -> None:
    restored = calls.call("UndropNamespace", id=list(namespace), dropped_id=dropped_id, new_namespace_id=list(new_id))
    click.echo(f"{TypedId(restored['id'])} is back, with {restored['tables']} tables")


def _list_dropped(calls: Caller) -> None:
    """Print all namespaces and tables that can be brought back, newest first."""
    for namespace in calls.entries("ListDroppedNamespaces", "namespaces"):
        _print_dropped(namespace, "namespace")
    for table in calls.entries("ListDroppedTables", "tables"):
        _print_dropped(table, f"{table['kind']} table")


def _print_dropped(dropped: dict[str, Any], kind: str) -> None:
    until = format_time(dropped["due_at_millis"])
    click.echo(f"{dropped['dropped_id']:>8}  {kind:<18}  until {until}  {TypedId(dropped['id'])}")
