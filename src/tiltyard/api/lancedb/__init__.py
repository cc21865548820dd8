"""lancedb's remote protocol, translated to and from the specification's requests and responses."""
