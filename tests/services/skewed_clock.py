"""A server whose machine's clock is wrong: `python -m tests.services.skewed_clock SECONDS serve …`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.services.server import ServerProcess

HOME = Path(__file__).resolve().parents[2]


class SkewedServer(ServerProcess):
    """A server on a machine whose clock is so many seconds ahead."""

    def __init__(self, ahead: int, root: Path, *flags: str, environ: dict[str, str] | None = None) -> None:
        self._ahead = ahead
        super().__init__(root, *flags, environ=environ, forked=False)

    def _start_process(self) -> subprocess.Popen[str]:
        arguments = [str(self._ahead), "serve", "--root", str(self.root), "--port", str(self._port), *self._flags]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.services.skewed_clock", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environ,
            cwd=HOME,
        )


def main() -> None:
    """Move the clocks of this process that tell the time of day, and run a command."""
    ahead = int(sys.argv.pop(1))
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + ahead
    time.time_ns = lambda: nanoseconds() + ahead * 1_000_000_000
    from tiltyard.cli import main as run  # it is imported with the clock that it is to have

    run()


if __name__ == "__main__":
    main()
