"""How many files and sockets a server process may have open, and how many of them its connections may be."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("tiltyard")

MOST_DESCRIPTORS = 1 << 16
"""What is asked for where the system would give more: so many connections take more memory than most machines have."""


def raise_descriptor_limit() -> None:
    """Have as many descriptors as this process may: the usual 1,024 is for programs that know no other way to wait."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connection_limit(wanted: int) -> int:
    """Return how many connections a process may have, at most `wanted` if that is not 0.

    The other half of the descriptors is for the database, for files of tables, and for threads that read bodies.
    """
    half = descriptor_limit() // 2
    if wanted > half:
        log.warning("max_connections is %d, and the limit of descriptors (ulimit -n) leaves %d of them", wanted, half)
    return min(wanted, half) if wanted else half
