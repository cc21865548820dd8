"""Parse Lance's manifest files, and name them.

Follows Lance's table format. A manifest file ends with the position of its protobuf message, a format version and the
magic `LANC`. The fields of the message that are used here:

    1   repeated column: 2 name, 3 id, 4 id of the parent column (-1 for none), 10 repeated pair of metadata
    2   repeated fragment: 2 repeated data file (1 path, 7 id of its base), 3 deletion file (1 kind, 2 and 3 parts of
        its name, 7 id of its base)
    3   version of the table
    6   position of the index section in the file: 1 repeated index (1 UUID, 9 id of its base, 10 repeated file)
    12  name of the transaction file
    18  repeated base, a location outside the table's folder that has files of the table: 1 its id, 3 whether it is
        the folder of a table, 4 its path
    23  position of the transaction in the file, if it is inline

A file without a base lies in the table's folder. A section of the file begins with its length, of four bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, takewhile
from typing import TypeAlias
from urllib.parse import quote

from lance_namespace.errors import InvalidInputError

from tiltyard.model.branches import Branch
from tiltyard.model.classifications import METADATA_PREFIX
from tiltyard.model.columns.computed_columns import PREFIX
from tiltyard.runtime.durability import WrittenFile

LAST_VERSION = 2**64 - 1
V2_DIGITS = 20
MAX_NAME_BYTES = 255
"""Bytes of a file's name, on any disk."""
_FOOTER = struct.Struct("<QHH4s")
LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_COLUMNS_FIELD = 1
_NAME_FIELD = 2
_ID_FIELD = 3
_PARENT_FIELD = 4
_NO_PARENT = 2**64 - 1
"""-1, as protobuf writes it."""
_METADATA_FIELD = 10
FRAGMENTS_FIELD = 2
INDICES_FIELD = 6
_VERSION_FIELD = 3
TRANSACTION_FIELD, INLINE_TRANSACTION_FIELD = 12, 23
BASES_FIELD = 18
_BASE_PATH_FIELD = 4
_MAX_FIELDS = 200_000
"""Fields of a manifest besides fragments: columns, pairs of metadata, bases."""
_FIXED_WIDTHS = {1: 8, 5: 4}


FINAL_NAME = re.compile(r"^d?\d+\.manifest$")
"""A manifest's final name; that of a detached version, which is on no branch, begins with a d."""


def is_detached(path: str) -> bool:
    """Whether a manifest is of a detached version."""
    name = path.rpartition("/")[2]
    return name.startswith("d") and FINAL_NAME.match(name) is not None


class NamingScheme(StrEnum):
    """How manifests are named: V1 by the version, V2 counting down, so that a listing begins with the latest."""

    V1 = "V1"
    V2 = "V2"


def naming_scheme_of(path: str) -> NamingScheme:
    """Return how a manifest is named, staged or final: V2 pads the number with zeros."""
    number = path.rpartition("/")[2].partition(".")[0]
    return NamingScheme.V2 if len(number) == V2_DIGITS or not number.isdigit() else NamingScheme.V1


def manifest_name(version: int, scheme: NamingScheme) -> str:
    """Return the final name of a version's manifest."""
    number = f"{LAST_VERSION - version:0{V2_DIGITS}}" if scheme is NamingScheme.V2 else str(version)
    return f"{number}.manifest"


def newest_manifest(names: Iterable[str]) -> str | None:
    """Return the name of the latest version's manifest among the names in a `_versions` folder; None without one."""
    versions = {_version_of(name): name for name in names if FINAL_NAME.match(name) and not is_detached(name)}
    return versions[max(versions)] if versions else None


def _version_of(name: str) -> int:
    number = int(name.partition(".")[0])
    return LAST_VERSION - number if naming_scheme_of(name) is NamingScheme.V2 else number


def versions_folder(branch: Branch) -> str:
    """Return the folder of a branch's manifests, relative to the table's folder."""
    return "_versions" if branch.is_main else f"{branch.folder}/_versions"


Field: TypeAlias = "tuple[int, int | bytes | None]"
"""The number of a protobuf message's field, and the value of an integer, a message, bytes or a string."""
CodeDeclaration: TypeAlias = frozenset[tuple[bytes, bytes]]
"""The pairs of a column's metadata that declare code for it: a computed column."""

_CODE_PREFIX = PREFIX.encode()
_CLASSIFICATION_PREFIX = METADATA_PREFIX.encode()


