"""The map: a table's vectors in two dimensions, coloured by a column."""
