"""Columns that are more than their type: computed ones, vectors, blobs."""
