"""A table of a lake: read, written and changed, with what its methods take and return."""
