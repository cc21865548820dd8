"""Outages of the catalog's server, as Lance and its client report them: told from what a job itself fails with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lance_namespace.errors import InternalError, ServiceUnavailableError

from tiltyard.pipeline.task_errors import clean_message

_OUTAGE = re.compile(
    r"service unavailable|failed to (execute request|read response body)|error response: status=50[234]", re.IGNORECASE
)
"""What is said of a server that refused the connection, ended in the middle of a response, or was being replaced."""


def is_outage(error: BaseException) -> bool:
    """Return whether a server did not answer.

    Lance's client raises InternalError for a connection that was cut, and Lance an OSError with the same text.
    """
    if isinstance(error, ServiceUnavailableError):
        return True
    return isinstance(error, (OSError, InternalError)) and _OUTAGE.search(str(error)) is not None


@contextmanager
def translating_outages() -> Iterator[None]:
    """Raise the outages of the block as ServiceUnavailableError, with a sentence that says what to look at."""
    try:
        yield
    except ServiceUnavailableError:
        raise
    except (OSError, InternalError) as error:
        if not is_outage(error):
            raise
        raise ServiceUnavailableError(
            f"The catalog's server did not answer, or not to the end: is it running? ({clean_message(error)})"
        ) from error
