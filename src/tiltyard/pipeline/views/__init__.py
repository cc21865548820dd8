"""Materialized views: find what changed since the last refresh, compute the rows that need it, and commit them once.

sources (pinned versions) → fragments added since → Spark SQL over their rows → a view's code and columns → Lance files
→ one commit, published together with the indexes
"""
