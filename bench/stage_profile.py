"""A sampling profiler inside a server: processor time by stage of a request. `python -m bench.stage_profile …` is
`python -m tiltyard …` with it; SIGUSR1 begins a measurement, SIGUSR2 writes what it came to as JSON to FILE_VARIABLE.

The timer counts processor time of the process, and its signal interrupts the event loop's thread between two
instructions of Python, so a sample is no matter of who has the GIL. A sample weighs as much as each thread has used
since the last one. The event loop's time goes to the stage of its innermost frame that belongs to one; where a function
has just been entered, to that of its caller, which has used the time. A pool's thread is seen where it last gave the
GIL away, which is in most cases the call that has used the time; `unseen` is the time of those that wait for work again
by then. Threads that Python does not know are Lance's.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dis import opmap
from pathlib import Path
from types import FrameType

FILE_VARIABLE = "BENCH_STAGE_FILE"
INTERVAL = 0.001
"""Seconds of processor time between samples; the kernel makes its own tick of it where that is longer."""
STAGES = ("parse", "authenticate", "authorize", "store", "operation", "Lance", "encode", "glue", "loop", "unseen")
LOOP, LANCE, UNSEEN = "loop", "Lance", "unseen"

_ENTRY = opmap["RESUME"]
RULES: tuple[tuple[str, frozenset[str] | None, str], ...] = (
    ("tiltyard.store", None, "store"),
    (
        "tiltyard.server.http_protocol",
        frozenset({"_on_response_sent", "on_response_complete", "send_whole", "of"}),
        "encode",
    ),
    ("tiltyard.api.app", frozenset({"_render"}), "encode"),
    ("tiltyard.api.exchange", frozenset({"send", "send_chunk", "start", "_send_head"}), "encode"),
    ("tiltyard.api.bodies.arrow_responses", None, "encode"),
    ("tiltyard.server.http_protocol", None, "parse"),
    ("uvicorn.protocols", None, "parse"),
    ("tiltyard.api.binding", None, "parse"),
    ("tiltyard.api.routing", None, "parse"),
    ("tiltyard.api.bodies", None, "parse"),
    ("tiltyard.model.ids", None, "parse"),
    ("tiltyard.api.authentication", None, "authenticate"),
    ("tiltyard.identity", None, "authenticate"),
    ("tiltyard.access", None, "authorize"),
    ("tiltyard.model.operations", frozenset({"authorize"}), "authorize"),
    ("lance", None, LANCE),
    ("tiltyard.tables.query.scanners", None, LANCE),
    ("tiltyard.tables", None, "operation"),
    ("tiltyard.storage", None, "operation"),
    ("tiltyard.catalog", None, "operation"),
    ("tiltyard.context", None, "operation"),
    ("tiltyard.server", frozenset({"run_server"}), "loop"),
    ("tiltyard.cli", None, "loop"),
    ("tiltyard", None, "glue"),
)
"""The stage of a frame: the first rule whose package its module is in, and whose functions, if any, have its name."""


class StageProfile:
    """The processor seconds of each stage since `begin`."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.samples = 0
        self._main = threading.main_thread().ident or 0
        self._last: dict[int, float] = {}
        self._last_process = 0.0
        self._rule_of: dict[tuple[str, str], str | None] = {}

    def begin(self, *_: object) -> None:
        """Forget what was measured, and measure."""
        self.__init__()  # type: ignore[misc]
        self._spent()
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def end(self, *_: object) -> None:
        """Stop, and write the result."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        file = Path(os.environ[FILE_VARIABLE])
        text = json.dumps({"seconds": self.seconds, "samples": self.samples, "functions": self.functions})
        making = file.with_suffix(".making")
        making.write_text(text)
        making.rename(file)

    def sample(self, _: int, frame: FrameType | None) -> None:
        """Give each thread's time since the last sample to the stage that it is in."""
        self.samples += 1
        spent = self._spent()
        frames = sys._current_frames()
        python = 0.0
        for thread, seconds in spent.items():
            if thread and seconds > 0:
                innermost = frame if thread == self._main else frames.get(thread)
                stage, name = self._stage(innermost)
                if thread != self._main and stage == LOOP:
                    stage = UNSEEN
                self.seconds[stage] += seconds
                self.functions[name] += 1
                python += seconds
        self.seconds[LANCE] += max(0.0, spent[0] - python)
        self._spent()  # the sample's own time is nobody's

    def _spent(self) -> dict[int, float]:
        """Return the processor seconds of each thread since the last call; 0 is the whole process."""
        found = {}
        for thread in threading.enumerate():
            identity = thread.ident or 0
            with suppress(OSError):
                now = time.clock_gettime(_clock_of(thread.native_id or 0))
                found[identity] = now - self._last.get(identity, now)
                self._last[identity] = now
        whole = time.process_time()
        found[0] = whole - self._last_process
        self._last_process = whole
        return found

    def _stage(self, frame: FrameType | None) -> tuple[str, str]:
        if frame is not None and frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _ENTRY:
            frame = frame.f_back
        name = LOOP if frame is None else f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}"
        while frame is not None:
            key = str(frame.f_globals.get("__name__")), frame.f_code.co_name
            if key not in self._rule_of:
                self._rule_of[key] = _rule(*key)
            if (stage := self._rule_of[key]) is not None:
                return stage, name
            frame = frame.f_back
        return LOOP, name


def _clock_of(thread: int) -> int:
    """Return Linux's clock of a thread's processor time by its number, which is an error for one that has ended."""
    return (~thread << 3) | 6


def _rule(module: str, function: str) -> str | None:
    for package, functions, stage in RULES:
        if (module == package or module.startswith(f"{package}.")) and (functions is None or function in functions):
            return stage
    return None


def main() -> None:
    """Install the profiler, and run the command."""
    profile = StageProfile()
    signal.signal(signal.SIGPROF, profile.sample)
    signal.signal(signal.SIGUSR1, profile.begin)
    signal.signal(signal.SIGUSR2, profile.end)
    module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
