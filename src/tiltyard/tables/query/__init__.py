"""Read rows: plan queries, scan, search, take from memory, enforce policies."""
