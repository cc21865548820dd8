"""Schedules of a lake: jobs that the catalog's servers and workers submit by themselves.

nightly = lake.schedule("nightly", "optimize", {"table": "films"}, cron="0 3 * * *", zone="Europe/Berlin")
nightly.pause()
nightly.run_now().wait()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, Self

from lance_namespace.errors import InvalidInputError

from tiltyard.lake.errors import translate
from tiltyard.lake.runs import QueuedRun, Run
from tiltyard.model.ids import DEFAULT_DELIMITER
from tiltyard.model.schedules import describe_timing, parse_duration
from tiltyard.model.text.typed_ids import format_id, parse_typed_id
from tiltyard.pipeline.jobs import find_job

if TYPE_CHECKING:
    from tiltyard.lake.session import LakeSession

Duration = float | str | timedelta
"""Seconds, a text as `15m`, or a timedelta."""


class Schedule:
    """A job that is submitted by itself; its facts are those of when it was read, or last changed here.

    `state` is Active, Paused, Refused (the last time: `refused` says why) or Stopped (what it is about is dropped).
    """

    def __init__(self, lake: LakeSession, facts: Mapping[str, Any]) -> None:
        self._lake = lake
        self._facts = facts

    @property
    def name(self) -> str:
        """Return its id: `nightly`, `shop.nightly`."""
        return format_id(tuple(self._facts["id"]))

    @property
    def job(self) -> str:
        """Return the name of its job."""
        return str(self._facts["job"])

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of its job."""
        return dict(self._facts["arguments"])

    @property
    def state(self) -> str:
        """Return Active, Paused, Refused or Stopped."""
        return str(self._facts["state"])

    @property
    def refused(self) -> str | None:
        """Return why nothing was submitted the last time; None if it was."""
        return self._facts.get("refused")

    @property
    def next_run(self) -> datetime | None:
        """Return when it is next due, in UTC; None while it is paused or waits for a commit."""
        return _moment(self._facts.get("next_run_millis"))

    @property
    def last_run(self) -> datetime | None:
        """Return for which time its job was last submitted, in UTC."""
        return _moment(self._facts.get("last_run_millis"))

    @property
    def last_status(self) -> str | None:
        """Return the status of its last job: Queued, Running, Succeeded, Failed or Canceled."""
        return self._facts.get("last_status")

    def runs(self, limit: int = 100) -> list[Run]:
        """Return its jobs, newest first, among the last `limit` of their kind."""
        return [run for run in self._lake.jobs(name=self.job, limit=limit) if self._is_mine(run)]

    def _is_mine(self, run: Run) -> bool:
        return run.figures.get("schedule") == "$".join(self._facts["id"])

    def refresh(self) -> Self:
        """Read its facts again; return it. Raises TableNotFoundError once it is dropped."""
        return self._take(self._call("DescribeSchedule"))

    def pause(self) -> Self:
        """Let its job be submitted no more until it is resumed; return it."""
        return self._take(self._call("AlterSchedule", paused=True))

    def resume(self) -> Self:
        """Let its job be submitted again; return it."""
        return self._take(self._call("AlterSchedule", paused=False))

    def alter(
        self,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        on_commit: Sequence[str] | None = None,
        zone: str | None = None,
        catch_up: bool | None = None,
        debounce: Duration | None = None,
    ) -> Self:
        """Replace when it is due, as `Lake.schedule` takes it; return it. Raises InvalidInputError."""
        tables = None if on_commit is None else [_path(each, "on_commit") for each in on_commit]
        when = {"cron": cron, "every": every, "zone": zone, "catch_up": catch_up, "debounce": debounce}
        return self._take(self._call("AlterSchedule", **_fields(tables, when)))

    def run_now(self, *, wait: bool = False) -> Run:
        """Have its job submitted now, as its definer; return the run, which has ended with `wait`.

        Raises ConcurrentModificationError while its last job has not ended.
        """
        job = self._call("RunSchedule")["job"]
        run = QueuedRun(self._lake.calls, job["name"], job["id"], job)
        return run.wait() if wait else run

    def drop(self) -> None:
        """Drop it; the jobs that it has submitted stay."""
        self._call("DropSchedule")

    def _call(self, operation: str, **fields: Any) -> Mapping[str, Any]:
        with translate():
            response: Mapping[str, Any] = self._lake.calls.call(operation, id=list(self._facts["id"]), **fields)
        return response

    def _take(self, response: Mapping[str, Any]) -> Self:
        self._facts = response["schedule"]
        return self

    def __repr__(self) -> str:
        return f"<schedule {self.name}: {self.job}, {describe_timing(self._facts)}, {self.state}>"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"


def create_schedule(
    lake: LakeSession,
    path: tuple[str, ...],
    job: str,
    arguments: Mapping[str, Any],
    *,
    on_commit: Sequence[Sequence[str]],
    paused: bool,
    **when: Any,
) -> Schedule:
    """Create a schedule. Raises as `Lake.schedule` does."""
    with translate():
        registered = find_job(job)
        checked = registered.validate(_with_id(arguments))
        fields: dict[str, Any] = {
            "job": job,
            "arguments": checked,
            "table": registered.table(checked) or None,
            "paused": paused,
        }
        made = lake.calls.call("CreateSchedule", id=list(path), **fields, **_fields(on_commit or None, when))
    return Schedule(lake, made["schedule"])


def _with_id(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job's arguments with the id of its table as jobs take it. Raises InvalidInputError."""
    name = arguments.get("table")
    if not isinstance(name, str):
        return arguments
    path = _path(name, "table")
    if any(DEFAULT_DELIMITER in each for each in path):
        raise InvalidInputError(f"table is {name}: jobs take no names with {DEFAULT_DELIMITER} in them.")
    return {**arguments, "table": DEFAULT_DELIMITER.join(path)}


def find_schedule(lake: LakeSession, path: tuple[str, ...]) -> Schedule:
    """Return a schedule. Raises TableNotFoundError."""
    with translate():
        return Schedule(lake, lake.calls.call("DescribeSchedule", id=list(path))["schedule"])


def list_schedules(lake: LakeSession) -> list[Schedule]:
    """Return all schedules that the caller sees."""
    return [Schedule(lake, facts) for facts in lake.calls.entries("ListSchedules", "schedules")]


def _fields(on_commit: Sequence[Sequence[str]] | None, when: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that say when a job is due. Raises InvalidInputError."""
    return {
        "cron": when["cron"],
        "zone": when["zone"],
        "every_seconds": to_seconds(when["every"]),
        "on_commit": None if on_commit is None else [list(path) for path in on_commit],
        "debounce_seconds": to_seconds(when["debounce"]),
        "catch_up": when["catch_up"],
    }


def _path(name: str, argument: str) -> tuple[str, ...]:
    try:
        return parse_typed_id(name)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"{argument}: {error}") from error


def to_seconds(duration: Duration | None) -> float | None:
    """Return a duration in seconds. Raises InvalidInputError for a text that is none."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return parse_duration(duration) if isinstance(duration, str) else duration


def _moment(millis: int | None) -> datetime | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC)
