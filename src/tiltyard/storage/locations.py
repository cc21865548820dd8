"""Where tables may lie: canonical locations below the roots, and nowhere else.

Locations on local disks are plain absolute paths, without `file://`: pylance, lancedb, lance-spark and lance-ray all
open those, with any character in them. Locations on object stores are URIs without a closing slash.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.ids import Id

SUFFIX = ".lance"
LONGEST_SLUG = 40
SCHEMES = ("s3", "gs", "az", "abfss")

_ESCAPED = re.compile(r"%(?:2e|2f|5c|25|[01][0-9a-f]|7f)", re.IGNORECASE)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def is_local(location: str) -> bool:
    """Whether a canonical location is a path on a local disk."""
    return location.startswith("/")


def canonical(location: str) -> str:
    """The one spelling of a location: symbolic links resolved on local disks, no closing slash.

    Raises InvalidInputError for what is no plain folder: dot segments, escapes that could become some, queries.
    """
    if not location.isprintable() or "\\" in location:
        raise InvalidInputError("The location has control characters or backslashes: leave them out.")
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
    parts = urlsplit(location)
    if "?" in location or "#" in location:
        raise InvalidInputError("The location has a query or a fragment: leave it out.")
    if not parts.netloc:
        raise InvalidInputError("The location names no bucket or container.")
    path = parts.path.strip("/")
    _check_segments(path)
    return f"{kind}://{parts.netloc}/{path}".rstrip("/")


def _path_of(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or "?" in uri or "#" in uri:
        raise InvalidInputError("A file:// location has neither a host nor a query: write file:///folder.")
    return unquote(parts.path)


def _local(path: str) -> str:
    if not path.startswith("/"):
        raise InvalidInputError("The location is relative: write it from the root of the disk, or as a URI.")
    _check_segments(path.strip("/"))
    try:
        return str(Path(path).resolve())
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InvalidInputError("The location cannot be resolved: its links lead in a circle.") from error


def _check_segments(path: str) -> None:
    for segment in path.split("/") if path else ():
        if segment in ("", ".", ".."):
            raise InvalidInputError("The location has empty, '.' or '..' segments: write the folder plainly.")


def is_below(location: str, root: str) -> bool:
    """Whether a canonical location lies below a canonical root, and is not the root itself."""
    return location.startswith(root.rstrip("/") + "/")


def check_below(location: str, roots: Iterable[str]) -> str:
    """The canonical form of a location below one of the roots, outside any other table's folder.

    Raises InvalidInputError.
    """
    found = canonical(location)
    root = next((root for root in roots if is_below(found, root)), None)
    if root is None:
        raise InvalidInputError("The location is not below the server's root or one of its allowed roots.")
    parents = found[len(root) :].strip("/").split("/")[:-1]
    if any(parent.endswith(SUFFIX) for parent in parents):
        raise InvalidInputError("The location is inside the folder of another table: choose one beside it.")
    return found


def new_folder(path: Id) -> str:
    """A folder's name for a new table: something of its name to read, and a part that no other has.

    What is left of the name is lower-case ASCII letters and digits, so that no storage can misunderstand it.
    """
    plain = unicodedata.normalize("NFKD", path[-1]).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "_", plain)[:LONGEST_SLUG].strip("_") or "table"
    return f"{slug}-{uuid4().hex}{SUFFIX}"
