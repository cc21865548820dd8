"""Soak test: writers and readers keep journals while servers fail, and a checker compares them with the storage."""
