"""A Tiltyard server in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

from tests.services.forked_process import ForkedProcess
from tests.services.ports import reserve_two_ports

SECRETS = re.compile(r"tilt_[0-9a-f]{16}_[\w-]|eyJ[\w-]{10,}\.[\w-]{10,}")
"""API keys, and tokens."""

LOOPBACK = "127.0.0.1"
LAST_WORDS_SECONDS = 2
"""How long the end of a log is waited for: drivers of jobs, which outlive a killed server, keep it open."""


Process: TypeAlias = "ForkedProcess | subprocess.Popen[str]"


class ServerProcess:
    """Starts on a free port; `url` is where. `options` open its storage.

    What it logs is kept in `log`, what it says on standard output in `said`. It is forked from a process that has
    imported everything, whose memory counts as its own; `python -m tiltyard serve` where a test is of starts or of
    several processes.
    """

    def __init__(
        self,
        root: Path | str,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        descriptors: int | None = None,
        forked: bool = True,
    ) -> None:
        """`descriptors` is how many files and sockets it may have open (ulimit -n)."""
        self.root = root
        self.db = flags[flags.index("--db") + 1] if "--db" in flags else None
        self.options: dict[str, str] = json.loads((environ or {}).get("TILTYARD_STORAGE_OPTIONS", "{}"))
        self.log: list[str] = []
        self.said: list[str] = []
        self.flags = flags
        self._descriptors = descriptors
        self._forked = forked and ("--workers" not in flags or flags[flags.index("--workers") + 1] == "1")
        # Without upkeep, unless a test is of it: its commits would be among the versions that tests count.
        self._environ = {"TILTYARD_UPKEEP": "false", **os.environ, **(environ or {})}
        # Of all addresses where the server listens on all: else one of them may have the port already.
        host = flags[flags.index("--host") + 1] if "--host" in flags else LOOPBACK
        self._port, self._reserved = reserve_two_ports(host)
        self._readers: list[threading.Thread] = []
        self.start()

    @property
    def workers(self) -> list[int]:
        """The processes that answer, where there are several."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]

    def start(self) -> None:
        """Start, or start again on the same port."""
        self._ready = threading.Event()  # its own: the reader of a killed process may still be at work
        self.process: Process = self._start_process()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process, self._ready), daemon=True),
            threading.Thread(target=self._listen, args=(self.process,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if not self._ready.wait(120) or self.process.poll() is not None:
            self.process.kill()
            raise RuntimeError("The server did not start:\n" + "".join(self.log))

    def _start_process(self) -> Process:
        arguments = ["serve", "--root", str(self.root), "--port", str(self._port), *self.flags]
        if self._forked:
            return ForkedProcess(arguments, self._environ, Path.cwd(), self._descriptors)
        limit = f"ulimit -n {self._descriptors or '$(ulimit -n)'}"
        return subprocess.Popen(
            ["sh", "-c", f'{limit}; exec "$@"', "sh", sys.executable, "-m", "tiltyard", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environ,
        )

    def _read(self, process: Process, ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            if match := re.search(r"on (https?)://(\S+):(\d+)", line):
                self.url = f"{match[1]}://{match[2]}:{match[3]}"
                ready.set()
        ready.set()

    def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        self.said.extend(process.stdout)

    def stop(self, timeout: float = 60) -> int:
        """Ask it to stop; its exit status. Whatever it was shown, its log has no secret of it, and it
        stops without an error.

        How soon it has to is a matter of tests/faults/test_stopping.py: here it is only whether.
        """
        before = len(self.log)
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout)
        self._check_log()
        assert "Traceback" not in "".join(self.log[before:]), "".join(self.log[before:])
        return status

    def wait(self) -> None:
        """Wait until something else has ended it."""
        self.process.wait(120)

    def kill(self) -> None:
        """End it without notice."""
        self.process.kill()
        self.process.wait()
        self._check_log()

    def _check_log(self) -> None:
        for reader in self._readers:
            reader.join(LAST_WORDS_SECONDS)
        assert [line for line in self.log if SECRETS.search(line)] == []


@contextmanager
def running_servers(
    number: int, root: Path | str, *flags: str, environ: Mapping[str, str] | None = None
) -> Iterator[list[ServerProcess]]:
    """Run so many servers on one root; they are killed in the end."""
    with ExitStack() as stack:
        servers = []
        for _ in range(number):
            servers.append(ServerProcess(root, *flags, environ=environ))
            stack.callback(servers[-1].kill)
        yield servers
