"""The error of work that cannot be done as it was requested, however often it is tried.

Spark's tasks import this and not the namespace's errors: importing those takes a second.
"""


class RefusedError(Exception):
    """The work cannot succeed as requested; the message says what to change. Spark does not retry it."""
