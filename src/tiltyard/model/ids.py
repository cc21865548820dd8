"""Ids of namespaces and tables: parse them, and check their names."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from lance_namespace.errors import InvalidInputError

DEFAULT_DELIMITER = "$"
_UNIT_SEPARATOR = "\x1f"
"""A delimiter that no name has in it: none has a control character."""
_PERCENT, _PLUS = b"%+"
MAX_NAME_LENGTH = 256
MAX_REF_LENGTH = 200
"""Characters of a tag's or branch's name: Lance writes a file of that name plus 40 characters; disks allow 255."""


class Id(tuple[str, ...]):
    """The id of a table or a namespace: the names from the outermost namespace on; the root is `Id()`.

    On the wire it is one path segment, its names joined by a delimiter ("$" unless the request says otherwise), the
    root being the delimiter alone. It equals the plain tuple of its names.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The last name, which the object has in its parent. Raises IndexError for the root."""
        return self[-1]

    @property
    def parent(self) -> Id:
        """The id of the namespace that the object is in; that of the root is the root."""
        return Id(self[:-1])

    def __str__(self) -> str:
        """Join the names by the default delimiter, as messages show an id."""
        return DEFAULT_DELIMITER.join(self) or DEFAULT_DELIMITER


def decode_segment(raw: bytes) -> str:
    """Decode one raw path segment: "+" is a space (as in form encoding), then percent-decoding.

    Raises InvalidInputError if the bytes are not UTF-8.
    """
    try:
        # Most ids are encoded in nothing but their delimiter: that is a fifth of the work.
        plain = raw.replace(b"%24", b"$")
        if _PERCENT not in plain and _PLUS not in plain:
            return plain.decode()
        return unquote_to_bytes(plain.replace(b"+", b"%20")).decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError("The id in the path is not UTF-8: percent-encode it as UTF-8.") from error


def wire_delimiter(names: Sequence[str]) -> str:
    """Return a delimiter for requests that is in none of the names."""
    return _UNIT_SEPARATOR if any(DEFAULT_DELIMITER in name for name in names) else DEFAULT_DELIMITER


def parse_id(text: str, delimiter: str = DEFAULT_DELIMITER) -> Id:
    """Parse an id as requests and commands have it; the delimiter alone (or an empty text) is the root.

    Raises InvalidInputError for a name that no object can have.
    """
    if not delimiter:
        raise InvalidInputError("The delimiter is empty: leave it out for '$', or name one.")
    if not text or text == delimiter:
        return Id()
    return check_id(Id(text.split(delimiter)))


def check_id(path: Id) -> Id:
    """Return the id if each of its names can be one. Raises InvalidInputError."""
    for name in path:
        if len(name) > MAX_NAME_LENGTH or not name.isidentifier():  # most are, and no identifier is refused
            check_name(name)
    return path


def table_id(names: Sequence[str] | None) -> Id:
    """Return the id of a table in a request. Raises InvalidInputError for the root or a bad name."""
    if not names:
        raise InvalidInputError("A table's id has at least one name.")
    return check_id(Id(names))


def namespace_id(names: Sequence[str] | None) -> Id:
    """Return the id of a namespace in a request; without names the root. Raises InvalidInputError for a bad name."""
    return check_id(Id(names or ()))


def check_name(name: str, kind: str = "name") -> str:
    """Return the name if it can be one; `kind` is what messages call it. Raises InvalidInputError.

    It has 1 to 256 characters of Unicode without control characters or lone surrogates, and is not '.' or '..'.
    """
    if not name:
        raise InvalidInputError(f"Empty {kind}: each part of an id needs at least one character.")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidInputError(f"The {kind} has {len(name)} characters: {MAX_NAME_LENGTH} at most.")
    if name in (".", ".."):
        raise InvalidInputError(f"'{name}' cannot be a {kind}.")
    if not name.isprintable():
        bad = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs")), None)
        if bad is not None:
            raise InvalidInputError(f"The {kind} has the control character U+{ord(bad):04X}: leave it out.")
    return name


def is_name(name: str) -> bool:
    """Return whether `check_name` lets a name be."""
    try:
        check_name(name)
    except InvalidInputError:
        return False
    return True


def check_composed(name: str) -> str:
    """Return a new name if it is in Unicode's composed form (NFC). Raises InvalidInputError.

    "é" can be written as one character or as two, which look the same: only one of them can be a name. Names from
    before this check remain valid.
    """
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise InvalidInputError(f"The name '{name}' is not in Unicode's composed form (NFC): write it as '{composed}'.")
    return name


def check_ref(name: str, kind: str) -> str:
    """Return the name of a new tag or branch (`kind`) if a file can have it. Raises InvalidInputError.

    Lance writes letters beyond ASCII percent-encoded, and then reads no tag of the table any more.
    """
    check_name(name, kind)
    if not name.isascii():
        raise InvalidInputError(f"The {kind}'s name has letters beyond ASCII: use A to Z, digits, '.', '-' and '_'.")
    if len(name) > MAX_REF_LENGTH:
        raise InvalidInputError(f"The {kind}'s name is too long: {MAX_REF_LENGTH} characters at most.")
    return name
