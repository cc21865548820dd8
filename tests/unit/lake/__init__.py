"""Unit tests of the worker."""
