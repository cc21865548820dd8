"""Ingest: files into a table."""
