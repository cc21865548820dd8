"""What a table's upkeep does and when: the settings, and the table's own properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.config import Settings

PREFIX = "tiltyard.upkeep"
SWITCH = PREFIX
UNINDEXED_ROWS = f"{PREFIX}.unindexed_rows"
SMALL_FRAGMENTS = f"{PREFIX}.small_fragments"
KEEP_VERSIONS_DAYS = f"{PREFIX}.keep_versions_days"

MOST_UNINDEXED, MOST_SMALL = 1000, 16

_BOUNDS = {UNINDEXED_ROWS: (1, 1 << 50), SMALL_FRAGMENTS: (2, 1 << 30), KEEP_VERSIONS_DAYS: (0.01, 36500)}


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """When a table needs upkeep: from so many rows that an index lacks, and from so many small fragments; and for how
    many days a version stays once it is no longer the latest.
    """

    keep_versions_days: float
    enabled: bool = True
    unindexed_rows: int = MOST_UNINDEXED
    small_fragments: int = MOST_SMALL


def is_upkeep_property(name: str) -> bool:
    """Return whether a property is one of upkeep's, which clients may set though its name begins with `tiltyard.`."""
    return name == SWITCH or name in _BOUNDS


def upkeep_options(settings: Settings, properties: Mapping[str, str]) -> UpkeepOptions:
    """Return the options of a table. Raises InvalidInputError for a property that is none of its values."""
    switch = properties.get(SWITCH, "on").lower()
    if switch not in ("on", "off"):
        raise InvalidInputError(f"The property {SWITCH} is on or off, not {properties[SWITCH]!r}.")
    return UpkeepOptions(
        keep_versions_days=_number(properties, KEEP_VERSIONS_DAYS, settings.keep_versions_days),
        enabled=switch == "on",
        unindexed_rows=int(_number(properties, UNINDEXED_ROWS, MOST_UNINDEXED)),
        small_fragments=int(_number(properties, SMALL_FRAGMENTS, MOST_SMALL)),
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