@dataclass(slots=True)
class Manifest:
    """The parts of a manifest that the server checks.

    `bases` are locations outside the table's folder that have files of it, `code_declarations` those of its columns,
    `has_classifications` whether metadata of a column classifies it, `backtick_columns` the names of columns with a
    backtick, which Lance cannot look up, `transaction_file` the name of a file in _transactions, which is not read
    where the manifest has the transaction inline, too (`has_transaction`),
    `new_files` the files on a disk that it names and the version before it does not, `previous` how the manifest of
    that is named, if it was read. `fields` are those of its message, without fragments.
    """

    version: int = 0
    transaction_file: str = ""
    has_transaction: bool = False
    bases: list[str] = field(default_factory=list)
    code_declarations: list[CodeDeclaration] = field(default_factory=list)
    has_classifications: bool = False
    backtick_columns: list[str] = field(default_factory=list)
    new_files: list[WrittenFile] = field(default_factory=list)
    previous: NamingScheme | None = None
    fields: list[Field] = field(default_factory=list)


_NO_MANIFEST = "The staged file is not a Lance manifest: nothing was committed."


@contextmanager
def refuse_malformed() -> Iterator[None]:
    """Raise InvalidInputError where a message inside a manifest cannot be read: `parse_manifest` reads none of them."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError, StopIteration) as error:
        raise InvalidInputError(_NO_MANIFEST) from error


def parse_manifest(content: bytes, version: int) -> Manifest:
    """Parse a manifest. Raises InvalidInputError unless it is a complete manifest of that version."""
    manifest = _read_manifest(content)
    if manifest is None:
        raise InvalidInputError(_NO_MANIFEST)
    if manifest.version != version:
        raise InvalidInputError(
            f"The staged manifest is of version {manifest.version}, not {version}: nothing was committed."
        )
    return manifest


def is_complete(content: bytes) -> bool:
    """Whether a manifest is as long as its end says: it does not check its message."""
    try:
        position, _, _, magic = _FOOTER.unpack(content[-_FOOTER.size :])
        (length,) = LENGTH.unpack_from(content, position)
    except (struct.error, OverflowError, IndexError):
        return False
    return bool(magic == _MAGIC and position + LENGTH.size + length + _FOOTER.size == len(content))


def _read_manifest(content: bytes) -> Manifest | None:
    """Parse a manifest; None if it is invalid or incomplete."""
    manifest = Manifest()
    if not is_complete(content):
        return None
    try:
        manifest.fields = list(islice(top_fields(content), _MAX_FIELDS + 1))
        if len(manifest.fields) > _MAX_FIELDS:
            return None
        for key, value in manifest.fields:
            if isinstance(value, bytes):
                _add_bytes_field(manifest, key, value)
            elif key == _VERSION_FIELD and isinstance(value, int):
                manifest.version = value
            elif key in (INDICES_FIELD, INLINE_TRANSACTION_FIELD) and isinstance(value, int):
                manifest.has_transaction |= key == INLINE_TRANSACTION_FIELD
                if not _has_section(content, value):
                    return None
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
        return None
    return manifest


def _add_bytes_field(manifest: Manifest, key: int, value: bytes) -> None:
    """Add a message, bytes or string field to a parsed manifest. Raises IndexError, UnicodeDecodeError."""
    if key == BASES_FIELD:
        manifest.bases += [path.decode() for path in byte_fields(value, _BASE_PATH_FIELD)]
    elif key == _COLUMNS_FIELD:
        if _CODE_PREFIX in value:  # rare
            manifest.code_declarations.append(_code_declaration(value))
        manifest.has_classifications |= _CLASSIFICATION_PREFIX in value
        if b"`" in value:
            manifest.backtick_columns += _backtick_names(value)
    elif key == TRANSACTION_FIELD:
        manifest.transaction_file = value.decode()


def _has_section(content: bytes, position: int) -> bool:
    """Whether a section, which begins with its length, ends within the file. Raises struct.error."""
    length: int = LENGTH.unpack_from(content, position)[0]
    return position + LENGTH.size + length <= len(content)


def message_of(content: bytes) -> bytes:
    """Return the protobuf message of a valid manifest."""
    (position,) = struct.unpack_from("<Q", content, len(content) - _FOOTER.size)
    return content[position + LENGTH.size : -_FOOTER.size]


_TYPE_FIELD, _DICTIONARY_FIELDS, _DICTIONARY = 5, (7, 8), b"dict:"
"""Of a column: its type as text, its encoding and where its dictionary is; how types of dictionaries begin."""


def column_ids(content: bytes) -> frozenset[int]:
    """Return the ids of all columns, nested ones too, of a manifest that Lance staged here: it writes columns first."""
    message = message_of(content)
    columns = (value for key, value in takewhile(lambda pair: pair[0] == _COLUMNS_FIELD, message_fields(message)))
    return frozenset(_column_id(column) for column in columns if isinstance(column, bytes))


@refuse_malformed()
def with_bases(content: bytes, convert: Callable[[str], str]) -> bytes:
    """Return a valid manifest with its bases converted: locations outside its folder that have files of it.

    Raises InvalidInputError for one whose sections come after its message, as no version of Lance writes it, or whose
    messages cannot be read.
    """
    (position,) = struct.unpack_from("<Q", content, len(content) - _FOOTER.size)
    message, converted, start = message_of(content), bytearray(), 0
    for key, end in _field_ends(message):
        field_bytes = message[start:end]
        if key == BASES_FIELD:
            field_bytes = _encode_bytes(key, _with_path(next(byte_fields(field_bytes, key)), convert))
        converted += field_bytes
        start = end
    sections = (value for key, value in message_fields(message) if key in (INDICES_FIELD, INLINE_TRANSACTION_FIELD))
    if any(isinstance(section, int) and section > position for section in sections):
        raise InvalidInputError("A manifest has sections after its message: its locations cannot be changed.")
    return content[:position] + LENGTH.pack(len(converted)) + bytes(converted) + content[-_FOOTER.size :]


def _with_path(base: bytes, convert: Callable[[str], str]) -> bytes:
    """Return a base with its path converted."""
    converted, start = bytearray(), 0
    for key, end in _field_ends(base):
        field_bytes = base[start:end]
        if key == _BASE_PATH_FIELD:
            path = next(byte_fields(field_bytes, key)).decode()
            field_bytes = _encode_bytes(key, convert(path).encode())
        converted += field_bytes
        start = end
    return bytes(converted)


@refuse_malformed()
def without_dictionaries(message: bytes) -> bytes:
    """Return a manifest's message in which columns of dictionaries are those of their values.

    Lance opens a manifest with such columns from its file alone, even if its content is at hand. Other columns are read
    as they are; those themselves rightly in files of Lance's format 2.1 and later. Raises InvalidInputError.
    """
    if _DICTIONARY not in message:
        return message
    plain, start = bytearray(), 0
    for key, end in _field_ends(message):
        field_bytes = message[start:end]
        if key == _COLUMNS_FIELD:
            field_bytes = _encode_bytes(key, _without_dictionary(next(byte_fields(field_bytes, key))))
        plain += field_bytes
        start = end
    return bytes(plain)


def _without_dictionary(column: bytes) -> bytes:
    """Return a schema's field as a manifest has it, with the type of its values in place of a dictionary."""
    kind = next(byte_fields(column, _TYPE_FIELD), b"")
    if not kind.startswith(_DICTIONARY):
        return column
    plain, start = bytearray(), 0
    for key, end in _field_ends(column):
        if key == _TYPE_FIELD:
            plain += _encode_bytes(key, kind.split(b":")[1])
        elif key not in _DICTIONARY_FIELDS:
            plain += column[start:end]
        start = end
    return bytes(plain)


