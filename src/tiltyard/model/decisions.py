"""What is asked of services outside that decide about requests, and what they have decided, as requests carry it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tiltyard.model.principals import OPERATOR, SERVER, Principal, Privilege, privilege_names

MAX_NOTES = 64
"""Decisions of one request that its audit record is made from; the metrics count all."""
_UNASKED_METHODS = frozenset({SERVER.method, OPERATOR.method})


class DecisionOutcome(StrEnum):
    """How a question ended: `failed` where the service has not answered, or not as its protocol says."""

    ALLOWED = "allowed"
    DENIED = "denied"
    FAILED = "failed"


class ToldClassification(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an object, or one of its columns, is classified as, itself or by what it inherits."""

    key: str
    value: str
    column: str = ""


class AskedObject(msgspec.Struct, frozen=True, array_like=True):
    """An object that a request needs privileges on: `kind` is server, namespace or table; the server has no path.

    `classifications` are what it is classified as, where a service is told: by column, "" for the object itself.
    """

    kind: str
    path: tuple[str, ...]
    privileges: tuple[str, ...]
    classifications: tuple[ToldClassification, ...] = ()


class DecisionNote(msgspec.Struct, frozen=True, array_like=True):
    """What a service has decided of `number` objects; `id` is that of the (first) decision, if the service gives one.

    `seconds` is how long it was waited for, 0 for what was cached.
    """

    service: str
    outcome: DecisionOutcome
    number: int = 1
    id: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        number = "" if self.number == 1 else f" {self.number} objects"
        return f"{self.service} {self.outcome}{number}{' ' if self.id else ''}{self.id}"


class AskedOperation(msgspec.Struct, frozen=True, eq=False):
    """The operation that is asked about, and what is to be asked once its caller's rights were checked.

    `pending` is of a `principal`, the caller; None where each object is asked about at once, as for all others.
    """

    name: str
    pending: list[AskedObject] | None = None
    principal: Principal | None = None


def asked_object(kind: str, path: tuple[str, ...], privileges: int) -> AskedObject:
    """Return an object, and the privileges that are needed on it, as bits; `use` is left out beside others."""
    bits = privileges & ~Privilege.USE.value or Privilege.USE.value
    return AskedObject(kind, tuple(path), tuple(privilege_names(bits)))


def is_asked_about(principal: Principal) -> bool:
    """Return whether services are asked about a principal: not about the server itself, or commands on its database."""
    return principal.method not in _UNASKED_METHODS


def add_note(notes: list[DecisionNote], note: DecisionNote) -> None:
    """Add a note to those of a request: what was denied or has failed comes first, and is never left out."""
    if note.outcome is not DecisionOutcome.ALLOWED:
        notes.insert(0, note)
        del notes[MAX_NOTES:]
    elif len(notes) < MAX_NOTES:
        notes.append(note)
