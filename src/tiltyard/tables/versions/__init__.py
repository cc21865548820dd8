"""Versions of a table: list and describe them, restore, tag, branch, clone."""
