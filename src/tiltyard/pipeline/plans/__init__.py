"""Pipelines of several steps: tables made of files or SQL, indexed, published together, tagged (docs/pipeline.md).

file → plan → rows of each table → (publication: versions, indexes) → one batch → tags
"""
