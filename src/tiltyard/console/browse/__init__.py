"""Pages to find a table: the first one, namespaces, the tree, and the search of the catalog."""
