"""Arrow Flight and Flight SQL over gRPC: the protocol in which clients send SQL and read its rows."""
