"""Where tables may lie: canonical locations below the roots, and nowhere else.

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

SUFFIX = ".lance"
LONGEST_SLUG = 40
LONGEST_SEGMENT = 255
"""Bytes of a folder's name, on any disk."""
LONGEST_PATH, LONGEST_KEY = 3500, 700
"""Bytes of a table's location on a disk, and on an object store: what lies below it has a few hundred more."""
SCHEMES = ("s3", "gs", "az", "abfss")

_NO_NAMES = frozenset(("", ".", ".."))
_ESCAPED = re.compile(r"%(?:2e|2f|5c|25|[01][0-9a-f]|7f)", re.IGNORECASE)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTAINER = re.compile(rf"{_BUCKET.pattern}(?:@[a-z0-9][a-z0-9.-]*)?")


def is_local(location: str) -> bool:
    """Whether a canonical location is a path on a local disk."""
    return location.startswith("/")


def is_relative(location: str) -> bool:
    """Whether a location has neither a scheme nor a leading slash: it counts from a root."""
    return not location.startswith("/") and not _SCHEME.match(location)


def canonical(location: str) -> str:
    """The one spelling of a location: symbolic links resolved on local disks, no closing slash.

    Raises InvalidInputError for what is no plain folder, or has several spellings: dot segments, characters that some
    storage takes for others (full-width dots and slashes, composed letters), escapes, queries.
    """
    _check_characters(location)
    if _ESCAPED.search(location):
        raise InvalidInputError("The location has percent-encoded dots, slashes or percent signs: write them plainly.")
    scheme = _SCHEME.match(location)
    kind = scheme[1].lower() if scheme else "file"
    if kind == "file":
        return _local(_path_of(location) if scheme else location)
    if kind not in SCHEMES:
        raise InvalidInputError(
            f"The location's scheme '{kind}' is not supported: use a path, or {', '.join(SCHEMES)}."
        )
    if "?" in location or "#" in location:
        raise InvalidInputError("The location has a query or a fragment: leave it out.")
    if "%" in location:  # Lance decodes it, so that a folder would have two spellings
        raise InvalidInputError("The location has percent-encoded characters: write them plainly.")
    bucket, _, path = location.partition("://")[2].partition("/")
    bucket = bucket if kind in ("s3", "gs") else bucket.lower()
    if not (_BUCKET if kind in ("s3", "gs") else _CONTAINER).fullmatch(bucket):
        raise InvalidInputError("The location names no bucket or container, or more than that.")
    path = path.removesuffix("/")
    _check_segments(path)
    return f"{kind}://{bucket}/{path}".rstrip("/")


