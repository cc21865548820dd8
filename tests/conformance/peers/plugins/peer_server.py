"""The server that peers' tests are run against, and a namespace of its own for each folder that a test connects to.

The plug-ins of this folder are loaded into pytest where it runs the suite of another project: they import nothing of
this one.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import urllib.request
from pathlib import Path

URL = os.environ["PEER_SERVER"]
RUN = f"{os.environ['PEER_OUTCOMES']}/{os.getpid()}"
"""Tells apart the folders of runs: those of tests that name one of their own are the same in each."""
IN_MEMORY = "memory:"

connections = 0
"""How many connections to the server were asked for: by it the outcomes tell which tests are of a server at all."""
_numbers = itertools.count(1)
_created: set[str] = set()


def database_of(place: str | Path) -> str:
    """Return the namespace that stands for a folder, which exists then; for a place in memory, a new one each time."""
    global connections  # noqa: PLW0603  # a count for the whole process
    connections += 1
    place = str(place)
    if place.startswith(IN_MEMORY):
        place = f"{IN_MEMORY}{next(_numbers)}"
    name = f"db_{hashlib.sha256((RUN + place.removeprefix('file://').rstrip('/')).encode()).hexdigest()[:16]}"
    if name not in _created:
        request = urllib.request.Request(
            f"{URL}/v1/namespace/{name}/create",
            data=b'{"mode": "ExistOk"}',
            headers={"content-type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=60):  # the server that the runner started
            _created.add(name)
    return name


def namespace_properties(place: str | Path) -> dict[str, str]:
    """Return the properties of a client of the specification whose root is the namespace of this folder."""
    return {"uri": URL, "header.x-lancedb-database": database_of(place)}


def is_folder(place: object) -> bool:
    """Tell whether this is a folder, or memory: nothing that lies on a server already."""
    return isinstance(place, Path) or (
        isinstance(place, str) and (place.startswith((IN_MEMORY, "file://")) or "://" not in place)
    )
