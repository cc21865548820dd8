"""One step of a swept operation, in a process of its own.

    python -m tests.faults.sweep.process OPERATION STEP FOLDER DATABASE [NUMBER]

`run` is killed before the write of this number, or once all is done if there are no more; without a number its writes
are noted in `<FOLDER>.armed`. Where the writes are those of tasks, it is killed once all is done.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.faults.sweep.installation import BUCKET, Installation
from tests.faults.sweep.operations import OPERATIONS
from tests.faults.sweep.spark import TASK_FAULT
from tiltyard.runtime import failpoints


def main(name: str, step: str, folder: str, url: str, number: str = "") -> None:
    installation, operation = Installation(Path(folder), url, os.environ.get(BUCKET, "")), OPERATIONS[name]
    if step != "run":
        getattr(operation, step)(installation)
        return
    armed = Path(f"{folder}.armed")

    def begin() -> None:
        action = failpoints.Action.KILL if number else failpoints.Action.NOTE
        armed.write_text(number)
        fault = f"{failpoints.Point.WRITE}={action}@{armed}"
        if operation.in_tasks:
            os.environ[TASK_FAULT] = fault
        else:
            failpoints.arm(fault)

    operation.run(installation, begin)
    if number:
        os.kill(os.getpid(), signal.SIGKILL)
    failpoints.arm("")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(0)  # to take all modules down would cost more than most steps
