"""What people type: ids (`library.books`; a name with a dot stands in double quotes), grantees and addresses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

_SEPARATORS = ".$"
"""A dot, or the delimiter of the specification, which jobs and requests take."""
MAX_SUGGESTIONS = 3


class TypedId(tuple[str, ...]):
    """An id that was typed, its names in order; without any, it is the root."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_id(self)


def parse_typed_id(text: str) -> TypedId:
    """Parse `a.b`, `a$b` or `a."b.c"`. Raises ValueError with a sentence for text that is no id."""
    if text in ("", *_SEPARATORS):
        return TypedId()
    names, name, position, is_quoted = [], "", 0, False
    while position < len(text):
        character = text[position]
        if is_quoted and character == '"':
            if text[position + 1 : position + 2] == '"':
                name, position = name + '"', position + 1
            else:
                is_quoted = False
        elif is_quoted or character not in f'{_SEPARATORS}"':
            name += character
        elif character == '"':
            is_quoted = True
        else:
            names.append(name)
            name = ""
        position += 1
    if is_quoted:
        raise ValueError(f"{text}: a quote is opened and not closed.")
    names.append(name)
    if "" in names:
        raise ValueError(f"{text}: a name is empty; write namespace.table.")
    return TypedId(names)


def format_id(names: Sequence[str]) -> str:
    """Format an id so that `parse_typed_id` reads it; the root is a dot."""
    return ".".join(format_name(name) for name in names) or "."


def format_name(name: str) -> str:
    """Format one name of an id, quoted where it has to be."""
    if any(character in name for character in f'{_SEPARATORS}"'):
        doubled = name.replace('"', '""')
        return f'"{doubled}"'
    return name


def suggest(name: str, existing: Iterable[str]) -> list[str]:
    """Return the names that are nearest to one that does not exist; none where none is near."""
    lowered = {other.lower(): other for other in existing}
    close = difflib.get_close_matches(name.lower(), lowered, MAX_SUGGESTIONS, 0.6)
    return [lowered[match] for match in close]


def is_server_address(uri: str) -> bool:
    """Return whether a URI is that of a server; all else is the root of a catalog in this process."""
    return uri.startswith(("http://", "https://"))


GRANTEE_KINDS = ("role", "group", "principal")


def parse_grantee(text: str) -> dict[str, Any]:
    """Parse `role:a`, or the name of a principal, into fields of a request."""
    kind, colon, name = text.partition(":")
    if colon and kind in GRANTEE_KINDS:
        return {"grantee_kind": kind, "grantee": name}
    return {"grantee_kind": "principal", "grantee": text}


def format_grantee(kind: str, name: str) -> str:
    """Format a grantee as `parse_grantee` reads it."""
    is_plain: bool = kind == "principal" and parse_grantee(name)["grantee"] == name
    return name if is_plain else f"{kind}:{name}"
