"""What values of settings may be: the bounds of numbers, and the choices where there are few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHOICES = {
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "audit": ("auto", "off", "changes", "all"),
    "databases": ("fallback", "strict", "ignored"),
}
"""The values of settings that have few; case does not matter."""
BOUNDS = {
    "port": (0, 65535),
    "workers": (1, 1024),
    "worker_timeout": (1, 86400),
    "jobs": (0, 1024),
    "max_json_bytes": (1 << 10, 1 << 40),
    "max_upload_bytes": (0, 1 << 50),
    "max_manifest_bytes": (1 << 16, 1 << 40),
    "index_cache_bytes": (0, 1 << 50),
    "metadata_cache_bytes": (0, 1 << 50),
    "page_cache_bytes": (0, 1 << 50),
    "vector_cache_bytes": (0, 1 << 50),
    "disk_cache_bytes": (0, 1 << 60),
    "conflict_timeout": (0, 86400),
    "repeat_memory": (0, 30 * 86400),
    "repeat_lease": (0.5, 3600),
    "token_life": (60, 86400),
    "retention_days": (0, 36500),
    "gc_safety_days": (0, 36500),
    "spark_jobs": (1, 64),
    "stream_jobs": (0, 64),
    "spark_index_rows": (0, 1 << 50),
    "index_stall_timeout": (0, 86400),
    "upkeep_bytes": (1 << 28, 1 << 50),
    "keep_versions_days": (0.001, 36500),
    "view_refresh_rows": (0, 1 << 50),
    "column_refresh_rows": (0, 1 << 50),
    "audit_days": (0, 36500),
    "event_days": (0.01, 3650),
    "max_events": (1_000, 1_000_000_000),
    "transaction_days": (0, 36500),
    "upload_days": (0, 36500),
    "rate_limit": (0, 1e9),
    "rate_limit_total": (0, 1e9),
    "rate_burst": (0.1, 3600),
    "max_queries": (0, 1 << 20),
    "max_queries_total": (0, 1 << 20),
    "query_timeout": (0, 86400),
    "spread_search_rows": (0, 1 << 50),
    "max_result_bytes": (0, 1 << 50),
    "query_memory_bytes": (1 << 27, 1 << 50),
    "sql_queries": (1, 1 << 16),
    "sql_memory_bytes": (1 << 20, 1 << 50),
    "sql_process_bytes": (1 << 28, 1 << 50),
    "sql_total_bytes": (0, 1 << 50),
    "sql_spill_bytes": (1 << 20, 1 << 50),
    "sql_kept_bytes": (0, 1 << 50),
    "sql_max_rows": (0, 1 << 50),
    "sql_max_length": (100, 1 << 20),
    "db_connections": (4, 1 << 10),
    "max_connections": (0, 1 << 20),
    "trace_sample": (0, 1),
    "head_timeout": (0.1, 3600),
    "keep_alive": (1, 86400),
    "send_timeout": (0.1, 86400),
    "max_page_size": (1, 100_000),
    "max_json_depth": (8, 500),
    "max_operations": (1, 1 << 20),
    "max_vectors": (1, 1 << 20),
}
"""The least and the greatest value of settings that are numbers."""


def bounds_problem(values: Mapping[str, Any]) -> str | None:
    """Return which of all settings is out of its bounds, or none of its choices; None if each can be."""
    for name, (least, most) in BOUNDS.items():
        value = values[name]
        if value != "auto" and not least <= value <= most:
            return f"The setting {name} cannot be {value}: {least} to {most}."
    for name, choices in CHOICES.items():
        if values[name].lower() not in choices:
            return f"The setting {name} cannot be {values[name]!r}: {', '.join(choices)}."
    return None
