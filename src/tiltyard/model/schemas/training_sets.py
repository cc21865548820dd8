"""What tells the table of a training set: the set's manifest, JSON in the metadata of its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping

METADATA = b"tiltyard.training_set"
"""The metadata of a schema that has a set's manifest."""


def set_name(metadata: Mapping[bytes, bytes] | None) -> str | None:
    """Return the name of the training set that a schema is of; None for another schema."""
    try:
        manifest = json.loads((metadata or {})[METADATA])
    except (KeyError, ValueError):
        return None
    name = manifest.get("name") if isinstance(manifest, dict) else None
    return name if isinstance(name, str) else None
