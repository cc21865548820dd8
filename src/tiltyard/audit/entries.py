"""What a record says: the objects that a call named, its context without secrets, and the form that others read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiltyard.model.ids import display
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.store import AuditRecord

MOST_ENTRIES = 32
LONGEST_ENTRY = 256
LONGEST_OBJECT = 2048
HIDDEN = "…"
"""Stands for what was left out."""

_SECRET = re.compile(r"auth|token|secret|passw|credential|cookie|signature|key", re.IGNORECASE)
_LOOKS_SECRET = re.compile(r"tilt_[0-9a-f]{8}|eyJ[\w-]{8}|(?:AKIA|ASIA)[0-9A-Z]{12}|-----BEGIN|[?&]sig=|ya29\.")
"""Keys of this server, tokens, keys of clouds: whatever the name of the entry that holds one."""


def safe_context(entries: Mapping[str, str]) -> dict[str, str]:
    """Context entries that may be kept: none that sounds or looks like a secret, and none of any length."""
    kept: dict[str, str] = {}
    for name, value in list(entries.items())[:MOST_ENTRIES]:
        shown = _short(value)
        secret = _SECRET.search(name) is not None or _LOOKS_SECRET.search(shown) is not None
        kept[printable(_short(name))] = HIDDEN if secret else printable(shown)
    return kept


def _short(text: str, longest: int = LONGEST_ENTRY) -> str:
    return text if len(text) <= longest else text[: longest - 1] + HIDDEN


def printable(text: str) -> str:
    """A text of a caller, as every database and terminal takes it: no control characters, and of no great length."""
    kept = _short(text, LONGEST_OBJECT)
    return kept if kept.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in kept)


def named_objects(request: Any) -> tuple[str, ...]:
    """The ids that a request names, as messages show them, each once: its own, a new name, those of its entries."""
    if request is None:
        return ()
    return tuple(dict.fromkeys(printable(display(tuple(names))) for names in _ids(request)))


def _ids(request: Any) -> Iterator[list[str]]:
    names = getattr(request, "id", None)
    if names is not None:
        yield names
    if (new := _new_id(request, names or [])) is not None:
        yield new
    for one in getattr(request, "entries", None) or ():
        yield from _ids(one)
    for one in getattr(request, "operations", None) or ():
        for field in getattr(one, "__struct_fields__", ()):
            yield from _ids(getattr(one, field))


def _new_id(request: Any, names: list[str]) -> list[str] | None:
    """The name that an object has from then on, where the request gives one."""
    space, name = getattr(request, "new_namespace_id", None), getattr(request, "new_table_name", None)
    if name is not None:
        return [*(names[:-1] if space is None else space), name]
    return space


def entry(record: AuditRecord) -> models.AuditEntry:
    """A record as clients, files and webhooks see it."""
    return models.AuditEntry(
        at_millis=record.at,
        record_id=record.id,
        principal=record.principal,
        method=record.method,
        operation=record.operation,
        object=record.object,
        outcome=record.outcome,
        status=record.status,
        code=record.code,
        request_id=record.request_id,
        address=record.address,
        duration_micros=record.duration_micros,
        context=dict(record.context) or None,
    )
