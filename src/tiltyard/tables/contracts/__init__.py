"""Contracts of tables: their declaration, the checks of what a version brings and of incoming rows, and tests."""
