"""How a commit reaches a managed table: through the catalog's records, not straight to storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lance_namespace.errors import TableNotFoundError

Check = Callable[[int, Callable[[], bytes]], None]
"""Looks at a version that Lance has staged, and, if it calls for that, at its manifest; raises to have it withdrawn."""


@dataclass(frozen=True, slots=True)
class Road:
    """What Lance asks and tells on the way: a namespace in process, and the name of the table in it."""

    client: Any
    """What has the methods of a `LanceNamespace` that commits need."""
    table_id: tuple[str, ...]
    checks: list[Check] = field(default_factory=list)
    """What a version has to pass before it is recorded."""
    refusals: list[TableNotFoundError] = field(default_factory=list)
    """Why nothing of a commit was recorded, where that is sure: Lance calls the outcome unknown then."""
