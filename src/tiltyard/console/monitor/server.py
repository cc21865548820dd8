"""The page of the server: its figures now and over the last hours, as /metrics counts them, for who may read those."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, PermissionDeniedError
from msgspec.structs import replace

from tiltyard.access.authorization import is_administrator
from tiltyard.api.metrics import LoadUnit, is_alive, load_unit
from tiltyard.api.metrics_history import INTERVAL_SECONDS, SAMPLES, operation_figures, read_memory
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link
from tiltyard.worker.process_record import INTERVAL_SECONDS as HEARTBEAT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tiltyard.api.metrics_history import Sample
    from tiltyard.api.request_log import ProcessCounts
    from tiltyard.console.page_calls import PageCalls
    from tiltyard.runtime.machinery import MachineFigures

MAX_OPERATIONS = 12
"""Operations that are listed, those with the most requests."""
HOURS = int(SAMPLES * INTERVAL_SECONDS / 3600)
GARBAGE_JOB = "collect_garbage"
DIGITS = 4


def check_reader(page: PageRequest) -> None:
    """Raise PermissionDeniedError unless the reader may read /metrics: an administrator, or from this machine."""
    if not (page.calls.is_local or is_administrator(page.calls.ctx)):
        raise PermissionDeniedError("The server's figures are for administrators, and for readers on its own machine.")


def show(page: PageRequest) -> Page:
    """Show the page, or the part of it that changes. Raises PermissionDeniedError."""
    check_reader(page)
    counts, history = page.calls.read_counts(), page.calls.history
    processes = page.calls.read_processes(counts)
    values = {
        "current": history.current(counts),
        "charts": make_charts(history.samples),
        "hours": HOURS,
        "interval": int(INTERVAL_SECONDS),
        "processes": [_process(process) for process in processes if is_alive(process.pid)],
        "machinery": _machinery(processes),
        "members": _members(page, {process.pid for process in processes}),
        "heartbeat_seconds": int(HEARTBEAT_SECONDS),
        "operations": operation_figures(processes)[:MAX_OPERATIONS],
        "work": sorted(page.services.store.transaction_counts().items()),
        "worker_threads": page.services.settings.jobs,
        "is_administrator": is_administrator(page.calls.ctx),
    }
    if page.is_fragment:
        return Page("server_figures.html", values, fragment=True)
    return Page("server.html", values | {"garbage": _last_collection(page.calls)})


def _process(process: ProcessCounts) -> dict[str, Any]:
    loads = [(name, load, load_unit(name) is LoadUnit.BYTES) for name, load in sorted(process.loads.items()) if load]
    return {"pid": process.pid, "running": process.running, "memory": read_memory(process.pid), "loads": loads}


def _machinery(processes: Iterable[ProcessCounts]) -> list[MachineFigures]:
    """Return what the processes of this server have of each cache, batcher, pool and kind of child, in all."""
    totals: dict[tuple[str, str], MachineFigures] = {}
    for process in processes:
        if is_alive(process.pid):
            for machine in process.machinery:
                total = totals.setdefault((machine.kind, machine.name), replace(machine, pieces=0, figures={}))
                total.pieces += machine.pieces
                for figure, number in machine.figures.items():
                    total.figures[figure] = total.figures.get(figure, 0) + number
    return [totals[key] for key in sorted(totals)]


def _members(page: PageRequest, own: set[int]) -> list[dict[str, Any]]:
    """Return the servers and workers of the catalog on all machines; `own` are the processes of this server."""
    host, now = socket.gethostname(), page.services.clock()
    return [
        {
            "process": process,
            "is_own": process.host == host and process.pid in own,
            "is_alive": process.is_alive(now),
        }
        for process in page.services.store.list_processes()
    ]


def make_charts(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return what is drawn over time: requests a second, how long they took, what runs and waits, and memory."""
    times = [int(sample.at) for sample in samples]

    def chart(title: str, unit: str, **series: Callable[[Sample], float | None]) -> dict[str, Any]:
        values = {name: [_rounded(read(sample)) for sample in samples] for name, read in series.items()}
        lines = [{"label": name, "values": numbers} for name, numbers in values.items()]
        return {"title": title, "unit": unit, "x": times, "series": lines, "peak": _peak(values.values())}

    return [
        chart("Requests a second", "/s", requests=lambda each: each.requests, errors=lambda each: each.errors),
        chart(
            "Time to the first byte",
            "ms",
            p50=lambda each: None if each.p50 is None else each.p50 * 1000,
            p99=lambda each: None if each.p99 is None else each.p99 * 1000,
        ),
        chart("Requests", "", running=lambda each: each.running, waiting=lambda each: each.waiting),
        chart("Memory", "bytes", memory=lambda each: each.memory),
    ]


def _rounded(value: float | None) -> float | None:
    if value is None or isinstance(value, int) or value == 0:
        return value
    return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))


def _peak(series: Iterable[Sequence[float | None]]) -> float | None:
    return max((value for values in series for value in values if value is not None), default=None)


def _last_collection(calls: PageCalls) -> Mapping[str, Any] | None:
    """Return the last job that collected or counted garbage, with its figures; None without one, or where hidden."""
    listed = calls.attempt("ListAllJobs", job_type=GARBAGE_JOB, limit=1)
    if listed is None or not listed.jobs:
        return None
    job = listed.jobs[0]
    described = calls.attempt("DescribeTransaction", id=[job.job_id])
    properties = dict(described.properties or {}) if described is not None else {}
    return {"job": job, "figures": {name: int(text) for name, text in properties.items() if text.isdecimal()}}


def act(page: PageRequest) -> Redirect:
    """Count the garbage of the catalog, or collect it, in a job. Raises PermissionDeniedError, InvalidInputError."""
    action = page.text("action")
    if action not in ("count", "collect"):
        raise InvalidInputError(f"Garbage is counted or collected, not '{action[:40]}'.")
    queued = page.calls.call("CollectGarbage", dry_run=action == "count")
    return Redirect(link("job", id=queued.transaction_id))
