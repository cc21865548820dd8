"""Rejected rows as they are parked: lines of JSON, {"reason": …, "row": …}, in files of a folder."""

from __future__ import annotations

import json
from typing import Any

FOLDER = "_rejects"
"""The folder of a table for rows that its contract rejects."""
ROWS_PER_FILE = 10_000


def encode_reject(reason: str, row: Any) -> bytes:
    """Return a line of JSON; values that JSON cannot represent become text."""
    return json.dumps({"reason": reason, "row": row}, default=_to_text).encode() + b"\n"


def _to_text(value: Any) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
