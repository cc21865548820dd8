"""What takes the commits that Lance makes: a namespace in this process, and what it has to check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import LanceNamespaceError

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
    refusals: list[LanceNamespaceError] = field(default_factory=list)
    """Why nothing of a commit was recorded, where that is certain: Lance calls the outcome unknown then."""
    checked_appends: list[Any] = field(default_factory=list)
    """Appends that need no further check by the table's key (`tables.keys.checked_appends`)."""
    queued_appends: list[tuple[str, list[str]]] = field(default_factory=list)
    """A turn, and the ids of the queued appends that the commit brings: see the store's `queued_appends`."""
