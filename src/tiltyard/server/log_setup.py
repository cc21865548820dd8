"""The log of a server's processes: one line per event, on standard error."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiltyard.config import Settings


def set_up_logging(settings: Settings) -> None:
    """Log one line per event on standard error.

    psycopg's pool logs each attempt to connect; what came of them is logged once a minute
    (`tiltyard.runtime.outage_log`).
    """
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_connection_attempt)


def _is_no_connection_attempt(record: logging.LogRecord) -> bool:
    return record.name != "psycopg.pool" or record.levelno >= logging.ERROR
