"""Run the steps of a worker's loops, which continue whatever a step raises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.runtime.outage_log import OutageLog

Result = TypeVar("Result")

PAUSE_SECONDS = 1.0
"""How long a loop pauses after a step that failed."""

log = logging.getLogger("tiltyard.worker")


def run_step(step: Callable[[], Result], stopping: threading.Event, outage_log: OutageLog) -> Result | None:
    """Return the result of a step; None, after a pause, if it fails: the database may be away for a while."""
    try:
        return step()
    except ServiceUnavailableError as error:
        if not outage_log.report(error):
            log.warning("%s", error)
    except Exception:  # without it the thread would end, and nothing would notice that
        log.exception("a worker's step failed")
    stopping.wait(PAUSE_SECONDS)
    return None
