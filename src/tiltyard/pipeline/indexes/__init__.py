"""Index: train once, build segments in tasks, merge, commit."""
