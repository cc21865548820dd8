"""Backfill: compute the values of a column, fragment by fragment."""
