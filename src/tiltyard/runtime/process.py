"""What a process has of its machine: the clocks, the allocator's memory, ports; and its end by one sentence."""

from __future__ import annotations

import ctypes
import socket
import sys
import time
from typing import NoReturn


def file_clock() -> int:
    """Return the time that a file written right now gets on a local disk, in ms since 1970.

    Linux dates files by a clock that is behind by up to a tick of some milliseconds.
    """
    clock = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)
    return time.clock_gettime_ns(clock) // 1_000_000


def wall_clock() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has the first; `time.monotonic` stands still there while the machine sleeps."""


def elapsed_ms() -> int:
    """Return milliseconds since some moment, by a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime_ns(_ELAPSED_CLOCK) // 1_000_000


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""


def retain_freed_memory(max_bytes: int, map_above: int) -> bool:
    """Retain up to `max_bytes` of freed memory; buffers larger than `map_above` bytes are still released when freed.

    Return whether the C library accepted both: others than glibc have no such call, older versions of glibc accept at
    most 32 MiB for `map_above`. Nothing is changed then, for the trim threshold alone would release more memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, map_above) and mallopt(_TRIM_THRESHOLD, max_bytes))


def release_freed_memory() -> bool:
    """Release all freed memory to the system; return whether the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return trim is not None


class _MallocInfo(ctypes.Structure):
    """What mallinfo2(3) returns: bytes and counts, over all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]
    hblkhd: int
    uordblks: int


def allocated_bytes() -> int | None:
    """Return the bytes that the C allocator has given out and not got back; None where the C library does not tell.

    Beside them a process has freed memory that the allocator keeps, small objects of Python, and buffers of Arrow.
    """
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _MallocInfo
    info: _MallocInfo = mallinfo()
    return info.uordblks + info.hblkhd


def bind_socket(address: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raises OSError, OverflowError."""
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except BaseException:
        bound.close()
        raise
    return bound


def port_problem(address: str, port: int) -> str | None:
    """Return why nothing can listen at an address; None if it can."""
    try:
        bind_socket(address, port).close()
    except (OSError, OverflowError) as error:
        return reason_of(error)
    return None


def reason_of(error: Exception) -> str:
    """Return why an address cannot be had, without its number."""
    return getattr(error, "strerror", None) or str(error)


def describe(error: BaseException) -> str:
    """Return an error's message for the operator, with what its cause notes: why a database was not reached, say."""
    notes = [note.partition("\n")[0] for note in getattr(error.__cause__, "__notes__", ())]
    return f"{' '.join([str(error), *notes]).rstrip('.')}."


def refuse(message: str, status: int = 1) -> NoReturn:
    """Print the message to standard error and exit with this status."""
    import click  # noqa: PLC0415  # what asks for the time alone does without

    click.echo(f"tiltyard: {message}", err=True)
    sys.exit(status)
