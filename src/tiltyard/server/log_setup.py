"""The log of a server's processes, one line per event on standard error; and where its traces go."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from tiltyard import __version__
from tiltyard.runtime.process import refuse
from tiltyard.runtime.tracing import MISSING, JsonFormatter, TraceOptions, is_installed, start_tracing, track

if TYPE_CHECKING:
    from tiltyard.config import Settings


def set_up_logging(settings: Settings) -> None:
    """Log one line per event on standard error.

    psycopg's pool logs each attempt to connect; what came of them is logged once a minute
    (`tiltyard.runtime.outage_log`). FAISS logs each set of instructions that it tries, and what it lacks of it.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if settings.log_format.lower() == "json":
        track()
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_connection_attempt)
    logging.getLogger("faiss").setLevel(max(logging.WARNING, logging.getLogger().level))


def set_up_tracing(settings: Settings) -> None:
    """Send the traces of this process where the settings say; end the process with a sentence where that cannot be."""
    if not settings.trace_endpoint:
        return
    if not is_installed():
        refuse(MISSING)
    start_tracing(TraceOptions(settings.trace_endpoint, settings.trace_sample, __version__))


def _is_no_connection_attempt(record: logging.LogRecord) -> bool:
    return record.name != "psycopg.pool" or record.levelno >= logging.ERROR
