"""What protects a table or a namespace, for the pages that show it, and the kinds that their reader may set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiltyard.model.modes import ProtectionKind

if TYPE_CHECKING:
    from tiltyard.console.page import PageRequest

WORDS = {
    ProtectionKind.DELETION: "no deletion",
    ProtectionKind.HOLD: "legal hold",
    ProtectionKind.READ_ONLY: "read-only",
    ProtectionKind.APPROVAL: "approval",
}


def show_protections(page: PageRequest, object_kind: str) -> dict[str, Any]:
    """Return the values of protections.html; without protections where the reader may not ask."""
    listed = page.calls.attempt("ListProtections", object_kind=object_kind, id=list(page.path))
    protections = listed.protections if listed is not None else []
    own = [each.kind for each in protections if (each.object_kind, each.id) == (object_kind, list(page.path))]
    return {"protections": protections, "own_protections": own, "protection_words": WORDS}


def allowed_kinds(page: PageRequest) -> list[str]:
    """Return the kinds of protection that the reader may set on the table, and lift."""
    kinds = (ProtectionKind.DELETION, ProtectionKind.READ_ONLY, ProtectionKind.HOLD)
    id_ = list(page.path)
    return [kind for kind in kinds if page.calls.allows("SetProtection", object_kind="table", id=id_, kind=kind)]
