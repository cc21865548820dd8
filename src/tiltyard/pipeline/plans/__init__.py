"""Pipelines of several steps: tables of files or SQL, indexed, published together, tagged (docs/pipeline.md).

file → plan → rows of each table → publication (versions, indexes) in one batch → tags
"""
