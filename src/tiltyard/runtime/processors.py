"""Processors of the machine, and the share of them that one of several processes has."""

from __future__ import annotations

import os


def processors_of(processes: int) -> int:
    """Return how many processors each of so many processes has, at least 1."""
    return max(1, (os.cpu_count() or 1) // processes)
