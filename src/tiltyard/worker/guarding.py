"""Steps of loops that go on whatever happens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.runtime.outage_log import OutageLog

Result = TypeVar("Result")

PAUSE_SECONDS = 1.0
"""How long a loop waits after a step that failed."""

log = logging.getLogger("tiltyard.worker")


def guarded(step: Callable[[], Result], stopping: threading.Event, outages: OutageLog) -> Result | None:
    """What a step gives; None, after a pause, for one that fails: the database may be away for a while."""
    try:
        return step()
    except ServiceUnavailableError as error:
        if not outages.report(error):
            log.warning("%s", error)
    except Exception:  # a thread that ended here would never be missed, and its work never done
        log.exception("a worker's step failed")
    stopping.wait(PAUSE_SECONDS)
    return None
