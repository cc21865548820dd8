"""Mounts and publications in the catalog's database, and moves of tables between catalogs."""
