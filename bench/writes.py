"""The rows of the data plane that write: single rows by many callers, and one large upload."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from statistics import median

import pyarrow as pa

from bench import data
from bench.environment import Environment
from bench.load import Measured
from bench.resting import rest
from bench.results import Result, at_least, at_most
from bench.rounds import Side
from bench.servers import Server
from bench.wire import ARROW, call, call_json, of_table, request, upload

UPLOAD_BYTES = 1_000_000_000
PREPARED = 1_000

_numbers = count()


def insert(environment: Environment) -> list[Result]:
    """One row at a time into one table by 32 callers; each round has a new table."""
    prepared = [data.one_row(number) for number in range(PREPARED)]
    ours, theirs = (Side(placed.server) for placed in environment.writing)
    kept = {"Tiltyard": "", "RestAdapter": ""}
    for _ in range(environment.rounds):
        for side in (ours, theirs):
            kept[side.server.name] += _insert_round(environment, side, prepared)
    what = "insert of 1 row, 32 connections, one table"
    sides = ours.words() + kept["Tiltyard"], f"RestAdapter: {theirs.words()}{kept['RestAdapter']}"
    later = ours.p99 / theirs.p99
    return [
        at_least("insert", what, sides, ours.rate / theirs.rate, 20),
        at_most("insert", f"{what}: p99", sides, later, (0.1, "x")),
    ]


def _insert_round(environment: Environment, side: Side, prepared: list[bytes]) -> str:
    """One round; in words, what of the acknowledged rows is missing. Raises RuntimeError if Tiltyard lost one."""
    name, address = data.in_namespace(f"inserts-{next(_numbers)}"), side.server.address
    call(address, "POST", of_table(name, "create"), prepared[0], ARROW)
    requests = [request("POST", of_table(name, "insert"), body, ARROW) for body in prepared]
    measured: Measured = side.take(lambda: (requests[number % PREPARED] for number in count()), environment.load())
    stored_rows = call_json(address, of_table(name, "count_rows")) - 1
    if stored_rows >= measured.succeeded:
        return ""
    text = f"; of {measured.succeeded} acknowledged rows {measured.succeeded - stored_rows} lost"
    if side.server.name == "Tiltyard":
        raise RuntimeError(text)
    return text


def one_upload(environment: Environment) -> list[Result]:
    """A new table from 1 GB, against `lance.write_dataset` of the same file in one process."""
    file = data.stream_file(environment.work, UPLOAD_BYTES)
    server = environment.writing[0].server
    ours, read, mapped, grown = [], [], [], []
    for _ in range(1 + environment.rounds):  # the first of each warms up: it is slower by far in all
        read.append(_embedded_write(environment, file, mapped=False))
        mapped.append(_embedded_write(environment, file, mapped=True))
        seconds, memory = _uploaded(server, file)
        ours.append(seconds)
        grown.append(memory)
    size = file.stat().st_size / 1e6
    speed, reading, mapping = (size / median(seconds[1:]) for seconds in (ours, read, mapped))
    what, by = f"upload of {size:,.0f} MB", "lance.write_dataset of the same file in one process"
    words, memory_words = f"{speed:,.0f} MB/s", f"{min(grown):,.0f} to {max(grown):,.0f} MB"
    return [
        at_least("upload", f"{what}; file read", (words, f"{by}: {reading:,.0f} MB/s"), speed / reading, 0.7),
        at_least("upload", f"{what}; file mapped", (words, f"{by}: {mapping:,.0f} MB/s"), speed / mapping, 0.7),
        at_most("upload", f"{what}: memory goes up by", (memory_words, "—"), max(grown), (300, "MB")),
    ]


def _uploaded(server: Server, file: Path) -> tuple[float, float]:
    """Seconds for one upload, and by how many MB the server's memory rose. Raises RuntimeError if rows are missing."""
    name = data.in_namespace(f"upload-{next(_numbers)}")
    rest()
    before = server.memory()
    server.reset_peak()
    seconds = upload(server.address, of_table(name, "create"), file)
    grown = (server.peak_memory() - before) / 1e6
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as sent:
        rows = sum(batch.num_rows for batch in sent)
    if (stored_rows := call_json(server.address, of_table(name, "count_rows"))) != rows:
        raise RuntimeError(f"Of {rows} rows sent, {stored_rows} are there.")
    call(server.address, "POST", of_table(name, "drop"))
    return seconds, grown


def _embedded_write(environment: Environment, file: Path, *, mapped: bool) -> float:
    rest()
    target = str(environment.roots / "embedded-write")
    seconds: float = environment.embedded.ask(do="write", source=str(file), target=target, mapped=mapped)
    return seconds
