"""Access control in the catalog's database: principals, keys, roles, grants, policies."""
