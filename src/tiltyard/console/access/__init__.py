"""Who may do what: principals, keys, roles, grants and policies; what a principal sees of a table; the audit."""
