"""Delete rows by a condition, in one commit."""
