"""Files that a browser sends: received, looked at, and written into a table."""
