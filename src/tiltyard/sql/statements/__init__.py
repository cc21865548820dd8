"""Statements before they are planned: checked, their arithmetic made exact, those on materialized views parsed."""
