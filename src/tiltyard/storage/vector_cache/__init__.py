"""Search vectors of tables in memory: an index that is derived from a table's rows, and exact to each version."""
