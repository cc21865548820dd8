"""Log lines as JSON: an object to a line, with the ids of the request and of the trace that they belong to."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from tiltyard.runtime.current_request import current_request

MAX_MESSAGE = 100_000
"""Characters of a message, and of a traceback."""


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE],
        }
        if (request := current_request()) is not None:
            line["request_id"] = request.request_id
            if request.span is not None:
                context = request.span.get_span_context()
                line |= {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)[-MAX_MESSAGE:]
        return msgspec.json.encode(line).decode()
