"""The catalog as code: what a file declares of a catalog, compared with what is there, and applied.

A client of the operations, with its caller's own rights. Each kind of object is a `Kind` (`kind`), listed in `kinds`.
"""
