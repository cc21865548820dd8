"""Commands that look at a catalog, and the small changes: tags, names, restores."""
