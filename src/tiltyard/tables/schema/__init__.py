"""Schema of a table: its columns and their metadata, computed columns, materialized views, statistics."""
