"""What a task says when it would fail again. Tasks import this and not the namespace's errors: those cost a second."""

from __future__ import annotations

import re

_INSIDE = re.compile(r",? (?:location: )?/\S*\.rs:\d+:\d+|\n\s*Debug source:.*", re.DOTALL)
_PREFIXES = re.compile(r"^(?:(?:Invalid user input|Namespace error|Schema error|LanceError\(\w+\)|External error): )+")


class RefusedError(Exception):
    """The job cannot succeed as it was asked for; the message says what to change. Never retried."""


def clean_message(error: BaseException) -> str:
    """What Lance or an object store says, without places in its code; no full stop at the end."""
    return _PREFIXES.sub("", _INSIDE.sub("", str(error))).strip().rstrip(".,")
