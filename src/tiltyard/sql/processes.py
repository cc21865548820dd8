"""Processes that run SQL queries, one at a time each, so that a query can be ended at once, whatever it is doing.

DataFusion stops a query at the end of a batch of its input, which for a join may take minutes, and what it allocates is
only roughly what its memory pool counts. A process that is killed frees its processors, its memory and its files, and
one that ends by itself (its stack has overflowed, say) ends no other query and no server. They are forked from a
process that has imported everything, which takes some hundredths of a second.

A server and a process send each other messages over a Unix socket, each a head (its kind and length) and a body. The
server sends a `QueryRequest`; the process answers with PLANNED, then, if the query is to run, with DATA for each part
of its rows, and with END; or with FAILED at any time.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
)

from tiltyard.model.decisions import DecisionNote
from tiltyard.model.principals import Principal
from tiltyard.runtime.budgets import FairPlaces, MemoryBudget, allow
from tiltyard.runtime.owned_folders import OwnedFolder, remove_abandoned
from tiltyard.runtime.system_memory import private_bytes
from tiltyard.sql.read_grounds import ReadGrounds

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from tiltyard.config import Settings
    from tiltyard.runtime.budgets import Reservation

HEAD = struct.Struct("<BQ")
MAX_MESSAGE_BYTES = 1 << 32


class MessageKind(IntEnum):
    """What a message is."""

    REQUEST = 1
    PLANNED = 2
    DATA = 3
    END = 4
    FAILED = 5


class Form(IntEnum):
    """How rows are sent."""

    FLIGHT = 1
    """As FlightData, ready for gRPC."""
    STREAM = 2
    """As an Arrow IPC stream for each batch."""


class ViewRead(msgspec.Struct, frozen=True, array_like=True):
    """What is read of a view: some columns (all if None) of some rows, in their order; or how many rows it has."""

    path: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    offset: int = 0
    limit: int | None = None
    is_count: bool = False


class QueryRequest(msgspec.Struct, frozen=True, array_like=True):
    """A query, and for whom it is planned.

    - `parameters` is an Arrow stream of one row of values; None plans for the schema a query that is not run.
    - `database` is what its names are relative to.
    - `form` is how its rows are sent; None only plans it.
    - `view` is read instead of the query, which is empty then.
    - `is_view` says that a view is to be created of the query.
    """

    query: str
    principal: Principal
    request_id: str
    namespace: tuple[str, ...] = ()
    database: tuple[str, ...] = ()
    parameters: bytes | None = b""
    form: Form | None = None
    view: ViewRead | None = None
    is_view: bool = False


class PlanDescription(msgspec.Struct, frozen=True, array_like=True):
    """A query that was planned: its schema, the ids of its tables, the types of its parameters, as a schema.

    `grounds` say why its reader may read them, `decided` what services outside have decided about that.
    """

    schema: bytes
    tables: tuple[tuple[str, ...], ...]
    parameters: bytes
    grounds: tuple[ReadGrounds, ...]
    decided: tuple[DecisionNote, ...] = ()


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a query failed, by the specification's code, the ids of the tables that it has named, and what was decided
    about them.
    """

    code: int
    message: str
    tables: tuple[tuple[str, ...], ...]
    decided: tuple[DecisionNote, ...] = ()


TICK_MS = 100
"""How often a query that sends nothing is checked: its deadline, and its memory."""
END_SECONDS = 10.0
"""How long a process that was killed may take to end."""
MAX_IDLE = max(2, os.cpu_count() or 1)
"""Idle processes that are kept for the next queries."""
REUSE_SHARE = 0.5
"""A process that holds more than this share of the memory that it may have is not used again."""
CHECK_SECONDS = 0.1
FIRST_BYTES = 64 << 20
"""Memory that a query counts with until its process is looked at."""
DEFAULT_TOTAL = 4
"""How many times `sql_process_bytes` all queries have together, unless `sql_total_bytes` says it."""
FOLDER_PREFIX = "tiltyard-sql-"
_FULL = "The query took more memory than one query's process may have (sql_process_bytes): narrow it."

