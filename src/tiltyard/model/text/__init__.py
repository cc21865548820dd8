"""Texts that people write or read: ids and grantees, YAML, names and literals of SQL."""
