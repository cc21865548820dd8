"""Limits of what callers send and hold: connections, requests a second, queries at once, sizes of requests."""
