"""Refresh: a materialized view is made what its query says now, of the rows that came in or of all, in one commit.

    tables at pinned versions → decision → parts (each kept when it is made) → one commit, which tells the versions

Refreshes at the same time are put in order by that commit: it applies to the version that was looked at, or not at all.
Who was overtaken looks again, and mostly finds that there is nothing left to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lance import LanceOperation
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
)

from tiltyard.model.table_history import read_transaction
from tiltyard.model.view_definitions import MADE, Made, ViewDefinition, ViewKind, sources_of
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.jobs import check_client_code_allowed, job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.sql.isolated_session import own_session
from tiltyard.pipeline.table_location import Connection
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.views.history import keeps_rows
from tiltyard.pipeline.views.planning import Asked, Plan, decide, parts_of
from tiltyard.pipeline.views.query_analysis import check_reads_only, needed_columns, planned, why_not_by_rows
from tiltyard.pipeline.views.row_writer import Maker, cut, show_nothing, throw_away
from tiltyard.pipeline.views.sources import Source, pinned, reopened
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, FragmentTarget, fragment_files_exist, parse_fragments
from tiltyard.pipeline.writing.tasks import WriteResult

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession

_PLAN = "plan"
_TRIES = 20
"""How often a refresh begins again because others wrote to the view, and a commit because it was overtaken."""


@job("refresh")
def refresh(
    run: Run,
    where: Connection,
    spark: SparkSession,
    table: Annotated[str, "The view."],
    *,
    source_version: Annotated[int | None, "Read this version of the table that the view is made of."] = None,
    rows_per_fragment: Annotated[int, "How many rows a file of the view holds at most."] = ROWS_PER_FILE,
    output_limit: Annotated[int | None, "Let the view have so many rows at most; for chunkers."] = None,
    full: Annotated[bool, "Make all rows anew, whatever has changed."] = False,
    sources: Annotated[dict[str, str] | None, "Where the tables lie that may be read: the server says so."] = None,
    definition: Annotated[str | None, "The digest of the view's definition: the server says so."] = None,
) -> Mapping[str, object]:
    """Bring a materialized view up to date: by the rows that came in where that is enough, else anew.

    \b
    Example:
      tiltyard job refresh --uri http://127.0.0.1:2333 chunks
    """
    if rows_per_fragment < 1 or (output_limit is not None and output_limit < 0):
        raise InvalidInputError("A fragment holds at least one row, and a view no fewer than none.")
    strict = JobTable(catalog_client.table(where, table))
    found = ViewDefinition.of(strict.latest().schema.metadata)
    if found is None:
        raise InvalidInputError(f"The table '{table}' is no materialized view.")
    if definition is not None and found.digest != definition:
        raise InvalidTableStateError("The definition of the view was changed since this refresh was asked for.")
    if output_limit is not None and found.kind is not ViewKind.CHUNKER:
        raise InvalidInputError(f"Only a chunker's view has an output limit, and this one is a {found.kind}.")
    if found.kind is not ViewKind.QUERY:
        check_client_code_allowed()
    asked = Asked(full, output_limit)
    work = _Refresh(run, where, own_session(spark), strict, found, asked, rows_per_fragment)
    try:
        return work.run_rounds(source_version, sources)
    except RefusedError as refusal:
        work.give_up()
        raise InvalidInputError(str(refusal)) from refusal


@dataclass(frozen=True, slots=True)
class _Refresh:
    """A refresh at work."""

    run: Run
    where: Connection
    spark: SparkSession
    strict: JobTable
    definition: ViewDefinition
    asked: Asked
    rows_per_fragment: int

    def run_rounds(self, version: int | None, allowed: Mapping[str, str] | None) -> Mapping[str, object]:
        """Plan, make and commit, again if others wrote to the view meanwhile. Raises ConcurrentModificationError."""
        for _ in range(_TRIES):
            plan = self._resumed()
            sources = reopened(self.where, plan.sources) if plan else None
            if plan is None or sources is None:  # a version that was pinned may be gone since
                self.give_up()
                names = sources_of(self.definition.query) if allowed is None else tuple(allowed)
                sources = pinned(self.where, names, allowed, version)
                plan = self._planned(sources)
            self.run.progress(mode=_mode(plan), reason=plan.reason)
            if plan.incremental and not plan.parts:
                return self._figures(plan, plan.base, 0, 0)
            try:
                return self._carried_out(plan, sources)
            except CommitConflictError:
                self.give_up()
        raise ConcurrentModificationError("Others write to the view all the time: refresh it when they do not.")

    def give_up(self) -> None:
        """Leave nothing of the plan at hand behind: its files are deleted, and the next driver plans anew."""
        if (plan := self._resumed()) is None:
            return
        self.run.save_checkpoint(
            _PLAN, json.dumps({"given_up": plan.attempt})
        )  # fails for a driver that another one replaced
        target = self._target(self.strict.latest())
        for key in self._keys(plan):
            if key in self.run.checkpoints():
                throw_away(target, WriteResult.from_json(self.run.checkpoints()[key]).fragments)

    def _resumed(self) -> Plan | None:
        """The plan that this driver, or one before it, was at."""
        text = self.run.checkpoints().get(_PLAN)
        return None if text is None or "given_up" in json.loads(text) else Plan.from_kept(text)

    def _planned(self, sources: Mapping[str, Source]) -> Plan:
        """A new plan, kept. Raises InvalidInputError for a query that cannot be."""
        view, query = self.strict.latest(), self.definition.query
        check_reads_only(self.spark, query, sources)
        show_nothing(self.spark, sources)
        frame = planned(self.spark, query)
        why_not = why_not_by_rows(frame, query)
        if self.definition.kind is ViewKind.UDTF:
            why_not = "a UDTF sees all rows at once"
        decision = decide(view, self.definition, sources, self.asked, why_not)
        plan = Plan(
            1 + json.loads(self.run.checkpoints().get(_PLAN, "{}")).get("given_up", 0),
            int(view.version),
            decision.incremental,
            decision.reason,
            {name: source.origin for name, source in sources.items()},
            [] if decision.nothing else parts_of(sources, decision, by_rows=not why_not),
            sorted(needed_columns(frame)),
        )
        self.run.save_checkpoint(_PLAN, plan.kept())
        return plan

    def _carried_out(self, plan: Plan, sources: Mapping[str, Source]) -> Mapping[str, object]:
        """Make the parts that are not there yet, and commit. Raises CommitConflictError, RefusedError, RunCanceledError."""
        if (version := self.strict.done(self.run, plan.base)) is not None:
            return self._figures(plan, version, 0, 0)
        view = self.strict.latest()
        target = self._target(view)
        most = None if self.asked.limit is None else self.asked.limit - (view.count_rows() if plan.incremental else 0)
        written, all_made = self._made(plan, sources, target, most)
        fragments = [fragment for one in written for fragment in one.fragments]
        rows, left = sum(one.rows for one in written), tuple[str, ...]()
        if most is not None and rows > most:
            found = cut(self.run, target, fragments, most)
            fragments, left, rows, all_made = list(found.taken), found.left, most, False
        made = Made(plan.sources, self.definition.digest, cut=not all_made)
        version = self._committed(plan, fragments, made)
        throw_away(target, left)
        return self._figures(plan, version, rows, len(fragments))

    def _kept(self, key: str, target: FragmentTarget) -> WriteResult | None:
        """What an earlier driver made of a part, if its files are still there."""
        if (text := self.run.checkpoints().get(key)) is None:
            return None
        found = WriteResult.from_json(text)
        return found if fragment_files_exist(target.location, found.fragments) else None

    def _made(
        self, plan: Plan, sources: Mapping[str, Source], target: FragmentTarget, most: int | None
    ) -> tuple[list[WriteResult], bool]:
        """What was made of the parts, now or by earlier drivers; whether of all, for enough rows are enough."""
        maker = Maker(self.run, self.spark, self.definition, sources, target, frozenset(plan.needed))
        done: list[WriteResult] = []
        if len(plan.parts) > 1:  # of one part, Spark's tasks say how far it is
            self.run.progress(parts=0, parts_total=len(plan.parts))
        for number, key in enumerate(self._keys(plan)):
            if most is not None and sum(one.rows for one in done) >= most:
                return done, False
            if (earlier := self._kept(key, target)) is not None:
                done.append(earlier)
            else:
                done.append(maker.make(plan.parts[number], number))
                self.run.save_checkpoint(key, done[-1].to_json())
            self.run.progress(
                rows=sum(one.rows for one in done),
                fragments=sum(len(one.fragments) for one in done),
                bytes=sum(one.size for one in done),
                parts=len(done),
                parts_total=len(plan.parts),
            )
        return done, True

    def _committed(self, plan: Plan, fragments: Sequence[str], made: Made) -> int:
        """The one commit; the version. Raises CommitConflictError if others wrote rows to the view since the plan."""
        for _ in range(_TRIES):
            if (version := self.strict.done(self.run, plan.base)) is not None:
                return version
            newest = self.strict.latest()
            self._check_same(plan, newest)
            self.run.check()
            try:
                told = {MADE: made.text()}
                return self.strict.commit(newest, _operation(plan, newest, fragments), self.run, told=told)
            except CommitConflictError:
                continue
        raise ConcurrentModificationError("The view's indexes and files are changed all the time: refresh it again.")

    def _check_same(self, plan: Plan, newest: lance.LanceDataset) -> None:
        """Raise CommitConflictError unless the view's rows are those that the plan has seen."""
        for version in range(plan.base + 1, int(newest.version) + 1):
            if not keeps_rows(newest, version, read_transaction(newest, version)):
                raise CommitConflictError(f"Version {version} of the view is another's.")

    def _target(self, view: lance.LanceDataset) -> FragmentTarget:
        location = self.strict.table.location()
        return FragmentTarget(
            location,
            view.schema,
            fresh=False,
            storage_version=view.data_storage_version,
            rows_per_file=self.rows_per_fragment,
        )

    def _keys(self, plan: Plan) -> list[str]:
        """Under what each part is kept."""
        return [f"part-{plan.attempt}-{number}" for number in range(len(plan.parts))]

    def _figures(self, plan: Plan, version: int, rows: int, fragments: int) -> Mapping[str, object]:
        sources = json.dumps({name: one.version for name, one in plan.sources.items()})
        told = {"mode": _mode(plan), "reason": plan.reason, "sources": sources, "version": version}
        return {**told, "rows": rows, "fragments": fragments}


def _mode(plan: Plan) -> str:
    if not plan.incremental:
        return "full"
    return "incremental" if plan.parts else "unchanged"


def _operation(plan: Plan, view: lance.LanceDataset, fragments: Sequence[str]) -> LanceOperation.BaseOperation:
    """New rows behind those that are there, or in their place; the view's indexes stay, and lack the new rows."""
    old = [] if plan.incremental else [one.fragment_id for one in view.get_fragments()]
    if not old:
        return LanceOperation.Append(parse_fragments(fragments))
    return LanceOperation.Update(
        removed_fragment_ids=old,
        updated_fragments=[],
        new_fragments=parse_fragments(fragments),
        fields_modified=[],
        update_mode="rewrite_rows",
    )
