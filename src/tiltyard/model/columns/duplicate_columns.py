"""Columns that the job `deduplicate` fills: of which row a row is a duplicate, and the signatures it was found by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROPERTY = "tiltyard.deduplicate"
"""The metadata of both columns' fields: the `on` and the key of the job that made them, as JSON."""
SIGNATURE_SUFFIX = "_signature"
"""What the name of the column of signatures has after that of the other one."""


def is_filled_by_deduplicate(metadata: Mapping[Any, Any] | None) -> bool:
    """Return whether the job made a column, by its field's metadata: writers leave it out, and it is null then."""
    return PROPERTY.encode() in (metadata or {})
