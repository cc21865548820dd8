"""Refresh computed columns: decide what is stale, compute and write it, commit it; in Spark or in a server's worker."""