def _encode_bytes(field_number: int, value: bytes) -> bytes:
    return _encode_varint(field_number << 3 | 2) + _encode_varint(len(value)) + value


def tag_file(tag: str) -> str:
    """Return the path of the file that defines a tag, relative to the table's folder."""
    return f"_refs/tags/{tag}.json"


def branch_file(branch: Branch) -> str:
    """Return the path of the file that defines a branch other than main, relative to the table's folder."""
    return f"_refs/branches/{quote(branch.name, safe='')}.json"


def _column_id(column: bytes) -> int:
    return number_of(dict(message_fields(column)), _ID_FIELD)


def with_column_ids(column: bytes, ids: Mapping[int, int]) -> bytes | None:
    """Return a schema's field as a manifest has it with other ids of its own and of its parent, by those before.

    None for a field that is not among them.
    """
    number = _column_id(column)
    if number not in ids:
        return None
    renumbered, start = bytearray(), 0
    for key, end in _field_ends(column):
        if key not in (_ID_FIELD, _PARENT_FIELD):
            renumbered += column[start:end]
        start = end
    parent = number_of(dict(message_fields(column)), _PARENT_FIELD)
    for key, value in ((_ID_FIELD, ids[number]), (_PARENT_FIELD, ids.get(parent, parent))):
        renumbered += bytes([key << 3]) + _encode_varint(value)
    return bytes(renumbered)


def _field_ends(message: bytes) -> Iterator[tuple[int, int]]:
    """Iterate over the fields of a message: number, and where it ends."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        if key & 7 in _FIXED_WIDTHS:
            at += _FIXED_WIDTHS[key & 7]
        else:
            length, at = read_varint(message, at)
            at += length if key & 7 == 2 else 0
        yield key >> 3, at


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def number_of(fields: Mapping[int, int | bytes | None], field: int) -> int:
    """Return the number in a field of a parsed message; 0 without one, which protobuf leaves out.

    Raises InvalidInputError for a field that is no number.
    """
    value = fields.get(field, 0)
    if not isinstance(value, int):
        raise InvalidInputError(_NO_MANIFEST)
    return value


def byte_fields(message: bytes, number: int) -> Iterator[bytes]:
    """Iterate over the values of one repeated message, bytes or string field."""
    return (value for key, value in message_fields(message) if key == number and isinstance(value, bytes))


def _code_declaration(column: bytes) -> CodeDeclaration:
    """Return the pairs of a column's metadata that declare code."""
    pairs = (dict(message_fields(pair)) for pair in byte_fields(column, _METADATA_FIELD))
    entries = ((pair.get(1, b""), pair.get(2, b"")) for pair in pairs)
    return frozenset(
        (name, value)
        for name, value in entries
        if isinstance(name, bytes) and isinstance(value, bytes) and name.startswith(_CODE_PREFIX)
    )


