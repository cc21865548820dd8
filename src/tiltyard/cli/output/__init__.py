"""What a command prints: rows and records in every format, and progress."""