log = logging.getLogger("tiltyard.sql")

Start = Callable[[socket.socket, Path], "BaseProcess"]
"""Start a process that serves queries at a socket, and spills to a folder."""


class QueryEndedError(ServiceUnavailableError):
    """The query was ended by the server."""


class QueryProcess:
    """A running process. One thread at a time talks to it; any may kill it."""

    reservation: Reservation | None = None
    """The memory of the query that it runs, among that of all queries."""

    def __init__(self, process: BaseProcess, channel: socket.socket, folder: Path, most_bytes: int) -> None:
        self._process = process
        self._channel = channel
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._is_killed = False
        self._checked_at = 0.0
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    @property
    def is_usable(self) -> bool:
        """Whether it runs, has nothing to say, has not kept much memory, and can spill to its folder."""
        return (
            not self._is_killed
            and self._process.is_alive()
            and self._folder.exists()
            and not self._poll.poll(0)
            and private_bytes(self._process.pid) <= self._most_bytes * REUSE_SHARE
        )

    def send(self, body: bytes) -> None:
        """Send a request. Raises InternalError if the process has ended."""
        try:
            self._channel.sendall(HEAD.pack(MessageKind.REQUEST, len(body)) + body)
        except OSError as error:
            raise self._ended() from error

    def has_message(self, seconds: float = 0.0) -> bool:
        """Return whether a message, or the end of the process, can be received, within so many seconds."""
        return bool(self._poll.poll(seconds * 1000))

    def receive(self, check: Callable[[], None]) -> tuple[MessageKind, bytes]:
        """Wait for a message. While it does not come, `check` is called, and may raise to end the query.

        Raises InvalidInputError for a process that takes too much memory, ThrottlingError for one that takes more than
        others leave, QueryEndedError for one that was killed, InternalError for one that has ended by itself.
        """
        check()
        while not self._poll.poll(TICK_MS):
            check()
            self._check_memory()
        if time.monotonic() - self._checked_at > CHECK_SECONDS:
            self._check_memory()
        kind, length = HEAD.unpack(self._read(HEAD.size))
        if length > MAX_MESSAGE_BYTES:
            raise InvalidInputError("The query's result has a row of more than 4 GiB.")
        return MessageKind(kind), self._read(length) if length else b""

    def kill(self) -> None:
        """End it now, whatever it does; does not wait. Idempotent."""
        with self._lock:
            if self._is_killed:
                return
            self._is_killed = True
            with suppress(ValueError):  # closed already
                self._process.kill()

    def close(self) -> None:
        """Kill it, and wait until it has ended, with its memory; remove its files. Idempotent."""
        self.kill()
        with self._ending:
            if self._channel.fileno() < 0:
                return
            self._process.join(END_SECONDS)
            self._channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, length: int) -> bytes:
        """Read so many bytes, which the process is sending."""
        data = self._receive_some(length)
        if len(data) == length:
            return data
        parts, missing = [data], length - len(data)
        while missing:
            parts.append(data := self._receive_some(missing))
            missing -= len(data)
        return b"".join(parts)

    def _receive_some(self, length: int) -> bytes:
        try:
            data = self._channel.recv(length, socket.MSG_WAITALL)
        except OSError as error:
            raise self._ended() from error
        if not data:
            raise self._ended()
        return data

    def _ended(self) -> Exception:
        """Return the error for a query whose process has ended."""
        if self._is_killed:
            return QueryEndedError("The query was stopped.")
        self._process.join(END_SECONDS)
        status = self._process.exitcode
        log.error("a process that ran an SQL query ended by itself, with status %s", status)
        return InternalError("The process that ran the query has ended: the server's log says how.")

    def _check_memory(self) -> None:
        self._checked_at = time.monotonic()
        resident = private_bytes(self._process.pid)
        if resident > self._most_bytes:
            self.kill()
            raise InvalidInputError(_FULL)
        if self.reservation is not None:
            try:
                self.reservation.resize(resident)
            except LanceNamespaceError:
                self.kill()
                raise