@refuse_malformed()
def classified_fields(content: bytes) -> list[tuple[int, tuple[str, ...], dict[str, str]]]:
    """Return the id of each field of a valid manifest that its metadata classifies, the names on its path, its keys.

    Keys are those of the metadata, without METADATA_PREFIX.
    """
    columns = [_column_keys(column) for column in byte_fields(message_of(content), _COLUMNS_FIELD)]
    parents = {number: (name, parent) for number, name, parent, _ in columns}
    found = []
    for number, _, _, keys in columns:
        names, at = list[str](), number
        while keys and at in parents and len(names) <= len(columns):
            names.append(parents[at][0])
            at = parents[at][1]
        if keys:
            found.append((number, tuple(reversed(names)), keys))
    return found


def _column_keys(column: bytes) -> tuple[int, str, int, dict[str, str]]:
    """Return a column's id, its name, the id of the one that it is in, and what its metadata classifies it as."""
    fields = dict(message_fields(column))
    name = fields.get(_NAME_FIELD)
    pairs = (dict(message_fields(pair)) for pair in byte_fields(column, _METADATA_FIELD))
    entries = ((pair.get(1, b""), pair.get(2, b"")) for pair in pairs)
    keys = {
        key.removeprefix(_CLASSIFICATION_PREFIX).decode(): value.decode()
        for key, value in entries
        if isinstance(key, bytes) and isinstance(value, bytes) and key.startswith(_CLASSIFICATION_PREFIX)
    }
    text = name.decode() if isinstance(name, bytes) else ""
    return number_of(fields, _ID_FIELD), text, number_of(fields, _PARENT_FIELD), keys


def _backtick_names(column: bytes) -> list[str]:
    """Return the name of a top-level column if it has a backtick. Raises UnicodeDecodeError."""
    fields = dict(message_fields(column))
    name, is_top_level = fields.get(_NAME_FIELD), fields.get(_PARENT_FIELD) == _NO_PARENT
    return [name.decode()] if isinstance(name, bytes) and b"`" in name and is_top_level else []


def top_fields(content: bytes) -> Iterator[Field]:
    """Iterate over the fields of a manifest but for its fragments."""
    return message_fields(message_of(content), skipping=FRAGMENTS_FIELD)


def message_fields(message: bytes, *, skipping: int = 0) -> Iterator[Field]:
    """Iterate over the fields of a protobuf message.

    Values of the field `skipping` are left out: a manifest has thousands of fragments. The message is read to its end,
    so that a truncated one is noticed: raises IndexError.
    """
    at, end, skipped_key = 0, len(message), skipping << 3 | 2
    while at < end:
        if message[at] == skipped_key:
            at = _skip(message, at)
            continue
        key, at = message[at], at + 1  # most numbers are of one byte, and a call costs more than all else here
        if key >= 0x80:
            key, at = read_varint(message, at - 1)
        number, wire = key >> 3, key & 7
        if wire == 2:
            length, at = message[at], at + 1
            if length >= 0x80:
                length, at = read_varint(message, at - 1)
            yield number, message[at : at + length]
            at += length
        elif wire == 0:
            value, at = message[at], at + 1
            if value >= 0x80:
                value, at = read_varint(message, at - 1)
            yield number, value
        else:
            at += _FIXED_WIDTHS.get(wire, end + 1)
            yield number, None
    if at != end:
        raise IndexError("the message ends early")


def _skip(message: bytes, at: int) -> int:
    """Return where consecutive values of one field, whose number is below 16, end; perhaps past the message's end."""
    key, end = message[at], len(message)
    while at < end and message[at] == key:
        length = message[at + 1]
        if length < 0x80:
            at += length + 2
        elif (high := message[at + 2]) < 0x80:  # two bytes of length: nearly all others
            at += (high << 7 | length & 0x7F) + 3
        else:
            length, at = read_varint(message, at + 1)
            at += length
    return at


_LAST_SHIFT = 63
"""Where the last of the ten bytes of an integer belongs, which has one bit."""


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return an integer of a protobuf message, and the position after it. Raises IndexError."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _LAST_SHIFT:
            raise IndexError("an integer has more than ten bytes")
    if shift == _LAST_SHIFT and byte > 1:
        raise IndexError("an integer has more than 64 bits")
    return value, at
