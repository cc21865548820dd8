"""`tiltyard`, whose syncfs(2) reaches a disk that loses power: the kernel tells it no file system in user space."""

from __future__ import annotations

import ctypes
import os
import runpy
from pathlib import Path
from typing import Any

from tests.power.filesystem import CONTROL

_find = ctypes.CDLL.__getitem__


def _find_syncing(library: ctypes.CDLL, name: Any) -> Any:
    function = _find(library, name)
    if name != "syncfs":
        return function

    def sync_disk(descriptor: int) -> int:
        folder = _mountpoint(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if folder is None:
            return int(function(descriptor))
        try:
            os.setxattr(folder, CONTROL, b"syncfs")
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1
        return 0

    return sync_disk


def _mountpoint(path: str) -> str | None:
    """Return where the disk that loses power is mounted, if a path is on it."""
    with Path("/proc/mounts").open() as mounts:
        found = [folder for device, folder, *_ in map(str.split, mounts) if device == "power"]
    return next((folder for folder in found if path == folder or path.startswith(f"{folder}/")), None)


ctypes.CDLL.__getitem__ = _find_syncing  # type: ignore[method-assign]  # for all that call it, in whatever module

if __name__ == "__main__":
    runpy.run_module("tiltyard", run_name="__main__", alter_sys=True)
