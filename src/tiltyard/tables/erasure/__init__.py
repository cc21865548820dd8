"""Erasure: rows leave every version, branch, tag, snapshot, clone, index and dropped copy of a table, with a report."""
