"""`tiltyard mkdir | cp | mv | rm`: create namespaces; copy, rename and drop tables."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.options import confirm, yes_option
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE, TABLE_OR_NAMESPACE, TypedId
from tiltyard.cli.session.target import CatalogTarget, catalog_command, defer_imports, opened_catalog, target_options

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

NEWEST = 100
"""Dropped objects among which one is looked for that was dropped a moment ago."""


@click.command("cp", short_help="Copy a table.")
@click.argument("table", type=TABLE)
@click.argument("new_id", metavar="NEW", type=TABLE)
@click.option("--version", help="A version, or a tag, instead of the newest version.")
@click.option("--deep", is_flag=True, help="Copy the data files, too: the copy needs its source no more.")
@catalog_command
def cp(catalog: Caller, table: TypedId, new_id: TypedId, version: str | None, deep: bool) -> None:
    """Make the table NEW with the rows of TABLE: by a clone, which shares its data files, or by a --deep copy.

    \b
    Examples:
      tiltyard cp library.books library.books_of_may
      tiltyard cp library.books archive.books --deep --version release
    """
    from tiltyard.calls.searches import resolve_version

    number = resolve_version(catalog, table, version)
    location = catalog.call("DescribeTable", id=list(table)).get("location")
    if not location:
        raise CommandError(f"{table} has no files that could be copied: a view is created again by its query.")
    catalog.call(
        "CloneTable",
        id=list(new_id),
        source_location=location,
        source_version=number,
        is_shallow=False if deep else None,
    )
    click.echo(f"{new_id} is a copy of {table}" if deep else f"{new_id} is a clone of {table}, and shares its files")


@click.command("mv", short_help="Rename a table.")
@click.argument("table", type=TABLE)
@click.argument("new_id", metavar="NEW", type=TABLE)
@catalog_command
def mv(catalog: Caller, table: TypedId, new_id: TypedId) -> None:
    """Rename TABLE to NEW, which may be in another namespace; its files stay where they are.

    \b
    Example:
      tiltyard mv library.books archive.books
    """
    catalog.call("RenameTable", id=list(table), new_table_name=new_id[-1], new_namespace_id=list(new_id[:-1]))
    click.echo(f"{table} is {new_id} now")


@click.command("rm", short_help="Drop a table or a namespace.")
@click.argument("object_id", metavar="ID", type=TABLE_OR_NAMESPACE)
@click.option("-r", "--recursive", is_flag=True, help="Drop a namespace, with all that is in it.")
@yes_option
@catalog_command
def rm(catalog: Caller, object_id: TypedId, recursive: bool, is_confirmed: bool) -> None:
    """Drop a table, or a namespace with all that is in it (-r). It can be brought back for a time: tiltyard undrop.

    \b
    Examples:
      tiltyard rm library.books
      tiltyard rm -r library --yes
    """
    from lance_namespace.errors import TableNotFoundError

    if not object_id:
        raise CommandError("The root cannot be dropped.", ExitStatus.USAGE)
    names = list(object_id)
    try:
        rows = _count_rows(catalog, object_id)
    except TableNotFoundError as error:
        if not recursive:
            raise
        _drop_namespace(catalog, object_id, error, is_confirmed=is_confirmed)
        return
    confirm(f"Drop {object_id}{rows}?", is_confirmed=is_confirmed)
    catalog.call("DropTable", id=names)
    click.echo(f"{object_id} is dropped. {way_back(catalog, object_id, 'ListDroppedTables', 'tables')}")


def _drop_namespace(catalog: Caller, namespace: TypedId, error: Exception, *, is_confirmed: bool) -> None:
    """Drop a namespace. Raises `error` where there is none."""
    from lance_namespace.errors import NamespaceNotFoundError

    from tiltyard.cli.browsing.listing import TABLE as TABLE_KIND
    from tiltyard.cli.browsing.listing import walk

    try:
        entries = list(walk(catalog, namespace, None))
    except NamespaceNotFoundError:
        raise error from None
    tables = sum(entry.kind == TABLE_KIND for entry in entries)
    confirm(
        f"Drop the namespace {namespace} with {tables} tables and {len(entries) - tables} namespaces?",
        is_confirmed=is_confirmed,
    )
    catalog.call("DropNamespace", id=list(namespace), behavior="Cascade")
    sentence = way_back(catalog, namespace, "ListDroppedNamespaces", "namespaces", "--namespace ")
    click.echo(f"{namespace} is dropped. {sentence}")


def _count_rows(catalog: Caller, table: TypedId) -> str:
    """Return the rows of a table as words for a question; empty where it has none that could be counted."""
    from lance_namespace.errors import InvalidTableStateError, PermissionDeniedError

    try:
        rows: Any = catalog.call("CountTableRows", id=list(table))
    except (InvalidTableStateError, PermissionDeniedError):
        return ""
    return f" with {rows} rows"


def way_back(catalog: Caller, object_id: TypedId, operation: str, entries: str, flag: str = "") -> str:
    """Return a sentence on how a dropped object comes back, or that it does not: below a mount, or without a trash.

    Where the list of what was dropped cannot be read, nobody knows.
    """
    from lance_namespace.errors import LanceNamespaceError, UnsupportedOperationError

    try:
        dropped = catalog.call(operation, limit=NEWEST)[entries]
    except UnsupportedOperationError:  # a server without a trash
        dropped = []
    except LanceNamespaceError as error:
        reason = str(error).rstrip(".")
        return f"Whether it can be brought back is not known: the list of dropped {entries} cannot be read ({reason})."
    if not any(tuple(entry["id"]) == tuple(object_id) for entry in dropped):
        return "It cannot be brought back."
    return f"While it is in the trash it can be brought back: tiltyard undrop {flag}{shlex.quote(str(object_id))}"


@click.command("mkdir", short_help="Create a namespace.")
@click.argument("namespace", type=TABLE_OR_NAMESPACE)
@click.option("-p", "--parents", "with_parents", is_flag=True, help="Create those above it, too; it may exist already.")
@target_options
def mkdir(target: CatalogTarget, namespace: TypedId, with_parents: bool) -> None:
    """Create a namespace, for tables and further namespaces; a --root without a catalog gets one.

    \b
    Examples:
      tiltyard mkdir library
      tiltyard mkdir -p library.fiction.english
    """
    from lance_namespace.errors import NamespaceAlreadyExistsError

    if not namespace:
        raise CommandError("The root exists already: name a namespace.", ExitStatus.USAGE)
    defer_imports()
    with opened_catalog(target, new_ids=(namespace,), creates=True) as catalog:
        try:
            _make_namespace(catalog, namespace, with_parents=with_parents)
        except NamespaceAlreadyExistsError as error:
            raise CommandError(f"{namespace} exists already.") from error
        click.echo(f"The namespace {namespace} is there")


def _make_namespace(catalog: Caller, namespace: TypedId, *, with_parents: bool) -> None:
    """Create a namespace, with those above it that are missing. Raises lance_namespace.errors."""
    from lance_namespace.errors import NamespaceNotFoundError

    mode = "ExistOk" if with_parents else None
    try:
        catalog.call("CreateNamespace", id=list(namespace), mode=mode)
    except NamespaceNotFoundError:
        if not with_parents or len(namespace) == 1:
            raise
        _make_namespace(catalog, TypedId(namespace[:-1]), with_parents=True)
        catalog.call("CreateNamespace", id=list(namespace), mode=mode)
