"""Streams into tables: folders, topics, change events."""
