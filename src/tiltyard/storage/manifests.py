"""Manifests: how their files are named, and what one has to hold.

Follows Lance's table format: a manifest file ends with the position of its protobuf message, a format version and the
magic `LANC`; field 3 of the message is the table's version, field 18 each place outside its folder that has files of
it, whose own field 4 is where that is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from lance_namespace.errors import InvalidInputError

from tiltyard.ids import MAIN_BRANCH

LAST_VERSION = 2**64 - 1
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_VERSION_FIELD = 3
_BASES_FIELD = 18
_BASE_PATH_FIELD = 4
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


def check_manifest(content: bytes, version: int) -> list[str]:
    """The places outside the table's folder that a manifest names.

    Raises InvalidInputError unless this is a whole manifest of that version.
    """
    found = _read(content)
    if found is None:
        raise InvalidInputError("The staged file is no Lance manifest: nothing was committed.")
    if found.version != version:
        raise InvalidInputError(
            f"The staged manifest is of version {found.version}, not {version}: nothing was committed."
        )
    return found.bases


@dataclass(frozen=True, slots=True)
class _Manifest:
    version: int
    bases: list[str]


def _read(content: bytes) -> _Manifest | None:
    """What a manifest says; None if it is none."""
    try:
        position, _, _, magic = _FOOTER.unpack(content[-_FOOTER.size :])
        (length,) = _LENGTH.unpack_from(content, position)
        message = content[position + _LENGTH.size : -_FOOTER.size]
        if magic != _MAGIC or len(message) != length:
            return None
        version, bases = 0, []
        for field, value in _fields(message):
            if field == _VERSION_FIELD and isinstance(value, int):
                version = value
            elif field == _BASES_FIELD and isinstance(value, bytes):
                bases += [
                    path.decode() for key, path in _fields(value) if key == _BASE_PATH_FIELD and isinstance(path, bytes)
                ]
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
        return None
    return _Manifest(version, bases)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes | None]]:
    """The fields of a protobuf message: their numbers, and the values of integers and texts.

    The message is read to its end, so that a torn one is noticed: raises IndexError.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield field, value
        elif wire == 2:
            length, at = _varint(message, at)
            yield field, message[at : at + length]
            at += length
        else:
            at += _FIXED_WIDTHS.get(wire, len(message) + 1)
            yield field, None
    if at != len(message):
        raise IndexError("the message ends early")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
