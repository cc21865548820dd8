"""What protects a table or a namespace of a lake: `table.protections.set("hold", reason="case 4711")`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.calls.caller import Caller

ProtectionKind = Literal["deletion", "hold", "read_only"]


@dataclass(frozen=True, slots=True)
class Protection:
    """A protection: its kind, why and by whom it was set, and when; on which object, "server" for the server."""

    kind: str
    on: str
    reason: str
    set_by: str
    set_at: datetime


@dataclass(frozen=True, slots=True)
class Protections:
    """The protections of one object; they hold for all below it."""

    calls: Caller
    object_kind: str
    path: tuple[str, ...]

    def set(self, kind: ProtectionKind, reason: str = "") -> None:
        """Protect it: `deletion`, `hold` (a legal hold, which needs a reason) or `read_only`.

        Raises PermissionDeniedError, InvalidInputError, TableNotFoundError, NamespaceNotFoundError.
        """
        self.calls.call("SetProtection", **self._fields, kind=kind, reason=reason or None)

    def lift(self, kind: ProtectionKind) -> None:
        """Lift a protection that is set on it itself. Raises PermissionDeniedError, InvalidInputError (none is)."""
        self.calls.call("LiftProtection", **self._fields, kind=kind)

    def list(self) -> list[Protection]:
        """Return what protects it, its own protections first, then inherited ones. Raises TableNotFoundError."""
        return [_read(entry) for entry in self.calls.call("ListProtections", **self._fields)["protections"]]

    @property
    def _fields(self) -> dict[str, Any]:
        return {"object_kind": self.object_kind, "id": list(self.path)}


def _read(entry: Mapping[str, Any]) -> Protection:
    path = "$".join(entry.get("id") or ())
    on = entry["object_kind"] + (f" {path}" if path else "")
    set_at = datetime.fromtimestamp(entry["set_at_millis"] / 1000, UTC)
    return Protection(entry["kind"], on, entry.get("reason") or "", entry["set_by"], set_at)
