"""Start child processes, counted; and run one in the background: it gets what nothing else wants.

The threads of a process in the background have the policy SCHED_IDLE: any other thread that wakes up takes the
processor from them at once. Where others leave none for long they would never be done, so after a while they get
SCHED_BATCH and `_NICENESS`, a tenth of a busy processor. A process may leave SCHED_IDLE with CAP_SYS_NICE or
RLIMIT_NICE alone; without these the child has SCHED_BATCH and the lowest priority from the start.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import weakref
from contextlib import suppress
from functools import cache
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from tiltyard.runtime.machinery import Kind, Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.process import BaseProcess

log = logging.getLogger("tiltyard.background")

_NICENESS, _LOWEST = 10, 19
_ONE_THREAD = ("LANCE_CPU_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that say how many threads compute: one, so that a processor is left to others even where two are idle."""
_IO_THREADS = ("LANCE_IO_THREADS", "2")
_PROBE = (sys.executable, "-I", "-S", "-c", "input()")
PIPE, NOTHING = subprocess.PIPE, subprocess.DEVNULL


class ChildProcess(Machine):
    """A process that runs a command, with its pipes, until `close`."""

    kind = Kind.CHILD
    unit = "processes"

    def __init__(
        self,
        name: str,
        purpose: str,
        command: Sequence[str],
        *,
        stdin: int = PIPE,
        stdout: int = PIPE,
        stderr: int | None = None,
        text: bool = False,
        variables: Mapping[str, str] | None = None,
        background: bool = False,
    ) -> None:
        """Start it, with these environment variables, or with this process's own ones. Raises OSError.

        Pipes of `text` have lines, each sent at its end. In the `background` it gets what others leave.
        """
        if background:
            command = background_command(command)
            variables = {**(os.environ if variables is None else variables), **background_variables()}
        self._process: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603  # callers name programs of ours
            command, stdin=stdin, stdout=stdout, stderr=stderr, text=text, bufsize=1 if text else -1, env=variables
        )
        if background:
            lower_priority(self._process.pid)
        super().__init__(name, purpose)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> IO[Any]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[Any]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end, and kill it where that takes longer; return its status, negative for a signal."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def communicate(self, seconds: float | None, *, check: bool) -> subprocess.CompletedProcess[Any]:
        """Wait for its end, and return what it wrote. Raises as `run_command` does."""
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        done = subprocess.CompletedProcess(self._process.args, self._process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def figures(self) -> Mapping[str, float]:
        return {"active": float(self.is_running)}

    def close(self, seconds: float | None = 0.0) -> None:
        """Close its input, wait for its end for so many seconds, None for any time, and kill it then. Idempotent."""
        if self._process.stdin is not None:
            with suppress(OSError):  # it has ended, and what was sent last stays unread
                self._process.stdin.close()
        if seconds == 0.0:
            self._process.kill()
        self.wait(seconds or None)
        if self._process.stdout is not None:
            self._process.stdout.close()


def run_command(
    command: Sequence[str], seconds: float | None = None, *, text: bool = False, check: bool = False
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, without input, and return what it wrote.

    Raises OSError, subprocess.TimeoutExpired after `seconds`, and with `check` subprocess.CalledProcessError where it
    fails.
    """
    return start_command(command, stdin=NOTHING, stderr=PIPE, text=text).communicate(seconds, check=check)


def start_command(command: Sequence[str], **options: Any) -> ChildProcess:
    """Start a program that runs to its end; `options` are those of ChildProcess. Raises OSError."""
    return ChildProcess(
        "command",
        "Runs to its end, for what it prints: Java's version, pip, the forms of jobs, the rows of a file",
        command,
        **options,
    )


class _PythonProcess(Machine):
    """A process of `multiprocessing`, which counts for as long as it runs."""

    kind = Kind.CHILD
    unit = "processes"

    def __init__(self, name: str, purpose: str, process: BaseProcess) -> None:
        self._process = weakref.ref(process)
        super().__init__(name, purpose)

    def figures(self) -> Mapping[str, float]:
        process = self._process()
        return {"active": float(process is not None and process.is_alive())}

    def close(self) -> None:
        if (process := self._process()) is not None and process.is_alive():
            process.kill()


_python_processes: weakref.WeakKeyDictionary[BaseProcess, _PythonProcess] = weakref.WeakKeyDictionary()
_socket_folders: set[str] = set()
"""Where `multiprocessing` has the sockets of this process's fork server: one, once it has such a server."""


def start_python(
    name: str,
    purpose: str,
    method: Literal["spawn", "forkserver"],
    target: Callable[..., object],
    arguments: Sequence[Any],
    *,
    preload: Sequence[str] = (),
    daemon: bool = False,
) -> BaseProcess:
    """Start a process of Python that calls a function; `preload` are modules of that which others are forked from."""
    context = multiprocessing.get_context(method)
    if preload:
        context.set_forkserver_preload(list(preload))
    process: BaseProcess = context.Process(target=target, args=tuple(arguments), name=name, daemon=daemon)  # type: ignore[attr-defined]  # both contexts have it
    if method == "forkserver":
        _socket_folders.add(get_temp_dir())
    process.start()
    _python_processes[process] = _PythonProcess(name, purpose, process)
    return process


def remove_socket_folders() -> None:
    """Remove the folder of the fork server's sockets, as the end of an interpreter does, but not `os._exit`."""
    while _socket_folders:
        shutil.rmtree(_socket_folders.pop(), ignore_errors=True)


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
    probe = subprocess.Popen(_PROBE, stdin=PIPE)  # noqa: S603  # this program itself
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
