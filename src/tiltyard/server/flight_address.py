"""Where a server serves SQL over Arrow Flight: the port after that of HTTP, unless the settings say otherwise."""

from __future__ import annotations

import logging
import socket
import tempfile
from dataclasses import dataclass

from tiltyard.config import Settings
from tiltyard.runtime.owned_folders import OwnedFolder
from tiltyard.runtime.process import bind_socket, port_problem, reason_of, refuse

AUTO, OFF = "auto", "off"
BACKLOG = 2048
MAX_PARENT = 50
"""Bytes of a path in which a folder can have sockets: the path of one has 107 at most."""

log = logging.getLogger("tiltyard")


@dataclass(frozen=True, slots=True)
class FlightAddress:
    """Where to listen. `is_shared`: all processes of the server do; `is_required`: it was named by the settings.

    `siblings_folder` has sockets at which these processes reach one another; without it a process has its own. `held`
    is the socket of a server of one process: it listens since that began to start, so that nobody else gets the port.
    """

    host: str
    port: int
    is_shared: bool
    is_required: bool
    siblings_folder: str = ""
    held: socket.socket | None = None


def flight_address(settings: Settings, host: str, http_port: int) -> FlightAddress | None:
    """Return where SQL is served; None where it is off, or is served by default and cannot be, which the log says.

    Ends the command where the settings name a port that cannot be served.
    """
    if settings.sql_port == OFF:
        return None
    is_required = settings.sql_port != AUTO
    port = int(settings.sql_port) if is_required else http_port + 1
    is_shared, held = settings.workers > 1, None
    try:
        held = bind_socket(host, port)
        if is_shared:  # each process has a socket of its own
            held.close()
        else:
            held.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        problem = _cannot_listen(host, port, reason_of(error))
        if is_required:
            refuse(problem)
        log.info("SQL is not served: %s", problem)
        return None
    return FlightAddress(host, port, is_shared, is_required, held=None if is_shared else held)


def sockets_folder() -> OwnedFolder:
    """Make a folder for the Unix sockets of a server's processes: where temporary files are, if names are short there.

    Raises OSError.
    """
    is_short = len(tempfile.gettempdir().encode()) <= MAX_PARENT
    return OwnedFolder("tiltyard-flight-", None if is_short else "/tmp")  # noqa: S108  # nosec B108  # this user alone can enter it


def flight_problem(host: str, port: int) -> str | None:
    """Return why SQL cannot be served at an address, with what to do; None if it can."""
    reason = port_problem(host, port)
    return None if reason is None else _cannot_listen(host, port, reason)


def _cannot_listen(host: str, port: int, reason: str) -> str:
    return f"Cannot listen on {host}:{port} for SQL ({reason}): choose another --sql-port, or off."
