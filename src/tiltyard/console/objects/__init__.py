"""Pages that create, change, drop and bring back namespaces, tables and indexes."""
