"""What a task says when it would fail again. Tasks import this and not the namespace's errors: those cost a second."""

from __future__ import annotations


class RefusedError(Exception):
    """The job cannot succeed as it was asked for; the message says what to change. Never retried."""
