"""The server's page: its figures over time, its processes, work that waits, storage by namespace, and garbage."""
