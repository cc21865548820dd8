"""Content of audit records: the objects that a request names, its context without secrets, and the wire format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiltyard.model.ids import Id
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.store import AuditRecord

MAX_CONTEXT_ENTRIES = 32
MAX_CONTEXT_LENGTH = 256
MAX_TEXT_LENGTH = 2048
REDACTED = "…"
"""Stands for what was cut off or redacted."""

_SECRET_NAME = re.compile(r"auth|token|secret|passw|credential|cookie|signature|key", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"tilt_[0-9a-f]{8}|eyJ[\w-]{8}|(?:AKIA|ASIA)[0-9A-Z]{12}|-----BEGIN|[?&]sig=|ya29\.")
"""API keys of this server, tokens and keys of clouds, whatever the name of their entry."""


def redact_context(entries: Mapping[str, str]) -> dict[str, str]:
    """Return the context entries to record: values that may be secret are redacted, by their name or their look.

    At most MAX_CONTEXT_ENTRIES are returned, names and values cut to MAX_CONTEXT_LENGTH characters.
    """
    redacted: dict[str, str] = {}
    for name, value in list(entries.items())[:MAX_CONTEXT_ENTRIES]:
        short_value = _truncate(value)
        is_secret = _SECRET_NAME.search(name) is not None or _SECRET_VALUE.search(short_value) is not None
        redacted[sanitize_text(_truncate(name))] = REDACTED if is_secret else sanitize_text(short_value)
    return redacted


def _truncate(text: str, length: int = MAX_CONTEXT_LENGTH) -> str:
    return text if len(text) <= length else text[: length - 1] + REDACTED


def sanitize_text(text: str) -> str:
    """Return a caller's text as every database and terminal takes it: without control characters, not too long."""
    short = _truncate(text, MAX_TEXT_LENGTH)
    return short if short.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in short)


def object_ids(request: Any) -> tuple[str, ...]:
    """Return the ids that a request names, as messages show them, without duplicates.

    These are its own id, the new one of a rename or the like, and those of its entries.
    """
    if request is None:
        return ()
    return tuple(dict.fromkeys(sanitize_text(str(Id(names))) for names in _ids(request)))


def _ids(request: Any) -> Iterator[list[str]]:
    names = getattr(request, "id", None)
    if names is not None:
        yield names
    if (new := _new_id(request, names or [])) is not None:
        yield new
    for item in getattr(request, "entries", None) or ():
        yield from _ids(item)
    for item in getattr(request, "operations", None) or ():
        for field in getattr(item, "__struct_fields__", ()):
            yield from _ids(getattr(item, field))


def _new_id(request: Any, names: list[str]) -> list[str] | None:
    """Return the id that the request gives an object in the place of its own, or None."""
    namespace, name = getattr(request, "new_namespace_id", None), getattr(request, "new_table_name", None)
    if name is not None:
        return [*(names[:-1] if namespace is None else namespace), name]
    return namespace


def to_entry(record: AuditRecord) -> models.AuditEntry:
    """Convert a record to the form that clients, files and webhooks get."""
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
