"""Search files for the bytes of values: texts in UTF-8, whole numbers in decimal digits and as 64 bits.

It finds what is stored as it is. Pages that Lance has compressed do not have the bytes of their values: that no file of
the rows is left is proved by the versions that remain (`report`), and this search is of everything, whatever it is.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.storage.errors import lance_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tiltyard.storage.files import Files

MIN_VALUE_BYTES = 6
"""A shorter text, or a number of fewer digits, is in files by chance: it is not searched for."""
MIN_BINARY_NUMBER = 1 << 40
"""A smaller number is not searched for as 64 bits: it would have three bytes of zeros or more."""
MAX_SEARCHED_VALUES = 1_000
"""Values that one erasure searches for: each is looked for in each file."""


def patterns_of(value: str | int) -> tuple[bytes, ...]:
    """Return the bytes that a value may be stored as; none for one that is too short to be searched for."""
    if isinstance(value, str):
        text = value.encode()
        return (text,) if len(text) >= MIN_VALUE_BYTES else ()
    digits = str(value).encode()
    if len(digits) < MIN_VALUE_BYTES:
        return ()
    is_long = MIN_BINARY_NUMBER <= abs(value) < 1 << 63
    return (digits, value.to_bytes(8, "little", signed=True)) if is_long else (digits,)


def digest_of(key: bytes, value: str | int) -> str:
    """Return the keyed digest of a value: without the key nobody can try values until one fits."""
    text = f"{type(value).__name__}:{value}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def search_file(files: Files, location: str, patterns: Sequence[tuple[bytes, str]]) -> set[str]:
    """Return the names of those patterns, pairs of bytes and a name, that a file has; none for a file that is gone.

    Raises ServiceUnavailableError.
    """
    try:
        with lance_errors(location):
            return search_chunks(files.read_chunks(location), patterns)
    except LanceNamespaceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return set()
        raise


def search_chunks(chunks: Iterable[bytes], patterns: Sequence[tuple[bytes, str]]) -> set[str]:
    """Return the names of the patterns in the content of chunks, also where one is in two of them."""
    overlap = max((len(pattern) for pattern, _ in patterns), default=1) - 1
    found, rest = set[str](), b""
    for chunk in chunks:
        part = rest + chunk
        found.update(name for pattern, name in patterns if name not in found and pattern in part)
        rest = part[-overlap:] if overlap else b""
    return found


def search_folder(
    files: Files, location: str, patterns: Sequence[tuple[bytes, str]], report: Callable[[str, int], None]
) -> Iterator[tuple[str, str]]:
    """Yield the path and the digest of each value that a file below a folder has; `report` gets each path and size.

    Raises ServiceUnavailableError, and what `report` raises.
    """
    with lance_errors(location):
        entries = sorted(files.walk(location), key=lambda entry: entry.path)
    for entry in entries:
        report(entry.path, entry.size)
        for name in sorted(search_file(files, f"{location}/{entry.path}", patterns)):
            yield entry.path, name
