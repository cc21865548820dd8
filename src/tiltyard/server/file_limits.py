"""Limits of a server process: its file descriptors, and how many of them its connections may use."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("tiltyard")

MAX_DESCRIPTORS = 1 << 16
"""The limit that is set where the system allows more: so many connections take more memory than most machines have."""


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors as far as allowed: the usual 1,024 is for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def descriptor_limit() -> int:
    """Return the limit of descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connection_limit(max_connections: int) -> int:
    """Return how many connections a process may have, at most `max_connections` if that is not 0.

    Half of the descriptors are for the database, for files of tables, and for threads that read bodies.
    """
    half = descriptor_limit() // 2
    if max_connections > half:
        log.warning(
            "max_connections is %d, and the limit of descriptors (ulimit -n) leaves %d of them", max_connections, half
        )
    return min(max_connections, half) if max_connections else half
