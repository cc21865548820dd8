"""List the modules that one call passes: a DescribeTable, an insert, a vector query (in the server), an ingest (in the
driver). The house's goals count them, and a reader who follows a call opens them.

python scripts/trace_calls.py [--counts]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

import tiltyard
from tiltyard.cli import main as main_command

WARM_UP_CALLS = 20
"""Calls of each kind before the one that counts: what is imported, opened and cached once is not a call's way."""
WAIT_SECONDS = 60.0
PROMPT_SECONDS = 0.001
"""Between two looks for what comes at once: what is fresh for 50 ms must still be so when the call comes."""
BACKGROUND_SECONDS = 1.0
"""What follows a call in the background is none of the next one's."""
END_SECONDS = 0.02
"""The server's own end of a call comes after the client has its response."""
STREAM = "application/vnd.apache.arrow.stream"


class Trace:
    """The modules of Tiltyard whose functions are called, in the order of their first call."""

    def __init__(self) -> None:
        self.modules: dict[str, list[str]] = {}
        self.active = False

    def install(self) -> None:
        """See the calls of this thread and of those that start from now on."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if self.active and event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:  # no bodies of modules and classes
            name = str(frame.f_globals.get("__name__"))
            if name.startswith("tiltyard."):
                self.modules.setdefault(name, []).append(frame.f_code.co_name)


class TracedServer:
    """`tiltyard serve` on a new root in a process of its own, which traces itself between two signals."""

    def __init__(self, folder: Path) -> None:
        self._result = folder / "trace.json"
        log = folder / "log"
        with log.open("wb") as sink:
            self._process = subprocess.Popen(  # noqa: S603  # ourselves
                [sys.executable, __file__, "--serve", str(folder)], stdout=sink, stderr=sink, env=dict(os.environ)
            )
        self.url = _wait(lambda: re.search(r"on (https?://\S+)", log.read_text()), log)[1]

    def trace(self, call: Callable[[], object], before: Callable[[], object]) -> dict[str, list[str]]:
        """Return the modules that a call passes once it is warm, each with the functions that were called.

        `before` is a call that leaves nothing to do: after a pause, the first one has things looked up again.
        """
        for _ in range(WARM_UP_CALLS):
            call()
        time.sleep(BACKGROUND_SECONDS)
        before()
        self._signal(signal.SIGUSR1)
        call()
        time.sleep(END_SECONDS)
        self._signal(signal.SIGUSR2)
        return dict(json.loads(self._result.read_text()))

    def _signal(self, number: signal.Signals) -> None:
        self._result.unlink(missing_ok=True)
        self._process.send_signal(number)
        _wait(self._result.exists, self._result, PROMPT_SECONDS)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(WAIT_SECONDS)


def serve(folder: Path) -> None:
    """Run the server with a trace that SIGUSR1 begins and SIGUSR2 writes to `trace.json`."""
    trace = Trace()

    def answer(number: int, _: object) -> None:
        trace.active = number == signal.SIGUSR1
        if trace.active:
            trace.modules.clear()
        making = folder / "trace.making"
        making.write_text(json.dumps(trace.modules))
        making.rename(folder / "trace.json")

    trace.install()
    signal.signal(signal.SIGUSR1, answer)
    signal.signal(signal.SIGUSR2, answer)
    main_command(["serve", "--root", str(folder / "root"), "--port", "0", "--workers", "1", "--jobs", "0"])


def post(connection: HTTPConnection, path: str, body: Mapping[str, Any] | bytes) -> bytes:
    """Return the body of an answer; the connection stays open, as clients keep theirs. Raises RuntimeError."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": STREAM if isinstance(body, bytes) else "application/json"}
    connection.request("POST", path, data, headers)
    answer = connection.getresponse()
    received = bytes(answer.read())
    if answer.status != HTTPStatus.OK:
        raise RuntimeError(received.decode(errors="replace"))
    return received


def rows(count: int, dimension: int = 8) -> bytes:
    """Return an Arrow stream of ids and vectors."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(count * dimension), pa.float32()), dimension)
    table = pa.table({"id": pa.array(range(count), pa.int64()), "vector": vectors})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def trace_server(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return the modules of each call of a server."""
    server = TracedServer(folder)
    try:
        connection = HTTPConnection(urlsplit(server.url).netloc)
        post(connection, "/v1/table/docs/create", rows(256))
        query = {"vector": {"single_vector": [0.0] * 8}, "k": 10, "columns": {"column_names": ["id"]}}

        def call(operation: str, body: Mapping[str, Any] | bytes) -> Callable[[], bytes]:
            return lambda: post(connection, f"/v1/table/docs/{operation}", body)

        describe = call("describe", {})
        return {
            "DescribeTable": server.trace(describe, describe),
            "insert": server.trace(call("insert?mode=append", rows(1)), describe),
            "vector query": server.trace(call("query", query), describe),
        }
    finally:
        server.close()


def trace_ingest(folder: Path) -> dict[str, list[str]]:
    """Return the modules that an ingest of a CSV file passes in the driver, once one has run."""
    source = folder / "rows.csv"
    source.write_text("id,text\n1,a\n2,b\n")
    trace = Trace()
    docs = tiltyard.connect(str(folder / "lake")).table("docs")
    docs.ingest(str(source))
    trace.install()
    trace.active = True
    docs.ingest(str(source), mode="append")
    trace.active = False
    sys.setprofile(None)
    return trace.modules


def _wait(look: Callable[[], Any], log: Path, pause: float = 0.02) -> Any:
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(pause)
    raise RuntimeError(log.read_text(errors="replace") if log.exists() else f"{log.name} was not written.")


def main() -> None:
    """Trace the calls, and print their modules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", action="store_true", help="numbers alone, without the modules")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = trace_server(Path(folder)) | {"ingest": trace_ingest(Path(folder))}
    for call, modules in found.items():
        print(f"{call}: {len(modules)} modules, {sum(map(len, modules.values()))} calls of functions")
        if not arguments.counts:
            for name, functions in modules.items():
                print(f"    {name.removeprefix('tiltyard.')}: {', '.join(dict.fromkeys(functions))}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
