"""What quotas limit."""

from __future__ import annotations

from enum import StrEnum


class Resource(StrEnum):
    """What a principal, or a namespace with all below it, may use so much of."""

    BYTES = "bytes"
    """Of the latest versions of tables: their data and index files."""
    TABLES = "tables"
    """Tables and views; of a principal those that it has created."""
    ROWS_PER_DAY = "rows_per_day"
    """Rows written from midnight to midnight, UTC."""
    REQUESTS_PER_DAY = "requests_per_day"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    SQL_MEMORY = "sql_memory"
    """Bytes of the processes that run a principal's SQL queries, in one process of a server."""
    JOBS = "jobs"
    """Jobs and other background work that somebody has asked for, and that has not ended."""


ROWS_AND_FILES = (Resource.ROWS_PER_DAY, Resource.BYTES)
"""What an operation uses that writes rows."""
FILES = (Resource.BYTES,)
"""What an operation uses that writes files alone, as an index."""

DAY_SECONDS, MINUTE_SECONDS = 86_400, 60


def window_start(now: int, seconds: int) -> int:
    """Return when the day or the minute of a time has begun; both in ms since 1970."""
    return now - now % (seconds * 1000)
