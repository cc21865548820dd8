"""A supervisor of toy processes, controlled by files in a folder: `python -m tests.faults.supervised FOLDER 2 3 30`.

`die`: a process ends with status 3 before it serves. `late`: it never reports that it serves. `stay`: it ignores
SIGTERM. `started` gets a line for each process, with its id.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tiltyard.server import supervisor
from tiltyard.server.supervisor import Heartbeats


def toy(parent: Connection, folder: Path) -> None:
    """Run one of the processes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if (folder / "stay").exists() else lambda *_: os._exit(0))
    heartbeat = Heartbeats(parent)
    heartbeat.start()
    dies = (folder / "die").exists()
    if not dies and not (folder / "late").exists():
        heartbeat.report_serving()
    with (folder / "started").open("a") as started:
        started.write(f"{os.getpid()}\n")
    if dies:
        sys.exit(3)
    threading.Event().wait()


def main(folder: str, number: str, silence: str, stop_seconds: str) -> None:
    """Supervise until a signal to stop; exit with status 1 if no process has ever served."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    supervisor.STOP_SECONDS = float(stop_seconds)
    spawn = multiprocessing.get_context("spawn")

    def start(child: Connection) -> BaseProcess:
        process = spawn.Process(target=toy, args=(child, Path(folder)))
        process.start()
        return process

    try:
        supervisor.Supervisor(start, int(number), float(silence)).run()
    except supervisor.NeverServedError as error:
        sys.exit(f"none served: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
