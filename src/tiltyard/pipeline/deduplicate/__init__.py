"""Deduplicate: say of each row which other row it is a duplicate of."""
