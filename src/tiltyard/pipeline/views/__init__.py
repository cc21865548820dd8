"""Materialized views: what changed since they were made, which rows that asks for, and the code that makes them.

sources (pinned versions) → what came in since → Spark SQL over those rows → code → Lance files → one commit
"""
