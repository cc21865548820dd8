"""`tiltyard import-catalog`: move tables of a mounted catalog into this one, or back; on a server, or on a database."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.interruption import exit_interrupted, interruptible
from tiltyard.cli.options import catalog_options
from tiltyard.cli.output.progress import progress_bar
from tiltyard.cli.session.target import CatalogTarget, opened_catalog
from tiltyard.model.settings.storages import SecretError, is_reference, read_secret
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.cli.interruption import Interruption
    from tiltyard.model.ids import Id
    from tiltyard.pipeline.export.tasks import CopyPart

COPY_SECONDS = 60 * 60.0
"""How long a copy may take: a server gives up after that, too."""
COPY_PAUSE_SECONDS = 1.0


class ImportOutcome(StrEnum):
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


@dataclass(frozen=True, slots=True)
class SparkCopy:
    """Where Spark copies tables, and the options by which its tasks open the storage."""

    master: str
    storage: Mapping[str, str] = field(repr=False)


@dataclass(slots=True)
class Report:
    """The outcome of each table, so far."""

    source: str
    target: str
    number: int = 0
    tables: list[dict[str, str]] = field(default_factory=list)

    def add(self, move: TableMove, outcome: ImportOutcome, reason: str = "") -> None:
        """Add a table, and print it."""
        entry = {"source": str(move.source), "target": str(move.target), "outcome": outcome.value}
        self.tables.append({**entry, **({"reason": reason} if reason else {})})
        click.echo(f"{move.source} -> {move.target}: {outcome}{f': {reason}' if reason else ''}")

    @property
    def totals(self) -> dict[str, int]:
        """The number of tables by outcome, and of those that were not tried."""
        counts = Counter(entry["outcome"] for entry in self.tables)
        return {
            **{outcome.value: counts[outcome] for outcome in ImportOutcome},
            "not tried": self.number - len(self.tables),
        }

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
@click.option(
    "--spark", "master", metavar="MASTER", help="With --copy: copy many tables at once on Spark (local[4], spark://…)."
)
@click.option(
    "--storage-option",
    "task_storage",
    metavar="KEY=VALUE",
    multiple=True,
    help="With --spark: an option by which its tasks open the storage; a secret is env:NAME or file:PATH.",
)
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
    place: CatalogTarget,
    source: str,
    target: str | None,
    copy: bool,
    master: str | None,
    task_storage: tuple[str, ...],
    keep_entries: bool,
    mounted: str | None,
    allow_wider_access: bool,
    file: Path | None,
) -> None:
    """Move the tables of a mounted namespace into this catalog, with their grants and policies; files stay in place.

    Run again, it goes on where it stopped. Ctrl-C stops it between two tables. Its exit status is 1 if a table failed.

    \b
    Examples:
      tiltyard import-catalog 'lake$sales' sales --root ./data
      tiltyard import-catalog lake films --copy --report moved.json --url https://lake.example.org
      tiltyard import-catalog lake films --copy --spark 'local[4]' --root ./data
      tiltyard import-catalog sales --to 'lake$sales' --root ./data
    """
    from tiltyard.model.ids import parse_id

    _check_options(target, mounted, copy=copy, keeps_entries=keep_entries, master=master, storage=task_storage)
    if file is not None and not file.parent.is_dir():
        refuse(f"There is no folder {file.parent} for the report.")
    is_return = mounted is not None
    options = {"copy": copy or None, "keep_entry": keep_entries or None, "allow_wider_access": allow_wider_access}
    report = Report(source, mounted or target or "")
    with interruptible() as interruption, opened_catalog(place) as calls:
        ends = parse_id(source), parse_id(report.target)
        _check_ends(calls, *ends, is_return=is_return)
        plan = list(_plan(calls, *ends))
        report.number = sum(len(namespace.tables) for namespace in plan)
        interruption.check()
        done = ImportOutcome.RETURNED if is_return else ImportOutcome.COPIED if copy else ImportOutcome.IMPORTED
        try:
            with progress_bar("import", report.figures):
                if master:
                    _copy_on_spark(
                        calls, plan, report, options, SparkCopy(master, _parse_options(task_storage)), interruption
                    )
                else:
                    for _ in _move_all(calls, plan, report, done, options):
                        if interruption.happened:
                            break
        finally:
            report.write(file)
        if interruption.happened:
            exit_interrupted("tiltyard: interrupted; run it again, and it goes on.")
    if report.totals[ImportOutcome.FAILED] or report.totals["not tried"]:
        sys.exit(1)


def _check_options(
    target: str | None,
    mounted: str | None,
    *,
    copy: bool,
    keeps_entries: bool,
    master: str | None,
    storage: tuple[str, ...],
) -> None:
    """Raise click.UsageError for options that contradict each other."""
    if (target is None) == (mounted is None):
        raise click.UsageError("Name a TARGET_NAMESPACE of this catalog, or --to MOUNT[$NAMESPACE] for the way back.")
    if mounted is not None and (copy or keeps_entries):
        raise click.UsageError("--copy and --keep-entries are for the way into this catalog, not for --to.")
    if (master or storage) and not copy:
        raise click.UsageError("--spark and --storage-option are for --copy: moves leave files in place.")
    if storage and not master:
        raise click.UsageError("--storage-option is for --spark: without it the server copies.")


def _check_ends(calls: Caller, source: Id, target: Id, *, is_return: bool) -> None:
    """Refuse two namespaces unless one is below a mount, and the other is not."""
    mounts = [tuple(entry["id"]) for entry in calls.entries("ListMounts", "mounts")]

    def is_mounted(path: Id) -> bool:
        return any(path[: len(mount)] == mount for mount in mounts)

    theirs, ours = (target, source) if is_return else (source, target)
    if not is_mounted(theirs):
        refuse(f"{theirs} is no mount, nor below one: `tiltyard mount list` shows all.")
    if is_mounted(ours):
        refuse(f"{ours} is below a mount: name a namespace of this catalog.")
    if any(mount[: len(ours)] == tuple(ours) for mount in mounts if is_return):
        refuse(f"There is a mount in {ours}: name a namespace without one.")


def _plan(calls: Caller, source: Id, target: Id) -> Iterator[NamespaceMove]:
    """Yield all namespaces, each before those in it, with their tables. Lists are read before anything is moved."""
    from tiltyard.model.ids import Id

    names = sorted(map(str, calls.entries("ListTables", "tables", id=list(source))))
    moves = tuple(TableMove(Id((*source, name)), Id((*target, name))) for name in names)
    yield NamespaceMove(source, target, moves)
    for name in sorted(map(str, calls.entries("ListNamespaces", "namespaces", id=list(source)))):
        yield from _plan(calls, Id((*source, name)), Id((*target, name)))


def _move_all(
    calls: Caller, plan: list[NamespaceMove], report: Report, done: ImportOutcome, options: Mapping[str, Any]
) -> Iterator[None]:
    """Move all tables, one after the other; yield after each. One that fails does not stop the others."""
    from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

    for namespace in plan:
        if not _try_namespace(calls, namespace, plan[0], report):
            yield
            continue
        for move in namespace.tables:
            try:
                response = _move(calls, move, options)
            except LanceNamespaceError as error:
                report.add(move, ImportOutcome.FAILED, str(error))
                if isinstance(error, ServiceUnavailableError):
                    return
            else:
                is_repeated = response["was_moved_before"]
                report.add(move, *((ImportOutcome.SKIPPED, "it was moved before") if is_repeated else (done,)))
            yield


def _copy_on_spark(
    calls: Caller,
    plan: list[NamespaceMove],
    report: Report,
    options: Mapping[str, Any],
    spark_copy: SparkCopy,
    interruption: Interruption,
) -> None:
    """Copy all tables in tasks of Spark; the server adds each as soon as it is copied."""
    from tiltyard.pipeline.export.tasks import CopyOutcome, copy_part
    from tiltyard.pipeline.runs import LocalRun, RunCanceledError
    from tiltyard.pipeline.session import spark_session
    from tiltyard.pipeline.spark_tasks import run_tasks

    staged = list(_stage_all(calls, plan, report, options))
    if not staged or interruption.happened:
        return
    run = LocalRun()
    interruption.on_signal(run.canceled.set)

    def finish(position: int, outcome: CopyOutcome) -> None:
        move, part = staged[position]
        if outcome.error is not None:
            report.add(move, ImportOutcome.FAILED, outcome.error)
        else:
            _try_move(calls, move, report, {**options, "staged_location": part.target})

    session = spark_session(spark_copy.master, name="tiltyard import-catalog")
    try:
        work = partial(copy_part, spark_copy.storage)
        run_tasks(session, run, work, [part for _, part in staged], on_result=finish, name="copy tables")
    except RunCanceledError:
        return  # the report says which tables were not tried
    finally:
        session.stop()


def _stage_all(
    calls: Caller, plan: list[NamespaceMove], report: Report, options: Mapping[str, Any]
) -> Iterator[tuple[TableMove, CopyPart]]:
    """Have the server choose a folder for the copy of each table; yield what is to be copied into it."""
    from tiltyard.pipeline.export.tasks import CopyPart

    for namespace in plan:
        if not _try_namespace(calls, namespace, plan[0], report):
            continue
        for move in namespace.tables:
            response = _try_move(calls, move, report, {**options, "stage": True})
            if response is not None and response.get("staged_location"):
                yield move, CopyPart(response["location"], response["version"], response["staged_location"])


def _try_namespace(calls: Caller, namespace: NamespaceMove, first: NamespaceMove, report: Report) -> bool:
    """Make the namespace of tables, unless it is there; where it cannot be made, report these as failed."""
    from lance_namespace.errors import LanceNamespaceError

    try:
        _make_namespace(calls, namespace, first)
    except LanceNamespaceError as error:
        for move in namespace.tables:
            report.add(move, ImportOutcome.FAILED, f"{namespace.target} cannot be made: {error}")
        return False
    return True


def _try_move(calls: Caller, move: TableMove, report: Report, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Call MoveTable, and report what became of the table, unless it has still to be copied; None if it failed."""
    from lance_namespace.errors import LanceNamespaceError

    try:
        response: dict[str, Any] = _send_move(calls, move, options)
    except LanceNamespaceError as error:
        report.add(move, ImportOutcome.FAILED, str(error))
        return None
    if response["was_moved_before"]:
        report.add(move, ImportOutcome.SKIPPED, "it was moved before")
    elif "staged_location" in options:
        report.add(move, ImportOutcome.COPIED)
    return response


