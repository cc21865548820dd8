"""The catalog in SQLite: many readers, and one writer with group commit."""
