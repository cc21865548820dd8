"""Indexes: create, list, describe, drop, prewarm; build them in processes of their own."""
