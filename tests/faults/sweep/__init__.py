"""Sweeps: an operation is killed at every one of its writes to database and disk, and then does what it promises.

`python -m tests.faults.sweep` runs all of them, and lists the writes of the source that none has reached.
"""
