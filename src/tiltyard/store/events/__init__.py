"""Events: what has changed in the catalog, in order, and who has been told."""
