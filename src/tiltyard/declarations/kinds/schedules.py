"""Schedules: when jobs are submitted by themselves, as the principal who made the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.declarations.kind import Kind, Target, id_of, normalize_id
from tiltyard.model.ids import Id
from tiltyard.model.schedules import format_duration, parse_duration
from tiltyard.model.text.typed_ids import format_id
from tiltyard.model.text.yaml_text import ContentError

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

_STOPPED = "Its table or namespace is dropped."
_DEFAULT_ZONE = "UTC"
_DEFAULT_DEBOUNCE = "5s"
_TABLE = "table"


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a job runs: by `cron` in a `zone`, `every` so long, or after commits of the tables `on_commit`."""

    job: str
    table: str | None = None
    arguments: dict[str, Any] = {}
    spark: dict[str, str] = {}
    cron: str | None = None
    zone: str | None = None
    every: str | None = None
    on_commit: list[str] | None = None
    debounce: str | None = None
    catch_up: bool = False
    paused: bool = False


class Schedules(Kind[Schedule]):
    """Schedules. Whoever applies a new one is the principal whom its jobs run as."""

    section = "schedules"
    noun = "schedule"
    declaration = Schedule
    is_deleted_first = True
    replaced_by = frozenset({"job", "table", "arguments", "spark"})

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, Schedule]:
        """Return the id and the schedule, with the server's defaults. Raises ContentError."""
        name, each = super().parse(name, content, path)
        if each.table is not None and _TABLE in each.arguments:
            raise ContentError(
                (*path, "arguments", _TABLE), "the table stands beside the arguments: leave it out here."
            )
        tables = each.on_commit and [normalize_id(table, (*path, "on_commit")) for table in each.on_commit]
        debounce = each.debounce or (_DEFAULT_DEBOUNCE if tables else None)
        return name, msgspec.structs.replace(
            each,
            table=each.table and normalize_id(each.table, (*path, "table")),
            on_commit=tables and sorted(tables),
            zone=each.zone or (_DEFAULT_ZONE if each.cron else None),
            every=each.every and format_duration(_seconds(each.every, (*path, "every"))),
            debounce=debounce and format_duration(_seconds(debounce, (*path, "debounce"))),
        )

    def read(self, catalog: CatalogContent) -> dict[str, Schedule]:
        """Return the schedules that the caller may describe."""
        found = {}
        for entry in catalog.entries(self.section, "ListSchedules", "schedules"):
            name = format_id(entry["id"])
            if entry["state"] == "Stopped":
                catalog.leave_out(self.section, name, _STOPPED)
                continue
            found[name] = _read_schedule(entry)
        return dict(sorted(found.items()))

    def differences(self, before: Schedule, after: Schedule) -> list[Difference]:
        """Return what differs; nothing that others need is lost by any of it."""
        return [replace(each, needs_word=False) for each in super().differences(before, after)]

    def create(self, target: Target, name: str, declared: Schedule) -> None:
        """Create a schedule, as the caller."""
        target.calls.call(
            "CreateSchedule",
            id=id_of(name),
            job=declared.job,
            table=None if declared.table is None else id_of(declared.table),
            arguments=_arguments(declared) or None,
            spark=declared.spark or None,
            paused=declared.paused or None,
            **_timing_fields(declared),
        )

    def alter(self, target: Target, name: str, after: Schedule, differences: Sequence[Difference]) -> bool:
        """Replace when a schedule runs."""
        fields = _timing_fields(after) if any(each.path[0] != "paused" for each in differences) else {}
        target.calls.call("AlterSchedule", id=id_of(name), paused=after.paused, **fields)
        return True

    def delete(self, target: Target, name: str, declared: Schedule) -> None:
        """Delete a schedule; jobs that it has queued stay."""
        target.calls.call("DropSchedule", id=id_of(name))


def _arguments(schedule: Schedule) -> dict[str, Any]:
    """Return the arguments of the job, which have its table by the name that all jobs have for it."""
    table = {} if schedule.table is None else {_TABLE: str(Id(id_of(schedule.table)))}
    return {**schedule.arguments, **table}


def _read_schedule(entry: Mapping[str, Any]) -> Schedule:
    seconds, debounce = entry.get("every_seconds"), entry.get("debounce_seconds")
    tables = entry.get("on_commit")
    return Schedule(
        entry["job"],
        format_id(entry["table"]) if entry.get("table") else None,
        {key: value for key, value in sorted(entry["arguments"].items()) if key != _TABLE or not entry.get("table")},
        entry.get("spark") or {},
        entry.get("cron"),
        entry.get("zone"),
        None if seconds is None else format_duration(seconds),
        sorted(map(format_id, tables)) if tables else None,
        None if debounce is None else format_duration(debounce),
        bool(entry.get("catch_up")),
        bool(entry.get("paused")),
    )


def _timing_fields(schedule: Schedule) -> dict[str, Any]:
    return {
        "cron": schedule.cron,
        "zone": schedule.zone,
        "every_seconds": None if schedule.every is None else parse_duration(schedule.every),
        "on_commit": None if schedule.on_commit is None else [id_of(each) for each in schedule.on_commit],
        "debounce_seconds": None if schedule.debounce is None else parse_duration(schedule.debounce),
        "catch_up": schedule.catch_up or None,
    }


def _seconds(text: str, path: Sequence[str | int]) -> float:
    try:
        return parse_duration(text)
    except InvalidInputError as error:
        raise ContentError(path, str(error)) from error
