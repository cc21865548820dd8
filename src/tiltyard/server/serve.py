"""Run a server, in one process or several, or a worker, until a signal stops it."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NoReturn

from tiltyard.api.app import CONSOLE_PATH
from tiltyard.api.limits.rates import shared_rates
from tiltyard.api.request_log import shared_counts
from tiltyard.audit import check_audit_file
from tiltyard.config import Settings
from tiltyard.context import do_nothing
from tiltyard.runtime.child_process import start_python
from tiltyard.runtime.machinery import close_machinery
from tiltyard.runtime.process import bind_socket, reason_of, refuse
from tiltyard.runtime.tracing import flush_spans
from tiltyard.server.connection_balancing import shared_connection_counts
from tiltyard.server.flight_address import FlightAddress, flight_address, sockets_folder
from tiltyard.server.log_setup import set_up_logging
from tiltyard.server.memory import bound_vectors, give_memory_back
from tiltyard.server.process import (
    BALANCING_LOOP,
    BackgroundWork,
    ServedApi,
    exit_now,
    exit_on_signals,
    http_server,
    open_services_or_refuse,
)
from tiltyard.server.startup_checks import announce_access, check_decisions, check_exposure, local_address, url_scheme
from tiltyard.server.supervisor import NeverServedError, Supervisor, run_child

PORT_SECONDS = 15.0
"""How long a start waits for a port: longer than processes drain whose parent was killed."""
PORT_PAUSE_SECONDS = 0.1
BACKLOG = 2048

log = logging.getLogger("tiltyard")


def run_server(
    settings: Settings, on_listening: Callable[[str], None] | None = None, on_exit: Callable[[], None] = do_nothing
) -> NoReturn:
    """Serve until a signal stops it, and end the process. Raises ConfigError for an audit that cannot be kept.

    `on_listening` gets the server's URL once requests can be sent, which are answered soon; `on_exit` is called last.
    """
    check_audit_file(settings)
    set_up_logging(settings)
    listener = _listen(settings)
    host, port = listener.getsockname()[:2]
    check_exposure(settings, host)
    flight = flight_address(settings, host, port)
    services = open_services_or_refuse(bound_vectors(settings))
    announce_access(services, host)
    check_decisions(settings)
    url_host = f"[{host}]" if ":" in host else host
    # uvloop's own server does not let us limit how many connections are at their TLS handshake.
    loop = BALANCING_LOOP if settings.tls_certificate else "uvloop"
    server = None if settings.workers > 1 else http_server(settings, ServedApi(services, flight=flight).api, loop)
    ending = ExitStack()
    ending.callback(on_exit)
    exit_on_signals(ending.close)  # before the line below says that there is a server to stop
    url = f"{url_scheme(settings)}://{url_host}:{port}"
    print(f"Tiltyard serves {settings.root} on {url}", file=sys.stderr, flush=True)
    if settings.console:
        print(f"The console is at {_local_url(url, host)}{CONSOLE_PATH.decode()}/", file=sys.stderr, flush=True)
    if on_listening is not None:
        on_listening(_local_url(url, host))
    if server is None:
        services.close()
        _supervise(settings, listener, flight)
    else:
        if settings.tls_certificate:
            ending.enter_context(shared_connection_counts(1))
        server.run(sockets=[listener])  # which raises the signal that ended it: the handler's end is this process's
    ending.close()
    exit_now()


def _supervise(settings: Settings, listener: socket.socket, flight: FlightAddress | None) -> None:
    """Serve by several processes. Ends the command where none of them comes to serve."""

    def start(child: Connection) -> BaseProcess:
        arguments = child, listener, settings, flight
        # Lance does not survive a fork
        return start_python("server", "Answers requests, one of several", "spawn", run_child, arguments)

    with ExitStack() as stack:
        for shared in (shared_counts(), shared_rates(), shared_connection_counts(settings.workers)):
            stack.enter_context(shared)
        if flight is not None:
            sockets = sockets_folder()
            stack.callback(sockets.remove)
            flight = replace(flight, siblings_folder=str(sockets.path))
        try:
            Supervisor(start, settings.workers, settings.worker_timeout).run()
        except NeverServedError as error:
            refuse(f"No server process could start: process {error}. The lines above say why.")


def run_worker(settings: Settings) -> None:
    """Run queued work until a signal stops it."""
    services = open_services_or_refuse(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    work = BackgroundWork(services, "worker", max(1, settings.jobs), has_drivers=True)
    give_memory_back(services.storage.datasets.vector_cache)
    work.start()
    print(f"Tiltyard works on {settings.root}", file=sys.stderr, flush=True)
    stop.wait()
    work.stop()
    flush_spans()
    services.close()
    close_machinery()
    exit_now()


def _listen(settings: Settings) -> socket.socket:
    """Return a listening socket.

    A port that is in use is waited for: processes of a server that was killed may still be ending.
    """
    deadline: float | None = None
    while True:
        try:
            return _bind(settings.host, settings.port)
        except (OSError, OverflowError) as error:
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not in_use or (deadline is not None and time.monotonic() > deadline):
                place = f"{settings.host}:{settings.port} ({reason_of(error)})"
                refuse(f"Cannot listen on {place}: choose another --port or --host.")
        if deadline is None:
            deadline = time.monotonic() + PORT_SECONDS
            log.warning("%s:%d is in use: waiting for it for %g s", settings.host, settings.port, PORT_SECONDS)
        time.sleep(PORT_PAUSE_SECONDS)


def _bind(host: str, port: int) -> socket.socket:
    listener = bind_socket(host, port)
    try:
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _local_url(url: str, host: str) -> str:
    """Return where this machine reaches its server: one that listens on all addresses is here, too."""
    address = local_address(host)
    if address == host:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{f'[{address}]' if ':' in address else address}:{rest.rpartition(':')[2]}"
