"""`tiltyard import-catalog`: move tables of a mounted catalog into this one, or back; on a server, or on a database."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.interruption import exit_interrupted, interruptible
from tiltyard.cli.options import catalog_options
from tiltyard.cli.progress_bar import progress_bar
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse

if TYPE_CHECKING:
    from tiltyard.cli.client import Call
    from tiltyard.model.ids import Id

COPY_SECONDS = 60 * 60.0
"""How long a copy may take: a server gives up after that, too."""
COPY_PAUSE = 1.0


class Outcome(StrEnum):
    """What became of a table."""

    IMPORTED = "imported"
    COPIED = "copied"
    RETURNED = "returned"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TableMove:
    """A table to move, by its old and new id."""

    source: Id
    target: Id


@dataclass(frozen=True, slots=True)
class NamespaceMove:
    """A namespace whose tables move, and their names."""

    source: Id
    target: Id
    tables: tuple[TableMove, ...]


@dataclass(slots=True)
class Report:
    """The outcome of each table, so far."""

    source: str
    target: str
    number: int = 0
    tables: list[dict[str, str]] = field(default_factory=list)

    def add(self, move: TableMove, outcome: Outcome, reason: str = "") -> None:
        """Add a table, and print it."""
        entry = {"source": str(move.source), "target": str(move.target), "outcome": outcome.value}
        self.tables.append({**entry, **({"reason": reason} if reason else {})})
        click.echo(f"{move.source} -> {move.target}: {outcome}{f': {reason}' if reason else ''}")

    @property
    def totals(self) -> dict[str, int]:
        """The number of tables by outcome, and of those that were not tried."""
        counts = Counter(entry["outcome"] for entry in self.tables)
        return {**{outcome.value: counts[outcome] for outcome in Outcome}, "not tried": self.number - len(self.tables)}

    def figures(self) -> Mapping[str, str]:
        """Return the progress, for the bar."""
        return {"progress": str(len(self.tables) / self.number if self.number else 1.0)}

    def write(self, file: Path | None) -> None:
        """Print the totals, and write all to a file."""
        totals = {name: count for name, count in self.totals.items() if count}
        click.echo(", ".join(f"{count} {name}" for name, count in totals.items()) or "There is no table to move.")
        if file is not None:
            report = {"source": self.source, "target": self.target, "totals": self.totals, "tables": self.tables}
            file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


@click.command("import-catalog", short_help="Move a mounted catalog's tables into this one, or back.")
@click.argument("source", metavar="MOUNT[$NAMESPACE]")
@click.argument("target", metavar="[TARGET_NAMESPACE]", required=False)
@click.option("--copy", is_flag=True, help="Copy the latest version of each table; the other catalog stays as it is.")
@click.option("--keep-entries", is_flag=True, help="Leave the entries in the other catalog.")
@click.option(
    "--to", "mounted", metavar="MOUNT[$NAMESPACE]", help="The way back: move a namespace of this catalog there."
)
@click.option(
    "--allow-wider-access", is_flag=True, help="Also move tables to where grants give somebody more than before."
)
@click.option("--report", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write a report as JSON.")
@catalog_options
def import_catalog(
    settings: Settings,
    source: str,
    target: str | None,
    copy: bool,
    keep_entries: bool,
    mounted: str | None,
    allow_wider_access: bool,
    file: Path | None,
    url: str,
    key: str,
) -> None:
    """Move the tables of a mounted namespace into this catalog, with their grants and policies; files stay in place.

    Run again, it goes on where it stopped. Ctrl-C stops it between two tables. Its exit status is 1 if a table failed.

    \b
    Examples:
      tiltyard import-catalog 'lake$sales' sales --root ./data
      tiltyard import-catalog lake films --copy --report moved.json --url https://lake.example.org
      tiltyard import-catalog sales --to 'lake$sales' --root ./data
    """
    from tiltyard.cli.client import connect
    from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id

    if (target is None) == (mounted is None):
        raise click.UsageError("Name a TARGET_NAMESPACE of this catalog, or --to MOUNT[$NAMESPACE] for the way back.")
    if mounted is not None and (copy or keep_entries):
        raise click.UsageError("--copy and --keep-entries are for the way into this catalog, not for --to.")
    if file is not None and not file.parent.is_dir():
        refuse(f"There is no folder {file.parent} for the report.")
    is_return = mounted is not None
    options = {"copy": copy or None, "keep_entry": keep_entries or None, "allow_wider_access": allow_wider_access}
    report = Report(source, mounted or target or "")
    with interruptible() as interruption, connect(settings, url, key) as call:
        ends = parse_id(source, DEFAULT_DELIMITER), parse_id(report.target, DEFAULT_DELIMITER)
        _check_ends(call, *ends, is_return=is_return)
        plan = list(_plan(call, *ends))
        report.number = sum(len(namespace.tables) for namespace in plan)
        interruption.check()
        done = Outcome.RETURNED if is_return else Outcome.COPIED if copy else Outcome.IMPORTED
        try:
            with progress_bar("import", report.figures):
                for _ in _move_all(call, plan, report, done, options):
                    if interruption.happened:
                        break
        finally:
            report.write(file)
        if interruption.happened:
            exit_interrupted("tiltyard: interrupted; run it again, and it goes on.")
    if report.totals[Outcome.FAILED] or report.totals["not tried"]:
        sys.exit(1)


def _check_ends(call: Call, source: Id, target: Id, *, is_return: bool) -> None:
    """Refuse two namespaces unless one is below a mount, and the other is not."""
    from tiltyard.cli.client import list_pages

    mounts = [tuple(entry["id"]) for entry in list_pages(call, "ListMounts", "mounts")]

    def is_mounted(path: Id) -> bool:
        return any(path[: len(mount)] == mount for mount in mounts)

    theirs, ours = (target, source) if is_return else (source, target)
    if not is_mounted(theirs):
        refuse(f"{theirs} is no mount, nor below one: `tiltyard mount list` shows all.")
    if is_mounted(ours):
        refuse(f"{ours} is below a mount: name a namespace of this catalog.")
    if any(mount[: len(ours)] == tuple(ours) for mount in mounts if is_return):
        refuse(f"There is a mount in {ours}: name a namespace without one.")


def _plan(call: Call, source: Id, target: Id) -> Iterator[NamespaceMove]:
    """Yield all namespaces, each before those in it, with their tables. Lists are read before anything is moved."""
    from tiltyard.cli.client import list_pages
    from tiltyard.model.ids import Id

    names = sorted(map(str, list_pages(call, "ListTables", "tables", id=list(source))))
    moves = tuple(TableMove(Id((*source, name)), Id((*target, name))) for name in names)
    yield NamespaceMove(source, target, moves)
    for name in sorted(map(str, list_pages(call, "ListNamespaces", "namespaces", id=list(source)))):
        yield from _plan(call, Id((*source, name)), Id((*target, name)))


def _move_all(
    call: Call, plan: list[NamespaceMove], report: Report, done: Outcome, options: Mapping[str, Any]
) -> Iterator[None]:
    """Move all tables, one after the other; yield after each. One that fails does not stop the others."""
    from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

    for namespace in plan:
        try:
            _make_namespace(call, namespace, plan[0])
        except LanceNamespaceError as error:
            for move in namespace.tables:
                report.add(move, Outcome.FAILED, f"{namespace.target} cannot be made: {error}")
            yield
            continue
        for move in namespace.tables:
            try:
                response = _move(call, move, options)
            except LanceNamespaceError as error:
                report.add(move, Outcome.FAILED, str(error))
                if isinstance(error, ServiceUnavailableError):
                    return
            else:
                is_repeated = response["was_moved_before"]
                report.add(move, *((Outcome.SKIPPED, "it was moved before") if is_repeated else (done,)))
            yield


def _move(call: Call, move: TableMove, options: Mapping[str, Any]) -> dict[str, Any]:
    """Move a table. A copy that a server goes on with, after a request has run out of time, is waited for."""
    from lance_namespace.errors import ConcurrentModificationError, ServiceUnavailableError

    deadline, outages = time.monotonic() + (COPY_SECONDS if options["copy"] else 0.0), 0
    while True:
        try:
            return call("MoveTable", id=list(move.source), new_id=list(move.target), **options)
        except (ConcurrentModificationError, ServiceUnavailableError) as error:
            outages = outages + 1 if isinstance(error, ServiceUnavailableError) else 0
            if outages > 1 or time.monotonic() > deadline:
                raise
        time.sleep(COPY_PAUSE)


def _make_namespace(call: Call, namespace: NamespaceMove, top: NamespaceMove) -> None:
    """Make the namespace that tables move to, if it is missing, with the properties and grants of the old one.

    The topmost one gets the grants of those above the old one, too.
    """
    from lance_namespace.errors import NamespaceAlreadyExistsError

    properties = call("DescribeNamespace", id=list(namespace.source)).get("properties") or {}
    try:
        call("CreateNamespace", id=list(namespace.target), properties=properties)
    except NamespaceAlreadyExistsError:
        if not _is_empty(call, namespace.target):
            return
    depths = range(1, len(namespace.source) + 1) if namespace == top else (len(namespace.source),)
    grants = [grant for depth in depths for grant in _grants(call, list(namespace.source[:depth]))]
    wanted = {(grant["grantee_kind"], grant["grantee"]) for grant in grants}
    if any((grant["grantee_kind"], grant["grantee"]) not in wanted for grant in _grants(call, list(namespace.target))):
        return  # somebody else has made it
    for grant in grants:
        fields = {name: grant[name] for name in ("grantee", "grantee_kind", "privileges")}
        call("GrantPrivileges", object_kind="namespace", id=list(namespace.target), **fields)


def _is_empty(call: Call, path: Id) -> bool:
    """Return whether nothing is in a namespace, as where a run before was killed when it had just made it."""
    tables = call("ListTables", id=list(path), limit=1)["tables"]
    return not tables and not call("ListNamespaces", id=list(path), limit=1)["namespaces"]


def _grants(call: Call, path: list[str]) -> list[dict[str, Any]]:
    from tiltyard.cli.client import list_pages

    return list(list_pages(call, "ListGrants", "grants", object_kind="namespace", id=path))