class QueryProcesses:
    """The processes of one server process: those that run queries, and idle ones. Thread-safe."""

    def __init__(self, settings: Settings, start: Start, check_memory: Callable[[str, int], None] = allow) -> None:
        """`start` starts one; none is started before the first query, or `prestart`.

        `check_memory` may refuse the bytes that a principal's queries are to have: see `MemoryBudget`.
        """
        self._settings = settings
        self._start = start
        self._lock = threading.Lock()
        self._idle: list[QueryProcess] = []
        self._busy: set[QueryProcess] = set()
        self._places = FairPlaces(settings.sql_queries, "SQL queries")
        self._memory = MemoryBudget(
            settings.sql_total_bytes or DEFAULT_TOTAL * settings.sql_process_bytes, check_memory
        )
        self._folder: OwnedFolder | None = None
        """Has a folder for each process, to spill to."""
        self._is_closed = False
        remove_abandoned(FOLDER_PREFIX, Path(settings.sql_spill_folder or gettempdir()))

    @property
    def running(self) -> int:
        """How many queries run."""
        return self._places.taken

    @property
    def used_bytes(self) -> int:
        """The memory of the processes that run queries, when they were last looked at."""
        return self._memory.used

    def used_by(self, principal: str) -> int:
        """The same of one principal."""
        return self._memory.used_by(principal)

    def prestart(self) -> None:
        """Start a process that waits for the first query. Raises as `acquire` does."""
        self.release(self.acquire(None), None, is_idle=True)

    def acquire(self, principal: str | None) -> QueryProcess:
        """Return a process for a query of a principal; None is a caller whom nothing tells from others.

        Raises ThrottlingError if as many run as may, or have as much memory, and ServiceUnavailableError.
        """
        self._places.take(principal)
        try:
            reservation = self._memory.reserve(principal, FIRST_BYTES)
            with self._lock:
                if self._is_closed:
                    raise ServiceUnavailableError("The server stops: no further query is run.")
            process = self._take_idle() or self._start_one()
            process.reservation = reservation
            with self._lock:
                self._busy.add(process)
        except BaseException:
            self._places.leave(principal)
            raise
        return process

    def release(self, process: QueryProcess, principal: str | None, *, is_idle: bool) -> None:
        """Give a process back; one that is not idle is killed, and its query counts until it has ended."""
        is_kept = is_idle and process.is_usable
        try:
            if not is_kept:
                process.close()
        finally:
            self._places.leave(principal)
            reservation, process.reservation = process.reservation, None
            if reservation is not None:
                reservation.release()
            with self._lock:
                self._busy.discard(process)
                is_kept = is_kept and not self._is_closed and len(self._idle) < MAX_IDLE
                if is_kept:
                    self._idle.append(process)
        if not is_kept:
            process.close()

    def close(self) -> None:
        """Kill all processes, and start no more."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for process in (*idle, *busy):
            process.kill()
        for process in idle:
            process.close()
        if self._folder is not None:
            self._folder.remove()

    def _take_idle(self) -> QueryProcess | None:
        """Return the process that was idle last, whose caches are warm; None without any that can be used."""
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None or process.is_usable:
                return process
            process.close()

    def _start_one(self) -> QueryProcess:
        ours, theirs = socket.socketpair()
        with self._lock:
            if self._folder is None:
                self._folder = OwnedFolder(FOLDER_PREFIX, self._settings.sql_spill_folder or None)
        folder = Path(mkdtemp(dir=self._folder.path))
        try:
            process = self._start(theirs, folder)
        except BaseException:
            ours.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            theirs.close()  # the process alone has this end, so that each side sees the other's end
        return QueryProcess(process, ours, folder, self._settings.sql_process_bytes)
