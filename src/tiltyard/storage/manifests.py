"""Manifests: how their files are named, and what one has to hold.

Follows Lance's table format: a manifest file ends with the position of its protobuf message, a format version and the
magic `LANC`; field 3 of the message is the table's version.
"""

from __future__ import annotations

import struct
from enum import StrEnum

from lance_namespace.errors import InvalidInputError

from tiltyard.ids import MAIN_BRANCH

LAST_VERSION = 2**64 - 1
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_VERSION_FIELD = 3
_FIXED_WIDTHS = {1: 8, 5: 4}


class NamingScheme(StrEnum):
    """How manifests are named: V1 by the version, V2 counting down, so that a listing begins with the latest."""

    V1 = "V1"
    V2 = "V2"


def manifest_name(version: int, scheme: NamingScheme) -> str:
    """The file's final name."""
    number = f"{LAST_VERSION - version:020}" if scheme is NamingScheme.V2 else str(version)
    return f"{number}.manifest"


def versions_folder(branch: str | None) -> str:
    """Where a branch's manifests lie, inside the table's folder."""
    return "_versions" if not branch or branch == MAIN_BRANCH else f"tree/{branch}/_versions"


def check_manifest(content: bytes, version: int) -> None:
    """Raise InvalidInputError unless this is a whole manifest of that version."""
    found = _version_of(content)
    if found is None:
        raise InvalidInputError("The staged file is no Lance manifest: nothing was committed.")
    if found != version:
        raise InvalidInputError(f"The staged manifest is of version {found}, not {version}: nothing was committed.")


def _version_of(content: bytes) -> int | None:
    """The version in a manifest; None if it is none."""
    try:
        position, _, _, magic = _FOOTER.unpack(content[-_FOOTER.size :])
        (length,) = _LENGTH.unpack_from(content, position)
        message = content[position + _LENGTH.size : -_FOOTER.size]
        return _read_field(message, _VERSION_FIELD) if magic == _MAGIC and len(message) == length else None
    except (struct.error, IndexError, OverflowError):
        return None


def _read_field(message: bytes, wanted: int) -> int | None:
    """A varint field of a protobuf message that is read to its end, so that a torn one is noticed."""
    at, found = 0, None
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            found = value if field == wanted else found
        elif wire == 2:
            length, at = _varint(message, at)
            at += length
        else:
            at += _FIXED_WIDTHS.get(wire, len(message) + 1)
    return found if at == len(message) else None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
