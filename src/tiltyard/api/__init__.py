"""HTTP: from the wire to an operation and back. No other package knows of it."""
