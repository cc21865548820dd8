"""Manifests: how their files are named, and what one has to hold.

Follows Lance's table format: a manifest file ends with the position of its protobuf message, a format version and the
magic `LANC`; field 1 of the message is each column, whose own field 2 is its name, 3 its id, 4 the id of the one
that it is in (-1 for none) and 10 each pair of its metadata,
field 2 each fragment, whose own field 2 is each of its data files (1 its path, 7 the place outside, if it is in one)
and 3 its file of deletions (1 its kind, 2 and 3 what it is named by, 7 likewise), field 3 the table's version, field 6
where in the file its indices are (1 the id, 9 the place outside, 10 each file), field 12 the file of its transaction,
field 18 each place outside its folder that has files of it, whose own field 4 is where that is, and field 23 where in
the file the transaction is, if it is there. Such a part of the file begins with its length, of four bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import TypeAlias
from urllib.parse import quote
from uuid import UUID

from lance_namespace.errors import InvalidInputError

from tiltyard.model.computed_columns import PREFIX
from tiltyard.model.ids import MAIN_BRANCH

LAST_VERSION = 2**64 - 1
_V2_DIGITS = 20
LONGEST_NAME = 255
"""Bytes of a file's name, on any disk."""
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_COLUMNS_FIELD = 1
_NAME_FIELD = 2
_ID_FIELD = 3
_PARENT_FIELD = 4
_NO_PARENT = 2**64 - 1
"""-1, as protobuf writes it."""
_METADATA_FIELD = 10
_FRAGMENTS_FIELD = 2
_FILES_FIELD = 2
_PATH_FIELD = 1
_BASE_FIELD = 7
_DELETIONS_FIELD = 3
_FRAGMENT_ID_FIELD = 1
_BITMAP_FIELD, _READ_FIELD, _OWN_FIELD = 1, 2, 3
_INDICES_FIELD = 6
_INDEX_FIELD = 1
_UUID_FIELD, _INDEX_BASE_FIELD, _INDEX_FILES_FIELD = 1, 9, 10
_VERSION_FIELD = 3
_TRANSACTION_FIELD, _OWN_TRANSACTION_FIELD = 12, 23
_BASES_FIELD = 18
_BASE_PATH_FIELD = 4
_MOST_FIELDS = 200_000
"""Fields of a manifest besides fragments: columns, pairs of metadata, places outside."""
_FIXED_WIDTHS = {1: 8, 5: 4}


FINAL = re.compile(r"^d?\d+\.manifest$")
"""A manifest's final name; that of a detached version, which is in no line of versions, begins with a d."""


def is_detached(path: str) -> bool:
    """Whether a manifest is that of a detached version."""
    name = path.rpartition("/")[2]
    return name.startswith("d") and FINAL.match(name) is not None


class NamingScheme(StrEnum):
    """How manifests are named: V1 by the version, V2 counting down, so that a listing begins with the latest."""

    V1 = "V1"
    V2 = "V2"


def scheme_of(path: str) -> NamingScheme:
    """How a manifest is named, staged or final: V2 gives a number all of its digits."""
    number = path.rpartition("/")[2].partition(".")[0]
    return NamingScheme.V2 if len(number) == _V2_DIGITS or not number.isdigit() else NamingScheme.V1


def manifest_name(version: int, scheme: NamingScheme) -> str:
    """The file's final name."""
    number = f"{LAST_VERSION - version:0{_V2_DIGITS}}" if scheme is NamingScheme.V2 else str(version)
    return f"{number}.manifest"


def newest_manifest(names: Iterable[str]) -> str | None:
    """The name of the latest version's manifest among the names in a folder of versions; None without one."""
    versions = {_version_of(name): name for name in names if FINAL.match(name) and not is_detached(name)}
    return versions[max(versions)] if versions else None


def _version_of(name: str) -> int:
    number = int(name.partition(".")[0])
    return LAST_VERSION - number if scheme_of(name) is NamingScheme.V2 else number


def versions_folder(branch: str | None) -> str:
    """Where a branch's manifests lie, inside the table's folder."""
    return "_versions" if not branch or branch == MAIN_BRANCH else f"tree/{branch}/_versions"


Code: TypeAlias = frozenset[tuple[bytes, bytes]]
"""What one column declares of code, as pairs of its metadata."""

