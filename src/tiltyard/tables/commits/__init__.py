"""Commits to managed tables: validate, record and finalize versions; recover interrupted requests."""
