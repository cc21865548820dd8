"""How a commit reaches a managed table: through the catalog's records, not straight to storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace


@dataclass(frozen=True, slots=True)
class Road:
    """What Lance asks and tells on the way: a namespace in process, and the name of the table in it."""

    client: LanceNamespace
    table_id: tuple[str, ...]
