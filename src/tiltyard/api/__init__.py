"""HTTP: from the wire to an operation and back. The only place that knows of it."""
