"""Builds of indexes: wait for them; of a root that this process has opened, do them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tiltyard.cli.output.waiting import wait_until
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.local_work import context_of, is_server, running_here

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.cli.session.ids import TypedId

BUILDING, FAILED, DONE = "building", "failed", "done"
"""The states of an index."""


def list_indexes(catalog: Caller, table: TypedId, branch: str | None) -> dict[str, dict[str, Any]]:
    """Return the indexes of a table by name. Raises lance_namespace.errors."""
    entries = catalog.entries("ListTableIndices", "indexes", id=list(table), branch=branch)
    return {each["index_name"]: each for each in entries}


def wait_for_indexes(
    catalog: Caller, table: TypedId, names: Iterable[str], branch: str | None, seconds: float | None
) -> dict[str, dict[str, Any]]:
    """Wait until indexes are built, those that `names` has; return them.

    Raises CommandError where one has failed or was dropped, or the time is over, and lance_namespace.errors.
    """
    wanted = list(names)
    found = list_indexes(catalog, table, branch)

    def is_done() -> bool:
        nonlocal found
        found = list_indexes(catalog, table, branch)
        return not _unfinished(found, wanted)

    def figures() -> Mapping[str, str]:
        waiting = _unfinished(found, wanted)
        share = 1 - len(waiting) / len(wanted) if wanted else 1
        return {"progress": f"{share}", **({"stage": f"build {', '.join(waiting)}"} if waiting else {})}

    with running_here(catalog, _queued_here(catalog, table, wanted, branch)):
        if not wait_until(is_done, f"indexes of {table}", figures, seconds):
            waiting = ", ".join(_unfinished(found, wanted))
            raise CommandError(
                f"{waiting} of {table} is not built after {seconds:g} s; it goes on, where a server or a worker runs: "
                f"tiltyard index wait {table}",
                ExitStatus.TIMED_OUT,
            )
    for name in wanted:
        if name not in found:
            raise CommandError(f"The index {name} of {table} was dropped while it was built.", ExitStatus.NOT_FOUND)
        if found[name]["status"] == FAILED:
            raise CommandError(f"The index {name} of {table} could not be built: {found[name]['failure']}")
    return {name: found[name] for name in wanted}


def _unfinished(found: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    return [name for name in names if name in found and found[name]["status"] == BUILDING]


def _queued_here(catalog: Caller, table: TypedId, names: Iterable[str], branch: str | None) -> list[str]:
    """Return the transactions of builds that wait, of a catalog that this process has opened; none of a server's.

    Raises CommandError for one that takes Spark.
    """
    if is_server(catalog):
        return []
    from tiltyard.model.branches import Branch
    from tiltyard.tables.indexes.build_job import INDEX_JOB
    from tiltyard.tables.indexes.build_queue import queued_builds
    from tiltyard.tables.opening import open_for_reading

    ctx, of = context_of(catalog), Branch.parse(branch)
    queued = queued_builds(ctx, open_for_reading(ctx, list(table), branch=of), of)
    chosen = [each for each in queued if each.payload["name"] in names]
    for each in chosen:
        if each.kind == INDEX_JOB:
            raise CommandError(
                f"{each.payload['name']} of {table} takes Spark, as spark_index_rows says: tiltyard job resume "
                f"{each.id} --uri {shlex.quote(catalog.address)}"
            )
    return [each.id for each in chosen]
