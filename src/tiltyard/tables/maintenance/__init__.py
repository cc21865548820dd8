"""Maintain tables: collect garbage, repair."""
