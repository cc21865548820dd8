"""Parse and check locations of tables: one canonical spelling each, below the server's roots.

Locations on local disks are plain absolute paths, without `file://`: pylance, lancedb, lance-spark and lance-ray all
open those, with any character in them. Locations on object stores are URIs without a closing slash.
"""

from __future__ import annotations

import os
import re
import unicodedata
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.model.ids import Id

TABLE_SUFFIX = ".lance"
MAX_SLUG_LENGTH = 40
MAX_SEGMENT_BYTES = 255
"""Bytes of a folder's name, on any disk."""
MAX_PATH_BYTES, MAX_KEY_BYTES = 3500, 700
"""Bytes of a table's location on a disk, and on an object store: files below it have a few hundred more."""
SCHEMES = ("s3", "gs", "az", "abfss")

_RESERVED_SEGMENTS = frozenset(("", ".", ".."))
_ESCAPED = re.compile(r"%(?:2e|2f|5c|25|[01][0-9a-f]|7f)", re.IGNORECASE)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTAINER = re.compile(rf"{_BUCKET.pattern}(?:@[a-z0-9][a-z0-9.-]*)?")


def is_local(location: str) -> bool:
    """Whether a canonical location is a path on a local disk."""
    return location.startswith("/")


def is_relative(location: str) -> bool:
    """Whether a location has neither a scheme nor a leading slash: it is relative to a root."""
    return not location.startswith("/") and not _SCHEME.match(location)


def canonical_location(location: str) -> str:
    """Return the canonical spelling of a location: symbolic links resolved on local disks, no trailing slash.

    Raises InvalidInputError for a location that is no plain folder, or has several spellings: dot segments, characters
    that some storage takes for others (full-width dots and slashes, composed letters), escapes, queries.
    """
    _check_characters(location)
    if _ESCAPED.search(location):
        raise InvalidInputError("The location has percent-encoded dots, slashes or percent signs: write them plainly.")
    scheme = _SCHEME.match(location)
    name = scheme[1].lower() if scheme else "file"
    if name == "file":
        return _canonical_path(_path_of_uri(location) if scheme else location)
    if name not in SCHEMES:
        raise InvalidInputError(
            f"The location's scheme '{name}' is not supported: use a path, or {', '.join(SCHEMES)}."
        )
    if "?" in location or "#" in location:
        raise InvalidInputError("The location has a query or a fragment: leave it out.")
    if "%" in location:  # Lance decodes it, so that a folder would have two spellings
        raise InvalidInputError("The location has percent-encoded characters: write them plainly.")
    bucket, _, path = location.partition("://")[2].partition("/")
    bucket = bucket if name in ("s3", "gs") else bucket.lower()
    if not (_BUCKET if name in ("s3", "gs") else _CONTAINER).fullmatch(bucket):
        raise InvalidInputError("The location names no bucket or container, or more than that.")
    path = path.removesuffix("/")
    _check_segments(path)
    return f"{name}://{bucket}/{path}".rstrip("/")


def _path_of_uri(uri: str) -> str:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InvalidInputError("The location is no URI: write file:///folder.") from error
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or "?" in uri or "#" in uri:
        raise InvalidInputError("A file:// location has neither a host nor a query: write file:///folder.")
    return unquote(parts.path)


def _check_characters(text: str) -> None:
    if unicodedata.normalize("NFKC", text) != text:
        raise InvalidInputError("The location has characters that stand for others: write their plain (NFKC) form.")
    if not text.isprintable() or "\\" in text:
        raise InvalidInputError("The location has control characters or backslashes: leave them out.")


def _canonical_path(path: str) -> str:
    _check_characters(path)  # again: a URI may have encoded them
    if not path.startswith("/"):
        raise InvalidInputError("The location is relative: write it from the root of the disk, or as a URI.")
    _check_segments(path.strip("/"))
    if len(path.encode()) > MAX_PATH_BYTES:
        raise InvalidInputError(f"The location has more than {MAX_PATH_BYTES} bytes: choose a shorter one.")
    try:
        return str(Path(path).resolve())
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InvalidInputError("The location cannot be resolved: its links lead in a circle.") from error