_CODE = PREFIX.encode()


@dataclass(slots=True)
class Manifest:
    """What a manifest says, as far as it matters here.

    `bases` are the places outside the table's folder that it names, `declared` the code that its columns declare,
    `quoted` the names of columns that have a backtick, which Lance finds no column by,
    `transaction_file` the file below _transactions that has its transaction, which nobody reads where it is in the
    manifest, too (`has_transaction`).
    """

    version: int = 0
    transaction_file: str = ""
    has_transaction: bool = False
    bases: list[str] = field(default_factory=list)
    declared: list[Code] = field(default_factory=list)
    quoted: list[str] = field(default_factory=list)


def check_manifest(content: bytes, version: int) -> Manifest:
    """What a manifest says.

    Raises InvalidInputError unless this is a whole manifest of that version.
    """
    found = _read(content)
    if found is None:
        raise InvalidInputError("The staged file is no Lance manifest: nothing was committed.")
    if found.version != version:
        raise InvalidInputError(
            f"The staged manifest is of version {found.version}, not {version}: nothing was committed."
        )
    return found


def _read(content: bytes) -> Manifest | None:
    """What a manifest says; None if it is none."""
    found = Manifest()
    try:
        position, _, _, magic = _FOOTER.unpack(content[-_FOOTER.size :])
        (length,) = _LENGTH.unpack_from(content, position)
        message = content[position + _LENGTH.size : -_FOOTER.size]
        if magic != _MAGIC or len(message) != length:
            return None
        for count, (key, value) in enumerate(_fields(message, without=_FRAGMENTS_FIELD)):
            if count > _MOST_FIELDS:
                return None
            if isinstance(value, bytes):
                _take_text(found, key, value)
            elif key == _VERSION_FIELD and isinstance(value, int):
                found.version = value
            elif key in (_INDICES_FIELD, _OWN_TRANSACTION_FIELD) and isinstance(value, int):
                found.has_transaction |= key == _OWN_TRANSACTION_FIELD
                if not _has_section(content, value):
                    return None
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
        return None
    return found


def _take_text(found: Manifest, key: int, value: bytes) -> None:
    """Note what a field of a manifest says that is no number. Raises IndexError, UnicodeDecodeError."""
    if key == _BASES_FIELD:
        found.bases += [path.decode() for path in _texts(value, _BASE_PATH_FIELD)]
    elif key == _COLUMNS_FIELD:
        if _CODE in value:  # few do
            found.declared.append(_code(value))
        if b"`" in value:
            found.quoted += _quoted(value)
    elif key == _TRANSACTION_FIELD:
        found.transaction_file = value.decode()


def _has_section(content: bytes, position: int) -> bool:
    """Whether a part of the file lies in it, whose length comes before it. Raises struct.error."""
    length: int = _LENGTH.unpack_from(content, position)[0]
    return position + _LENGTH.size + length <= len(content)


def column_ids(content: bytes) -> frozenset[int]:
    """The ids of all columns, inner ones too, of a manifest that Lance staged in this process: they come first."""
    (position,) = struct.unpack_from("<Q", content, len(content) - _FOOTER.size)
    message = content[position + _LENGTH.size : -_FOOTER.size]
    columns = (value for key, value in takewhile(lambda pair: pair[0] == _COLUMNS_FIELD, _fields(message)))
    return frozenset(_id(column) for column in columns if isinstance(column, bytes))


def needed_files(content: bytes) -> list[str]:
    """The files that a whole manifest needs of the folder of its table or branch: of data, deletions and indices."""
    (position,) = struct.unpack_from("<Q", content, len(content) - _FOOTER.size)
    message = content[position + _LENGTH.size : -_FOOTER.size]
    needed = [path for part in _texts(message, _FRAGMENTS_FIELD) for path in _files_of(part)]
    section = dict(_fields(message)).get(_INDICES_FIELD)
    if isinstance(section, int):
        (length,) = _LENGTH.unpack_from(content, section)
        indices = content[section + _LENGTH.size : section + _LENGTH.size + length]
        needed += [path for index in _texts(indices, _INDEX_FIELD) for path in _files_of_index(index)]
    return needed


