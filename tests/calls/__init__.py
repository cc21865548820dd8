"""Calls of operations by HTTP and in this process."""
