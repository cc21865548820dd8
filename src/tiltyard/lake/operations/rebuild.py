"""Make again what was made from a table or a file that was wrong: a plan, and its run, which can be gone on with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, TransactionNotFoundError

from tiltyard.lake.display import render_table
from tiltyard.lake.errors import RunCanceledError, RunFailedError
from tiltyard.lake.lineage import Lineage, LineageNode, read_lineage
from tiltyard.lake.operations.rebuild_plan import RebuildStep, plan_steps, to_table_argument
from tiltyard.lake.runs import Run, ServerRun, find_run
from tiltyard.lake.tables.table import Table
from tiltyard.lake.views import View
from tiltyard.model.text.typed_ids import parse_typed_id
from tiltyard.model.views.definitions import ViewDefinition, ViewKind
from tiltyard.pipeline.sources.filesystem import absolute_path

if TYPE_CHECKING:
    from tiltyard.lake.session import LakeSession

MAX_DEPTH = 20
"""How many steps away what was made from it is looked for, which is what DescribeLineage allows."""
_NOT_WHOLE = (
    "There is more that was made from it than lineage tells at once ({depth} steps, 200 tables): what is listed is not "
    "all, and nothing of it is run. Rebuild from tables that are nearer to the end."
)


class _State(msgspec.Struct):
    """What a file has of a rebuild that is gone on with."""

    source: str
    steps: list[RebuildStep]


class Rebuild:
    """What has to be made again if `source` was wrong: `steps`, in order; `run()` does those that take no person."""

    def __init__(self, lake: LakeSession, source: str, steps: list[RebuildStep], *, is_truncated: bool = False) -> None:
        self.source = source
        self.steps = steps
        self.is_truncated = is_truncated
        self._lake = lake

    @property
    def by_hand(self) -> list[RebuildStep]:
        """Return the steps that a person has to do, and has not said to have done."""
        return [step for step in self.steps if step.is_by_hand and step.status != "done"]

    @property
    def is_done(self) -> bool:
        """Return whether all steps are done."""
        return all(step.status == "done" for step in self.steps)

    def mark_done(self, *tables: str) -> None:
        """Say that what a person had to do for some tables is done. Raises InvalidInputError for other tables."""
        for table in tables:
            steps = [step for step in self.steps if step.is_by_hand and step.table == table]
            if not steps:
                raise InvalidInputError(f"Nothing is to be done by hand for '{table}': {self._names_by_hand()}.")
            for step in steps:
                step.status = "done"

    def run(
        self,
        *,
        submit: bool | None = None,
        state: str | os.PathLike[str] | None = None,
        on_step: Callable[[RebuildStep], None] | None = None,
    ) -> Rebuild:
        """Do the steps in order, with your rights, but for those that take a person and those that come after them.

        After a failure it goes on where it was when it is called again; in another process by the file `state`, which
        it writes (`lake.rebuild(…, state=…)`). With `submit` the server's workers run the jobs. `on_step` is called
        before each step and after it. Raises InvalidInputError where lineage is cut, and what a job fails with.
        """
        if self.is_truncated:
            raise InvalidInputError(_NOT_WHOLE.format(depth=MAX_DEPTH))
        for step in self.steps:
            if step.status == "done" or step.is_by_hand or self._is_blocked(step):
                continue
            self._do(step, submit, state, on_step or (lambda _: None))
        self._save(state)
        return self

    def _is_blocked(self, step: RebuildStep) -> bool:
        """Return whether something that a step comes after is still to be done."""
        before = self.steps[: self.steps.index(step)]
        tables = {*step.after, step.table}
        return any(other.table in tables and other.status != "done" for other in before)

    def _do(
        self,
        step: RebuildStep,
        submit: bool | None,
        state: str | os.PathLike[str] | None,
        on_step: Callable[[RebuildStep], None],
    ) -> None:
        if step.status == "running" and self._has_succeeded(step):
            step.status = "done"
        else:
            step.status = "running"
            on_step(step)
            try:
                run = self._start(step, submit)
                step.run = run.id
                self._save(state)
                run.wait()
            except BaseException as error:
                step.status = "running" if isinstance(error, KeyboardInterrupt) else "failed"
                self._save(state)
                raise
            step.status = "done"
        on_step(step)
        self._save(state)

    def _has_succeeded(self, step: RebuildStep) -> bool:
        """Return whether the run that another process has begun ends well."""
        if not step.run:
            return False
        try:
            run = find_run(self._lake.catalog, step.run)
        except (TransactionNotFoundError, InvalidTableStateError):  # a server's own work is no job
            return False
        with suppress(RunFailedError, RunCanceledError):
            run.wait()
        return run.status == "Succeeded"

    def _start(self, step: RebuildStep, submit: bool | None) -> Run:
        """Start what a step does. Raises what starting a job raises."""
        path = tuple(parse_typed_id(step.table))
        if step.action == "refresh":
            view = ViewDefinition.from_metadata(Table(self._lake, path).dataset().schema.metadata)
            if view is not None and view.kind is ViewKind.SELECT:
                refreshed = self._lake.calls.call("RefreshMaterializedView", id=list(path), full=True)
                return ServerRun(self._lake.calls, "refresh", refreshed["job_id"])
            return View(self._lake, path).refresh(full=True, wait=False, submit=submit)
        if step.action == "backfill":
            return Table(self._lake, path).backfill(step.column, wait=False, submit=submit)
        job = self._lake.calls.call("DescribeJob", id=[step.job])["job"]
        if job.get("asked_by") != self._lake.calls.call("WhoAmI")["principal"]:  # a file of the state may say anything
            raise InvalidInputError(f"The job {step.job} was asked for by somebody else, who has to repeat it.")
        arguments = dict(job["arguments"])
        if "table" in arguments:
            arguments["table"] = to_table_argument(step.table)
        return self._lake.run_job(job["name"], arguments, wait=False, submit=submit)

    def _save(self, state: str | os.PathLike[str] | None) -> None:
        if state is None:
            return
        file = Path(state)
        new = file.with_name(f"{file.name}.new")
        new.write_bytes(msgspec.json.encode(_State(self.source, self.steps)))
        new.replace(file)

    def _names_by_hand(self) -> str:
        names = dict.fromkeys(step.table for step in self.by_hand if step.table)
        return ", ".join(names) or "for none"

    def __repr__(self) -> str:
        done = sum(step.status == "done" for step in self.steps)
        return f"<rebuild of {self.source}: {done} of {len(self.steps)} steps done, {len(self.by_hand)} by hand>"

    def _repr_html_(self) -> str:
        columns = ("table", "what", "column", "detail", "status")
        rows = [(each.table, each.action, each.column, each.detail, each.status) for each in self.steps]
        return render_table(columns, rows)


def plan_rebuild(
    lake: LakeSession,
    source: Table | str | os.PathLike[str],
    *,
    since: int | str | datetime | None = None,
    column: str | None = None,
    state: str | os.PathLike[str] | None = None,
    done: Iterable[str] = (),
) -> Rebuild:
    """Return what has to be made again, as `Lake.rebuild` says; that of the file `state`, if it is there."""
    table = source if isinstance(source, Table) else _table_named(lake, source)
    name = table.name if table is not None else absolute_path(os.fspath(source))  # type: ignore[arg-type]  # no table
    rebuild = _load(lake, name, state)
    if rebuild is None:
        found = _follow(lake, table, name, since, column)
        rebuild = Rebuild(lake, name, plan_steps(lake, found), is_truncated=found.is_truncated)
    rebuild.mark_done(*done)
    return rebuild


def _table_named(lake: LakeSession, source: str | os.PathLike[str]) -> Table | None:
    """Return the table of a name; None for a file or folder, which has a slash or is a path."""
    if not isinstance(source, str) or "/" in source:
        return None
    try:
        path = tuple(parse_typed_id(source))
    except ValueError as error:
        raise InvalidInputError(f"source: {error}") from error
    if not path:
        raise InvalidInputError("source is empty: name a table, or a file by its path.")
    return Table(lake, path)


def _load(lake: LakeSession, name: str, state: str | os.PathLike[str] | None) -> Rebuild | None:
    """Return the rebuild that a file has; None without one. Raises InvalidInputError for a file of something else."""
    if state is None or not Path(state).exists():
        return None
    try:
        saved = msgspec.json.decode(Path(state).read_bytes(), type=_State)
    except (msgspec.MsgspecError, OSError) as error:
        raise InvalidInputError(f"state: {os.fspath(state)} is no rebuild: {error}.") from error
    if saved.source != name:
        raise InvalidInputError(f"state: {os.fspath(state)} is the rebuild of {saved.source}, not of {name}.")
    return Rebuild(lake, name, saved.steps)


def _follow(
    lake: LakeSession, table: Table | None, name: str, since: int | str | datetime | None, column: str | None
) -> Lineage:
    """Return what was made from a table, or from a file. Raises InvalidInputError, TableNotFoundError."""
    request: dict[str, Any] = {"depth": MAX_DEPTH, "column": column}
    if table is not None:
        version = None if since is None else table.at(since).version
        return read_lineage(lake, id=list(table.path), direction="downstream", version=version, **request)
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidInputError("since: of a file it is a time with a zone, as datetime.now(UTC) has one.")
    found = read_lineage(lake, uri=name, **request)
    return found if since is None else _made_since(found, since)


def _made_since(found: Lineage, moment: datetime) -> Lineage:
    """Return lineage without what was made from its first node before a moment."""
    start = found.nodes[0]
    edges = [
        edge for edge in found.edges if edge.source is not start or edge.created_at is None or edge.created_at >= moment
    ]
    reached: dict[LineageNode, None] = {start: None}
    for node in (queue := [start]):
        fresh = [edge.target for edge in edges if edge.source is node and edge.target not in reached]
        reached.update(dict.fromkeys(fresh))
        queue += fresh
    kept = tuple(edge for edge in edges if edge.source in reached)
    return replace(found, nodes=tuple(node for node in found.nodes if node in reached), edges=kept)
