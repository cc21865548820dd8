"""Backups of a catalog with its tables, taken, verified and restored."""