def _check_segments(path: str) -> None:
    for segment in path.split("/") if path else ():
        if segment in _RESERVED_SEGMENTS:
            raise InvalidInputError("Path traversal is not allowed: leave out empty, '.' and '..' segments.")
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise InvalidInputError(f"A folder of the location has more than {MAX_SEGMENT_BYTES} bytes: shorten it.")


def is_below(location: str, root: str) -> bool:
    """Whether a canonical location lies below a canonical root, and is not the root itself."""
    return location.startswith(root.rstrip("/") + "/")


def is_within(location: str, root: str) -> bool:
    """Whether a canonical location is a canonical root, or lies below it."""
    return location == root or is_below(location, root)


def check_table_location(location: str, roots: Iterable[str]) -> str:
    """Return the canonical form of a location for a table.

    Raises InvalidInputError unless it lies below one of the roots, contains no root, and is in no other table's folder.
    """
    folder, roots = canonical_location(location), tuple(roots)
    root = innermost_root(folder, roots)
    if not root:
        raise InvalidInputError("The location is not below the server's root or one of its allowed roots.")
    if any(is_within(other, folder) for other in roots):
        raise InvalidInputError("The location is one of the server's roots, or holds one: choose a folder below it.")
    if len(folder.encode()) > (max_bytes := MAX_PATH_BYTES if is_local(folder) else MAX_KEY_BYTES):
        raise InvalidInputError(f"The location has more than {max_bytes} bytes: choose a shorter one.")
    parents = folder[len(root) :].strip("/").split("/")[:-1]
    if any(parent.endswith(TABLE_SUFFIX) for parent in parents):
        raise InvalidInputError("The location is inside the folder of another table: choose one beside it.")
    return folder


def innermost_root(location: str, roots: Iterable[str]) -> str:
    """Return the innermost root that a canonical location lies below; empty if there is none."""
    return max((root for root in roots if is_below(location, root)), key=len, default="")


def with_existing_case(location: str, root: str) -> str:
    """Spell a location below a local root as its existing folders are spelled, for a disk that ignores case.

    Raises InvalidInputError for capital letters in the name of a missing folder: it would have two spellings.
    """
    path = Path(root)
    for name in location[len(root.rstrip("/")) + 1 :].split("/"):
        existing = {other.casefold(): other for other in os.listdir(path)} if path.is_dir() else {}  # noqa: PTH208  # names
        spelling = existing.get(name.casefold())
        if spelling is None and name != name.casefold():
            raise InvalidInputError("This storage ignores case: write the location in small letters.")
        path /= spelling or name
    return str(path)


def path_in_table(location: str, path: str) -> str:
    """Return the full location of a file in a table's folder that a client names, without looking at the storage.

    The path may be relative to the folder, or start with the folder's own path, with or without scheme, bucket
    and leading slash. Raises InvalidInputError if it leads elsewhere; links are not checked.
    """
    folder = location if is_local(location) else urlsplit(location).path
    relative = path
    for prefix in (location, folder, folder.lstrip("/")):
        if path.startswith(f"{prefix}/"):
            relative = path[len(prefix) + 1 :]
            break
    segments = relative.split("/")
    if "://" in relative or relative.startswith("/") or not _RESERVED_SEGMENTS.isdisjoint(segments):
        raise InvalidInputError("The path is not inside the table's folder.")
    if not relative.isprintable() or "\\" in relative or "%" in relative:
        raise InvalidInputError("The path has characters that no file of a table has.")
    return f"{location}/{relative}"


def check_no_links(location: str) -> None:
    """Raise InvalidInputError if a local path has a symbolic link: it might lead out of its table."""
    if not is_local(location):
        return
    for folder in accumulate(location.split("/"), "{}/{}".format):  # half the time of `realpath`
        if os.path.islink(folder):  # noqa: PTH114  # a Path costs as much again
            raise InvalidInputError("The path leads through a symbolic link: name the file itself.")


def new_folder_name(path: Id) -> str:
    """Generate a folder name for a new table: a readable slug of the table's name, and a unique suffix.

    The slug has only lower-case ASCII letters and digits, which no storage can misunderstand.
    """
    ascii_name = unicodedata.normalize("NFKD", path.name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "_", ascii_name)[:MAX_SLUG_LENGTH].strip("_") or "table"
    return f"{slug}-{uuid4().hex}{TABLE_SUFFIX}"
