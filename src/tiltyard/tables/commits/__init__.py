"""Commits of table versions: recorded in the catalog, finalized in storage, recovered after a crash."""
