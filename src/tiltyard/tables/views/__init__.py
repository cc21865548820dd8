"""Materialized views: declared, their sources checked, and refreshed here where a server's worker can."""
