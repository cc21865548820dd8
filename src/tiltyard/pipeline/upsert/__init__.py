"""Upsert: replace rows by key and insert new ones, in one commit."""
