"""Route Lance's commits to a managed table through the catalog's records, instead of straight to storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lance_namespace.errors import TableNotFoundError

Check = Callable[[int, Callable[[], bytes]], None]
"""Checks a version that Lance has staged and, by calling the function, its manifest; raises to have it withdrawn."""


@dataclass(frozen=True, slots=True)
class CommitRoute:
    """The in-process namespace that Lance commits to, and the table's id in it."""

    client: Any
    """Has the methods of a `LanceNamespace` that commits need."""
    table_id: tuple[str, ...]
    checks: list[Check] = field(default_factory=list)
    """Checks that a version has to pass before it is recorded."""
    refusals: list[TableNotFoundError] = field(default_factory=list)
    """Why nothing of a commit was recorded, where that is certain: Lance calls the outcome unknown then."""