def _files_of(fragment: bytes) -> Iterator[str]:
    """The files of data, and of deletions, that a fragment has in the folder of its table or branch."""
    for file in map(dict, map(_fields, _texts(fragment, _FILES_FIELD))):
        path = file[_PATH_FIELD]
        if _BASE_FIELD not in file and isinstance(path, bytes):
            yield f"data/{path.decode()}"
    for deletions in map(dict, map(_fields, _texts(fragment, _DELETIONS_FIELD))):
        if _BASE_FIELD not in deletions:
            read, own = _number(deletions, _READ_FIELD), _number(deletions, _OWN_FIELD)
            kind = "bin" if _number(deletions, _BITMAP_FIELD) else "arrow"
            yield f"_deletions/{_number(dict(_fields(fragment)), _FRAGMENT_ID_FIELD)}-{read}-{own}.{kind}"


def _files_of_index(index: bytes) -> Iterator[str]:
    """The files that an index has there, as far as its metadata lists them."""
    found = dict(_fields(index))
    uuid, base = found.get(_UUID_FIELD), found.get(_INDEX_BASE_FIELD)
    if base is None and isinstance(uuid, bytes):
        folder = UUID(bytes=next(_texts(uuid, _UUID_FIELD)))
        for file in _texts(index, _INDEX_FILES_FIELD):
            yield f"_indices/{folder}/{next(_texts(file, _PATH_FIELD)).decode()}"


def branch_reference(branch: str) -> str:
    """The file that makes a branch one, inside the table's folder."""
    return f"_refs/branches/{quote(branch, safe='')}.json"


def _id(column: bytes) -> int:
    return _number(dict(_fields(column)), _ID_FIELD)


def _number(fields: Mapping[int, int | bytes | None], field: int) -> int:
    found = fields.get(field, 0)  # protobuf leaves a zero out
    assert isinstance(found, int)
    return found


def _texts(message: bytes, wanted: int) -> Iterator[bytes]:
    """The texts of one field of a message."""
    return (value for key, value in _fields(message) if key == wanted and isinstance(value, bytes))


def _code(column: bytes) -> Code:
    """What a column declares of code."""
    pairs = (dict(_fields(pair)) for pair in _texts(column, _METADATA_FIELD))
    told = ((pair.get(1, b""), pair.get(2, b"")) for pair in pairs)
    return frozenset(
        (name, text)
        for name, text in told
        if isinstance(name, bytes) and isinstance(text, bytes) and name.startswith(_CODE)
    )


def _quoted(column: bytes) -> list[str]:
    """The name of a column that is in no other, if it has a backtick. Raises UnicodeDecodeError."""
    told = dict(_fields(column))
    name = told.get(_NAME_FIELD)
    return [name.decode()] if isinstance(name, bytes) and b"`" in name and told.get(_PARENT_FIELD) == _NO_PARENT else []


def _fields(message: bytes, *, without: int = 0) -> Iterator[tuple[int, int | bytes | None]]:
    """The fields of a protobuf message: their numbers, and the values of integers and texts.

    Texts of one field may be left out: a manifest has thousands of fragments. The message is read to its end, so that
    a torn one is noticed: raises IndexError.
    """
    at, end, unwanted = 0, len(message), without << 3 | 2
    while at < end:
        if message[at] == unwanted:
            at = _behind(message, at)
            continue
        key, at = message[at], at + 1  # most numbers are of one byte, and a call costs more than all else here
        if key >= 0x80:
            key, at = _varint(message, at - 1)
        number, wire = key >> 3, key & 7
        if wire == 2:
            length, at = message[at], at + 1
            if length >= 0x80:
                length, at = _varint(message, at - 1)
            yield number, message[at : at + length]
            at += length
        elif wire == 0:
            value, at = _varint(message, at)
            yield number, value
        else:
            at += _FIXED_WIDTHS.get(wire, end + 1)
            yield number, None
    if at != end:
        raise IndexError("the message ends early")


def _behind(message: bytes, at: int) -> int:
    """Where a row of texts of one field, whose number is below 16, ends; perhaps behind the message's end."""
    key, end = message[at], len(message)
    while at < end and message[at] == key:
        length = message[at + 1]
        if length < 0x80:
            at += length + 2
        elif (high := message[at + 2]) < 0x80:  # two bytes of length: nearly all the others
            at += (high << 7 | length & 0x7F) + 3
        else:
            length, at = _varint(message, at + 1)
            at += length
    return at


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
