"""Server processes: from settings to a served socket, their supervision, and a clean stop."""
