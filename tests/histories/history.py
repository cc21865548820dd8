"""Record what clients asked several servers and what they were told, and have porcupine judge it."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

CHECKER = Path(__file__).parent / "porcupine"
OK, ILLEGAL = "Ok", "Illegal"
FORWARDED = "x-tiltyard-server"
DONE, REFUSED = "done", "refused"
READS = ("get", "has", "list", "read")


@dataclass(slots=True)
class Call:
    """A call by a client of an object: see `Call` of `porcupine/main.go`. Times are nanoseconds of this machine."""

    object: str
    kind: str
    client: int
    action: str
    value: int = 0
    begin: int = 0
    end: int | None = None
    result: str = ""
    values: list[int] = field(default_factory=list)


class History:
    """The calls of several clients; one that was cut off, or met an error of the server, has no end."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.forwarded = 0
        """How many were answered by another server than the one that was asked."""
        self._lock = threading.Lock()

    def record(
        self, call: Call, ask: Callable[[], httpx.Response], read: Callable[[Call, httpx.Response], None]
    ) -> None:
        """Make a call by `ask`, and add it with what `read` takes from the response.

        Left out are reads without one, and calls that do not know their object without one.

        Raises AssertionError for a response that no client should get.
        """
        call.begin = time.monotonic_ns()
        response: httpx.Response | None = None
        try:
            response = ask()
        except httpx.ConnectError:
            return  # it was never sent
        except httpx.TransportError:
            pass  # nobody knows
        if response is not None and response.status_code < 500:
            read(call, response)
            call.end = time.monotonic_ns()
            self.forwarded += FORWARDED in response.headers
        elif call.action in READS or not call.object:
            return
        self.add(call)

    def add(self, call: Call) -> None:
        """Add a call, or what happens by itself, as a call."""
        with self._lock:
            self.calls.append(call)

    @property
    def unknown(self) -> int:
        """How many calls have an outcome that nobody knows."""
        return sum(call.end is None for call in self.calls)


def is_installed() -> bool:
    """Return whether this machine has Go, in which porcupine is written."""
    return shutil.which("go") is not None


def build_checker(folder: Path) -> Path:
    """Compile the checker; return its program. Raises CalledProcessError."""
    program = folder / "porcupine"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=CHECKER, check=True, timeout=600)
    return program


def judge(program: Path, calls: Iterable[Call]) -> Mapping[str, str]:
    """Return the verdict on each object: OK, ILLEGAL, or Unknown where it took too long. Raises CalledProcessError."""
    lines = "".join(f"{json.dumps(asdict(call))}\n" for call in calls)
    done = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=True, timeout=900)
    return {line.split("\t")[0]: line.split("\t")[1] for line in done.stdout.splitlines()}
