"""What namespaces, tables and columns are classified as, as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiltyard.model.text.typed_ids import format_id


@dataclass(frozen=True, slots=True)
class Classification:
    """A key and a value of a namespace, a table, or a column of it.

    `inherited_from` is the id of what passes it on ("" for an object that you cannot see), with the column behind a
    space; None of what is set on the object itself. `is_dropped` says that the column is in no version but older ones.
    """

    object: str
    column: str | None
    key: str
    value: str
    inherited_from: str | None = None
    is_dropped: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Classification:
        """Return a classification of a response."""
        origin = entry.get("inherited_from")
        source = None
        if origin is not None:
            source = " ".join(filter(None, (format_id(origin.get("id") or ()), origin.get("column"))))
        name = format_id(entry.get("id") or ())
        return cls(name, entry.get("column"), entry["key"], entry["value"], source, bool(entry.get("is_dropped")))
