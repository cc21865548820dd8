"""`tiltyard ls | tree | du`: what there is, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.output.cells import format_size, printable
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE_OR_NAMESPACE, TypedId
from tiltyard.cli.session.target import catalog_command
from tiltyard.runtime.pool import run_together

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

_CALLS_AT_ONCE = 8
NAMESPACE, TABLE = "namespace", "table"


@dataclass(frozen=True, slots=True)
class Entry:
    """A namespace or a table, `depth` levels below where a list begins; `is_last` among those beside it."""

    id: TypedId
    kind: str
    depth: int = 0
    is_last: tuple[bool, ...] = ()


@click.command("ls", short_help="List namespaces and tables.")
@click.argument("namespace", type=TABLE_OR_NAMESPACE, default=".")
@click.option(
    "-l", "--long", "is_long", is_flag=True, help="Show rows, bytes and version of each table, and stale ones."
)
@format_option
@catalog_command
def ls(catalog: Caller, namespace: TypedId, is_long: bool, form: OutputFormat) -> None:
    """List the namespaces and tables in NAMESPACE, the root without one; ids of namespaces end with a dot.

    \b
    Examples:
      tiltyard ls
      tiltyard ls -l library --root ./data
      tiltyard ls library --format jsonl | jq -r .id
    """
    entries = list(_entries_in(catalog, namespace))
    if not is_long:
        if form is OutputFormat.TABLE:
            for entry in entries:
                click.echo(_printed(entry))
            return
        print_records(({"id": str(entry.id), "kind": entry.kind} for entry in entries), ("id", "kind"), form)
        return
    records = list(_measure(catalog, entries))
    if form is OutputFormat.TABLE:
        for record in records:
            record["bytes"] = "" if record["bytes"] is None else format_size(record["bytes"])
    columns: tuple[str, ...] = ("id", "kind", "rows", "bytes", "version")
    if stale := {tuple(table["id"]) for table in catalog.call("ListTableAges", stale=True)["tables"]}:
        columns = (*columns, "state")
        for entry, record in zip(entries, records, strict=True):
            record["state"] = "stale" if tuple(entry.id) in stale else ""
    print_records(records, columns, form, numbers=("rows", "bytes", "version"))


@click.command("tree", short_help="Show namespaces and tables as a tree.")
@click.argument("namespace", type=TABLE_OR_NAMESPACE, default=".")
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help="Only so many levels.")
@format_option
@catalog_command
def tree(catalog: Caller, namespace: TypedId, depth: int | None, form: OutputFormat) -> None:
    """Show what is in NAMESPACE, the root without one, and below it.

    \b
    Example:
      tiltyard tree --depth 2
    """
    entries = walk(catalog, namespace, depth)
    if form is not OutputFormat.TABLE:
        records = ({"id": str(entry.id), "kind": entry.kind, "depth": entry.depth} for entry in entries)
        print_records(records, ("id", "kind", "depth"), form)
        return
    first = list(islice(entries, 1))  # what does not exist fails before anything is printed
    click.echo(str(namespace))
    for entry in chain(first, entries):
        stems = "".join("    " if is_last else "│   " for is_last in entry.is_last[:-1])
        name = printable(entry.id[-1]) + ("." if entry.kind == NAMESPACE else "")
        click.echo(f"{stems}{'└── ' if entry.is_last[-1] else '├── '}{name}")


@click.command("du", short_help="Show how large namespaces and tables are.")
@click.argument("namespace", type=TABLE_OR_NAMESPACE, default=".")
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Show so many levels; those below are counted.")
@format_option
@catalog_command
def du(catalog: Caller, namespace: TypedId, depth: int | None, form: OutputFormat) -> None:
    """Show rows and bytes of NAMESPACE, the root without one, and of all namespaces and tables below it, largest first.

    Bytes are those of the data and index files of the newest versions; older versions may have further files.

    \b
    Example:
      tiltyard du library --depth 1
    """
    entries = [Entry(namespace, NAMESPACE), *walk(catalog, namespace, None)]
    totals: dict[TypedId, tuple[int, int]] = {}
    for entry, record in zip(entries, _measure(catalog, entries), strict=True):
        for length in range(len(namespace), len(entry.id) + 1):
            rows, size = totals.get(TypedId(entry.id[:length]), (0, 0))
            totals[TypedId(entry.id[:length])] = rows + (record["rows"] or 0), size + (record["bytes"] or 0)
    shown = [entry for entry in entries if depth is None or len(entry.id) - len(namespace) <= depth]
    shown.sort(key=lambda entry: (-totals[entry.id][1], entry.id))
    records = (
        {
            "bytes": format_size(totals[entry.id][1]) if form is OutputFormat.TABLE else totals[entry.id][1],
            "rows": totals[entry.id][0],
            "kind": entry.kind,
            "id": _printed(entry) if form is OutputFormat.TABLE else str(entry.id),
        }
        for entry in shown
    )
    print_records(records, ("bytes", "rows", "kind", "id"), form, numbers=("bytes", "rows"))


def walk(catalog: Caller, namespace: TypedId, depth: int | None, stems: tuple[bool, ...] = ()) -> Iterator[Entry]:
    """Yield what is below a namespace, each namespace before what is in it; down to `depth` levels."""
    entries = list(_entries_in(catalog, namespace))
    for number, entry in enumerate(entries, 1):
        is_last = (*stems, number == len(entries))
        yield Entry(entry.id, entry.kind, len(is_last), is_last)
        if entry.kind == NAMESPACE and (depth is None or len(is_last) < depth):
            yield from walk(catalog, entry.id, depth, is_last)


def _entries_in(catalog: Caller, namespace: TypedId) -> Iterator[Entry]:
    """Yield the namespaces, then the tables in a namespace. Raises lance_namespace.errors, CommandError for a table."""
    from lance_namespace.errors import NamespaceNotFoundError

    from tiltyard.cli.session.catalog import list_namespaces, list_tables

    try:
        for name in list_namespaces(catalog, namespace):
            yield Entry(TypedId((*namespace, name)), NAMESPACE)
    except NamespaceNotFoundError as error:
        if not _is_table(catalog, namespace):
            raise
        message = f"{namespace} is a table, not a namespace: tiltyard show {namespace}"
        raise CommandError(message, ExitStatus.NOT_FOUND) from error
    for name in list_tables(catalog, namespace):
        yield Entry(TypedId((*namespace, name)), TABLE)


def _is_table(catalog: Caller, name: TypedId) -> bool:
    from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

    try:
        catalog.call("TableExists", id=list(name))
    except (NamespaceNotFoundError, TableNotFoundError):
        return False
    return True


def _measure(catalog: Caller, entries: list[Entry]) -> Iterator[dict[str, Any]]:
    """Yield a record for each entry; nothing is known of namespaces, views, and tables without rows yet."""

    def measure(entry: Entry) -> dict[str, Any]:
        record = {"id": _printed(entry), "kind": entry.kind, "rows": None, "bytes": None, "version": None}
        return record if entry.kind == NAMESPACE else {**record, **_figures(catalog, entry.id)}

    for start in range(0, len(entries), _CALLS_AT_ONCE):
        yield from run_together(measure, entries[start : start + _CALLS_AT_ONCE], _CALLS_AT_ONCE)


def _figures(catalog: Caller, table: TypedId) -> dict[str, Any]:
    """Return rows, bytes and version of a table; none of one without data, or that has gone meanwhile."""
    from lance_namespace.errors import InvalidTableStateError, PermissionDeniedError, TableNotFoundError

    try:
        stats = catalog.call("GetTableStats", id=list(table))
        newest = catalog.call("ListTableVersions", id=list(table), descending=True, limit=1)["versions"]
    except (InvalidTableStateError, PermissionDeniedError, TableNotFoundError):
        return {}
    version = newest[0]["version"] if newest else None
    return {"rows": stats["num_rows"], "bytes": stats["total_bytes"], "version": version}


def _printed(entry: Entry) -> str:
    if not entry.id:
        return "."
    return printable(str(entry.id)) + ("." if entry.kind == NAMESPACE else "")
