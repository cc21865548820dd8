"""Streams: append or upsert what arrives in a folder or a topic, each row exactly once."""