def _parse_options(texts: tuple[str, ...]) -> dict[str, str]:
    """Return storage options, with the secrets that they refer to. Ends the command for one that is none."""
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--storage-option is KEY=VALUE, not {text!r}.")
        try:
            options[name] = read_secret(f"The storage option {name}", value) if is_reference(value) else value
        except SecretError as error:
            refuse(str(error))
    return options


def _send_move(calls: Caller, move: TableMove, options: Mapping[str, Any]) -> dict[str, Any]:
    return dict(calls.call("MoveTable", id=list(move.source), new_id=list(move.target), **options))


def _move(calls: Caller, move: TableMove, options: Mapping[str, Any]) -> dict[str, Any]:
    """Move a table. A copy that a server goes on with, after a request has run out of time, is waited for."""
    from lance_namespace.errors import ConcurrentModificationError, ServiceUnavailableError

    deadline, outages = time.monotonic() + (COPY_SECONDS if options["copy"] else 0.0), 0
    while True:
        try:
            return _send_move(calls, move, options)
        except (ConcurrentModificationError, ServiceUnavailableError) as error:
            outages = outages + 1 if isinstance(error, ServiceUnavailableError) else 0
            if outages > 1 or time.monotonic() > deadline:
                raise
        time.sleep(COPY_PAUSE_SECONDS)


