"""When a table needs upkeep: the thresholds, and the table's own properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "tiltyard.upkeep"
SWITCH = PREFIX
UNINDEXED_ROWS = f"{PREFIX}.unindexed_rows"
SMALL_FRAGMENTS = f"{PREFIX}.small_fragments"
KEEP_VERSIONS_DAYS = f"{PREFIX}.keep_versions_days"

SMALL_FRAGMENT_ROWS = 100_000
"""A fragment with fewer rows is small, as lancedb counts them: with others it is worth a compaction."""
FULL_FRAGMENT_ROWS = 1 << 20
"""Rows of the fragments that come of compacting a table as a whole: what Lance writes into one, too."""
MAX_UNINDEXED_ROWS = 1000
"""Rows that an index may lack: searches scan them."""
MAX_SMALL_FRAGMENTS = 16
"""Small fragments from which on they are joined."""
DELETED_SHARE = 0.2
"""The share of a fragment's rows from which on its deleted rows are worth rewriting it."""

_BOUNDS = {UNINDEXED_ROWS: (1, 1 << 50), SMALL_FRAGMENTS: (2, 1 << 30), KEEP_VERSIONS_DAYS: (0.001, 36500)}


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """When a table needs upkeep: from so many rows that an index lacks, and from so many small fragments; and for how
    many days a version stays once it is no longer the latest.
    """

    keep_versions_days: float
    enabled: bool = True
    unindexed_rows: int = MAX_UNINDEXED_ROWS
    small_fragments: int = MAX_SMALL_FRAGMENTS


def is_upkeep_property(name: str) -> bool:
    """Return whether a property is one of upkeep's, which clients may set though its name begins with `tiltyard.`."""
    return name == SWITCH or name in _BOUNDS


def upkeep_options(properties: Mapping[str, str], keep_versions_days: float) -> UpkeepOptions:
    """Return the options of a table; `keep_versions_days` is for one that has no such property.

    Raises InvalidInputError for a property that is none of its values.
    """
    switch = properties.get(SWITCH, "on").lower()
    if switch not in ("on", "off"):
        raise InvalidInputError(f"The property {SWITCH} is on or off, not {properties[SWITCH]!r}.")
    return UpkeepOptions(
        keep_versions_days=_number(properties, KEEP_VERSIONS_DAYS, keep_versions_days),
        enabled=switch == "on",
        unindexed_rows=int(_number(properties, UNINDEXED_ROWS, MAX_UNINDEXED_ROWS)),
        small_fragments=int(_number(properties, SMALL_FRAGMENTS, MAX_SMALL_FRAGMENTS)),
    )


def _number(properties: Mapping[str, str], name: str, default: float) -> float:
    if (text := properties.get(name)) is None:
        return default
    least, most = _BOUNDS[name]
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InvalidInputError(f"The property {name} is a number from {least} to {most}, not {text!r}.")
    return number
