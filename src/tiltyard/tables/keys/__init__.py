"""Enforced primary keys: their declaration, and the check of every commit that brings rows."""
