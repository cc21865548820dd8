"""Run a child process in the background: it gets processors and the disk when nothing else wants them.

Its threads have the policy SCHED_IDLE: any other thread that wakes up takes the processor from them at once. Where
others leave none for long they would never be done, so after a while they get SCHED_BATCH and `_NICENESS`, a tenth of a
busy processor. A process may leave SCHED_IDLE with CAP_SYS_NICE or RLIMIT_NICE alone; without these the child has
SCHED_BATCH and the lowest priority from the start.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("tiltyard.background")

_NICENESS, _LOWEST = 10, 19
_ONE_THREAD = ("LANCE_CPU_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that say how many threads compute: one, so that a processor is left to others even where two are idle."""
_IO_THREADS = ("LANCE_IO_THREADS", "2")
_PROBE = (sys.executable, "-I", "-S", "-c", "input()")


def background_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs another one with the lowest priority for the disk, where the system can."""
    ionice = shutil.which("ionice")
    return (ionice, "-c", "3", "-t", *command) if ionice else tuple(command)


def background_variables() -> dict[str, str]:
    """Return environment variables that limit the threads of Lance, and of the libraries that it uses."""
    return {**dict.fromkeys(_ONE_THREAD, "1"), _IO_THREADS[0]: _IO_THREADS[1]}


def lower_priority(process: int) -> None:
    """Put a process that has just started into the background; the threads that it starts later inherit this."""
    can_rise = _can_leave_idle()
    try:
        os.setpriority(os.PRIO_PROCESS, process, _raised_niceness() if can_rise else _LOWEST)
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(process, os.SCHED_IDLE if can_rise else os.SCHED_BATCH, os.sched_param(0))
    except ProcessLookupError:  # it has ended already
        return
    except OSError as error:  # a sandbox that forbids it
        log.info("process %s keeps its priority: %s", process, error)


def end_idle(process: int) -> None:
    """Let a process go on where no processor is idle: see above. It has to be called until all threads have risen."""
    if not _can_leave_idle():
        return
    for task in _threads(process):
        with suppress(ProcessLookupError):
            if os.sched_getscheduler(task) == os.SCHED_IDLE:
                os.sched_setscheduler(task, os.SCHED_BATCH, os.sched_param(0))


def _raised_niceness() -> int:
    return max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0))


def _threads(process: int) -> list[int]:
    with suppress(OSError):  # it has ended
        return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    return []


@cache
def _can_leave_idle() -> bool:
    """Return whether this process may take others out of SCHED_IDLE again, as a process tells that waits for input.

    A thread of this process could be left in SCHED_IDLE, and keep all others waiting for the interpreter's lock.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return False
    probe = subprocess.Popen(_PROBE, stdin=subprocess.PIPE)  # noqa: S603  # this program itself
    try:
        os.setpriority(os.PRIO_PROCESS, probe.pid, _raised_niceness())
        os.sched_setscheduler(probe.pid, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setscheduler(probe.pid, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        return False
    finally:
        probe.kill()
        probe.communicate()
    return True
