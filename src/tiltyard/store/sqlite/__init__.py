"""The catalog in SQLite: readers, one writer with group commit."""
