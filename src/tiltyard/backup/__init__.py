"""Back up a catalog with the files of its tables, verify a backup, and restore one.

`target` is a folder or object store with backups, `points` are the backups in it, `selection` says which files of a
table belong to one; `create`, `verify`, `restore` and `prune` are what is done with them.
"""
