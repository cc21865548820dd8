"""Jobs: those of the catalog, one of them as it runs, and forms that start new ones."""
