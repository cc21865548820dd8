"""Catalogs as code, by commands and Python, on servers."""
