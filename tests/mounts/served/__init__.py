"""Mounts through a running server, by the clients that people have."""
