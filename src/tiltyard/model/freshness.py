"""How fresh a response has to be: the state that a client has seen already, or written itself, is the least of it."""

from __future__ import annotations

from dataclasses import dataclass

from lance_namespace.errors import ServiceUnavailableError


class StaleReadError(ServiceUnavailableError):
    """A table has not reached the state that a request asks for; the client may ask again after `seconds`."""

    seconds = 1


@dataclass(frozen=True, slots=True)
class Freshness:
    """The oldest state of a table that a response may come from.

    `version` is a version of the branch that is read; `timestamp` is in milliseconds since 1970: all commits before it
    are seen.
    """

    version: int = 0
    timestamp: int = 0

    def is_met_by(self, version: int, looked_up_at: int) -> bool:
        """Return whether a version that was the latest at a time is fresh enough."""
        return version >= self.version and looked_up_at >= self.timestamp
