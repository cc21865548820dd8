"""Tasks of a copy of tables: one copies one version of a table, with its indexes, into a folder that has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import lance


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A table to copy: the location and the version of it, and the folder that the server has chosen for its copy."""

    source: str
    version: int
    target: str


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """Why a table could not be copied; None if it was."""

    error: str | None = None


def copy_part(storage: Mapping[str, str], part: CopyPart) -> CopyOutcome:
    """Copy a table's files. A retried task finds what one before has written, which is the same.

    One table that cannot be copied does not fail the others, so errors are the outcome.
    """
    options = dict(storage) or None
    try:
        source = lance.dataset(part.source, part.version, storage_options=options)
        source.deep_clone(part.target, part.version, storage_options=options)
    except (OSError, ValueError, RuntimeError) as error:
        if _has_table(part.target, options):
            return CopyOutcome()
        return CopyOutcome(str(error).splitlines()[0] if str(error) else type(error).__name__)
    return CopyOutcome()


def _has_table(location: str, options: Mapping[str, str] | None) -> bool:
    try:
        lance.dataset(location, storage_options=dict(options or {}) or None)
    except (OSError, ValueError, RuntimeError):
        return False
    return True
