"""Protections of the server, namespaces and tables: from deletion and changes, legal holds, needs of approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.declarations.kind import Target
from tiltyard.declarations.kinds.about_objects import AboutObjects, object_fields
from tiltyard.model.text.typed_ids import format_id

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

_APPROVAL = "approval"
_WITHOUT_NAME = "A file has no name for it: the root namespace, or a table that was dropped."


class Protected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The reason of each protection, "" without one; of the need of approval by operation."""

    deletion: str | None = None
    hold: str | None = None
    read_only: str | None = None
    approval: dict[str, str] = {}


class Protections(AboutObjects[Protected]):
    """Protections, by the object that they are set on. They are set last, and lifted first."""

    section = "protections"
    noun = "protections of"
    declaration = Protected
    parts = frozenset({("approval",)})
    is_deleted_first = True
    is_lessened_first = True

    def read(self, catalog: CatalogContent) -> dict[str, Protected]:
        """Return all protections, for an administrator."""
        found: dict[str, dict[str, Any]] = {}
        for entry in catalog.entries(self.section, "ListProtections", "protections"):
            kind, path = entry["object_kind"], entry.get("id")
            if kind != "server" and not path:
                catalog.leave_out(self.section, kind, _WITHOUT_NAME)
                continue
            fields = found.setdefault(f"{kind}:{format_id(path)}" if path else kind, {})
            reason = entry.get("reason") or ""
            if entry["kind"] == _APPROVAL:
                fields.setdefault(_APPROVAL, {})[entry["operation"]] = reason
            else:
                fields[entry["kind"]] = reason
        protections = {name: Protected(**fields) for name, fields in found.items()}
        return {name: protections[name] for name in self.order(protections)}

    def facts(self, declared: Protected) -> Mapping[str, Any]:
        """Return the reasons by kind."""
        facts = super().facts(declared)
        return facts if declared.approval else {kind: reason for kind, reason in facts.items() if kind != _APPROVAL}

    def create(self, target: Target, name: str, declared: Protected) -> None:
        """Set all that is declared."""
        for kind, reason in self.facts(declared).items():
            _set(target, name, kind, reason)

    def change(
        self, target: Target, name: str, before: Protected, after: Protected, differences: Sequence[Difference]
    ) -> None:
        """Set what differs, and lift what is not declared."""
        for each in differences:
            kind, *operation = each.path
            if each.removes:
                _lift(target, name, kind, operation or list(each.before))
            else:
                _set(target, name, kind, {operation[0]: each.after} if operation else each.after)

    def delete(self, target: Target, name: str, declared: Protected) -> None:
        """Lift all protections of an object."""
        for kind in self.facts(declared):
            _lift(target, name, kind, list(declared.approval))


def _set(target: Target, name: str, kind: str, reasons: str | Mapping[str, str]) -> None:
    """Set one protection for its reason, or the need of approval for those of its operations."""
    if isinstance(reasons, str):
        target.calls.call("SetProtection", **object_fields(name), kind=kind, reason=reasons)
        return
    for operation, reason in reasons.items():
        target.calls.call("SetProtection", **object_fields(name), kind=kind, operations=[operation], reason=reason)


def _lift(target: Target, name: str, kind: str, operations: Sequence[str]) -> None:
    needing: dict[str, Any] = {"operations": list(operations)} if kind == _APPROVAL else {}
    target.calls.call("LiftProtection", **object_fields(name), kind=kind, **needing)
