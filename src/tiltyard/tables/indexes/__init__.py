"""Indexes of a table: create, list, describe, drop and prewarm them; build them in child processes."""
