"""Arrow that comes from clients: read only after what it would become in memory was bounded."""
