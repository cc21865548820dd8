"""Optimize: compact fragments, extend indexes, collect old versions."""