def _path_of(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or "?" in uri or "#" in uri:
        raise InvalidInputError("A file:// location has neither a host nor a query: write file:///folder.")
    return unquote(parts.path)


def _check_characters(text: str) -> None:
    if unicodedata.normalize("NFKC", text) != text:
        raise InvalidInputError("The location has characters that stand for others: write their plain (NFKC) form.")
    if not text.isprintable() or "\\" in text:
        raise InvalidInputError("The location has control characters or backslashes: leave them out.")


def _local(path: str) -> str:
    _check_characters(path)  # again: they may have been encoded in a URI
    if not path.startswith("/"):
        raise InvalidInputError("The location is relative: write it from the root of the disk, or as a URI.")
    _check_segments(path.strip("/"))
    if len(path.encode()) > LONGEST_PATH:
        raise InvalidInputError(f"The location has more than {LONGEST_PATH} bytes: choose a shorter one.")
    try:
        return str(Path(path).resolve())
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InvalidInputError("The location cannot be resolved: its links lead in a circle.") from error


def _check_segments(path: str) -> None:
    for segment in path.split("/") if path else ():
        if segment in _NO_NAMES:
            raise InvalidInputError("The location has empty, '.' or '..' segments: write the folder plainly.")
        if len(segment.encode()) > LONGEST_SEGMENT:
            raise InvalidInputError(f"A folder of the location has more than {LONGEST_SEGMENT} bytes: shorten it.")


def is_below(location: str, root: str) -> bool:
    """Whether a canonical location lies below a canonical root, and is not the root itself."""
    return location.startswith(root.rstrip("/") + "/")


def is_within(location: str, root: str) -> bool:
    """Whether a canonical location is a canonical root, or lies below it."""
    return location == root or is_below(location, root)


def check_below(location: str, roots: Iterable[str]) -> str:
    """The canonical form of a location below one of the roots: no root itself, around none, and in no table's folder.

    Raises InvalidInputError.
    """
    found, roots = canonical(location), tuple(roots)
    root = innermost(found, roots)
    if not root:
        raise InvalidInputError("The location is not below the server's root or one of its allowed roots.")
    if any(is_within(other, found) for other in roots):
        raise InvalidInputError("The location is one of the server's roots, or holds one: choose a folder below it.")
    if len(found.encode()) > (longest := LONGEST_PATH if is_local(found) else LONGEST_KEY):
        raise InvalidInputError(f"The location has more than {longest} bytes: choose a shorter one.")
    parents = found[len(root) :].strip("/").split("/")[:-1]
    if any(parent.endswith(SUFFIX) for parent in parents):
        raise InvalidInputError("The location is inside the folder of another table: choose one beside it.")
    return found


def innermost(location: str, roots: Iterable[str]) -> str:
    """The innermost root that a canonical location lies below; empty if there is none."""
    return max((root for root in roots if is_below(location, root)), key=len, default="")


def as_on_disk(location: str, root: str) -> str:
    """A location below a local root, spelled as the folders are that exist, for a disk that ignores case.

    Raises InvalidInputError for capital letters in the name of a folder that does not exist: it would have two names.
    """
    path = Path(root)
    for name in location[len(root.rstrip("/")) + 1 :].split("/"):
        there = {other.casefold(): other for other in os.listdir(path)} if path.is_dir() else {}  # noqa: PTH208  # names
        known = there.get(name.casefold())
        if known is None and name != name.casefold():
            raise InvalidInputError("This storage ignores case: write the location in small letters.")
        path /= known or name
    return str(path)


def file_in(location: str, path: str) -> str:
    """The full location of a file that a client names, inside a table's folder, by the words alone.

    The path may be relative to the folder, or start with the folder's own path, with or without scheme, bucket
    and leading slash. Raises InvalidInputError if it leads elsewhere; links are not looked for.
    """
    plain = location if is_local(location) else urlsplit(location).path
    relative = path
    for start in (location, plain, plain.lstrip("/")):
        if path.startswith(f"{start}/"):
            relative = path[len(start) + 1 :]
            break
    segments = relative.split("/")
    if "://" in relative or relative.startswith("/") or not _NO_NAMES.isdisjoint(segments):
        raise InvalidInputError("The path is not inside the table's folder.")
    if not relative.isprintable() or "\\" in relative or "%" in relative:
        raise InvalidInputError("The path has characters that no file of a table has.")
    return f"{location}/{relative}"


def check_no_links(location: str) -> None:
    """Raise InvalidInputError if a local file is reached through a symbolic link: it might lead out of its table."""
    if not is_local(location):
        return
    for folder in accumulate(location.split("/"), "{}/{}".format):  # half the time of `realpath`
        if os.path.islink(folder):  # noqa: PTH114  # a Path costs as much again
            raise InvalidInputError("The path leads through a symbolic link: name the file itself.")


def new_folder(path: Id) -> str:
    """A folder's name for a new table: something of its name to read, and a part that no other has.

    What is left of the name is lower-case ASCII letters and digits, so that no storage can misunderstand it.
    """
    plain = unicodedata.normalize("NFKD", path[-1]).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "_", plain)[:LONGEST_SLUG].strip("_") or "table"
    return f"{slug}-{uuid4().hex}{SUFFIX}"
