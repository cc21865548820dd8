"""The web console: pages rendered on the server, at `/console` beside the operations that they call."""
