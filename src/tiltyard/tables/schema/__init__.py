"""A table's schema: columns, computed columns, materialized views, statistics."""
