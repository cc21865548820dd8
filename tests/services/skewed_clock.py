"""A server whose machine's clock is wrong: `python -m tests.services.skewed_clock FILE serve …`.

FILE has how many seconds the clock is ahead, as eight bytes, and may change while the server runs.
"""

from __future__ import annotations

import mmap
import sys
import tempfile
import time
from pathlib import Path

from tests.services.forked_process import ForkedProcess
from tests.services.server import Process, ServerProcess

HOME = Path(__file__).resolve().parents[2]
BYTES = 8


class SkewedServer(ServerProcess):
    """A server on a machine whose clock is so many seconds ahead; `set_clock` changes by how many."""

    def __init__(self, ahead: int, root: Path | str, *flags: str, environ: dict[str, str] | None = None) -> None:
        self._clock = tempfile.NamedTemporaryFile(prefix="clock-")  # noqa: SIM115  # it lives as long as this does
        self.set_clock(ahead)
        super().__init__(root, *flags, environ=environ)

    def set_clock(self, ahead: int) -> None:
        """Set the clock, at once."""
        self._clock.seek(0)
        self._clock.write(ahead.to_bytes(BYTES, "little", signed=True))
        self._clock.flush()

    def _start_process(self) -> Process:
        arguments = [self._clock.name, "serve", "--root", str(self.root), "--port", str(self._port), *self.flags]
        return ForkedProcess(arguments, self._environ, HOME, module="tests.services.skewed_clock")


def main() -> None:
    """Move the clocks of this process that tell the time of day, and run a command."""
    with Path(sys.argv.pop(1)).open("rb") as file:
        content = mmap.mmap(file.fileno(), BYTES, access=mmap.ACCESS_READ)
    seconds, nanoseconds = time.time, time.time_ns

    def ahead() -> int:
        return int.from_bytes(content[:BYTES], "little", signed=True)

    time.time = lambda: seconds() + ahead()
    time.time_ns = lambda: nanoseconds() + ahead() * 1_000_000_000
    from tiltyard.cli import main as run  # it is imported with the clock that it is to have

    run()


if __name__ == "__main__":
    main()
