"""Versions of a table: their timeline, two of them compared, tags, branches, and restoring one."""