def _make_namespace(calls: Caller, namespace: NamespaceMove, top: NamespaceMove) -> None:
    """Make the namespace that tables move to, if it is missing, with the properties and grants of the old one.

    The topmost one gets the grants of those above the old one, too.
    """
    from lance_namespace.errors import NamespaceAlreadyExistsError

    properties = calls.call("DescribeNamespace", id=list(namespace.source)).get("properties") or {}
    try:
        calls.call("CreateNamespace", id=list(namespace.target), properties=properties)
    except NamespaceAlreadyExistsError:
        if not _is_empty(calls, namespace.target):
            return
    depths = range(1, len(namespace.source) + 1) if namespace == top else (len(namespace.source),)
    grants = [grant for depth in depths for grant in _grants(calls, list(namespace.source[:depth]))]
    wanted = {(grant["grantee_kind"], grant["grantee"]) for grant in grants}
    if any((grant["grantee_kind"], grant["grantee"]) not in wanted for grant in _grants(calls, list(namespace.target))):
        return  # somebody else has made it
    for grant in grants:
        fields = {name: grant[name] for name in ("grantee", "grantee_kind", "privileges")}
        calls.call("GrantPrivileges", object_kind="namespace", id=list(namespace.target), **fields)


def _is_empty(calls: Caller, path: Id) -> bool:
    """Return whether nothing is in a namespace, as where a run before was killed when it had just made it."""
    tables = calls.call("ListTables", id=list(path), limit=1)["tables"]
    return not tables and not calls.call("ListNamespaces", id=list(path), limit=1)["namespaces"]


def _grants(calls: Caller, path: list[str]) -> list[dict[str, Any]]:
    return list(calls.entries("ListGrants", "grants", object_kind="namespace", id=path))
