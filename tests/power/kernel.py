"""The kernel's side of a file system in user space: mount(2), and the messages of /dev/fuse.

Spoken here directly (include/uapi/linux/fuse.h, version 7.31), without libfuse: nodes have numbers then, so that links,
renames and files that are open without a name are what they are on a disk; and a request costs 20 µs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct

MAX_WRITE_BYTES = 1 << 20
DEVICE = "/dev/fuse"

IN_HEADER = Struct("<IIQQIIIHH")
OUT_HEADER = Struct("<IiQ")
INIT = 26
_INIT_IN = Struct("<IIII")
_INIT_OUT = Struct("<IIIIHHIIHHIIH11H")
_NO_REPLY = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
# ASYNC_READ, BIG_WRITES, PARALLEL_DIROPS, NO_OPEN_SUPPORT, MAX_PAGES, NO_OPENDIR_SUPPORT, HANDLE_KILLPRIV_V2 (without
# which each write asks for an extended attribute); no WRITEBACK_CACHE: each write(2) is seen at once.
_FLAGS = 1 << 0 | 1 << 5 | 1 << 18 | 1 << 17 | 1 << 22 | 1 << 24 | 1 << 28
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2

Handler = Callable[[int, memoryview, tuple[int, int]], bytes]
"""Takes a node's number, the request's body and who asks (uid, gid); returns the reply's body, or raises OSError."""


def has_fuse() -> bool:
    """Return whether file systems can be mounted here: /dev/fuse, and the right to mount."""
    if os.geteuid() != 0 or not Path(DEVICE).exists():
        return False
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError:
        return False
    return True


def mount(folder: str) -> int:
    """Mount a file system on a folder; return the descriptor of its messages. Raises OSError."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"power", os.fsencode(folder), b"fuse", _MS_NOSUID | _MS_NODEV, options.encode()):
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, os.strerror(number), folder)
    return descriptor


def unmount(folder: str) -> None:
    """Take the file system off a folder at once, whoever uses it; ignore a folder without one."""
    ctypes.CDLL(None).umount2(os.fsencode(folder), _MNT_DETACH)


def serve(descriptor: int, handlers: Mapping[int, Handler]) -> None:
    """Answer requests until the file system is unmounted."""
    buffer = bytearray(MAX_WRITE_BYTES + (1 << 16))
    view = memoryview(buffer)
    while True:
        try:
            size = os.readv(descriptor, [buffer])
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                continue
            raise
        _, opcode, unique, number, uid, gid, _, _, _ = IN_HEADER.unpack_from(buffer)
        if opcode in _NO_REPLY:
            continue
        status, reply = 0, b""
        try:
            if opcode == INIT:
                reply = _initialize(view[IN_HEADER.size : size])
            elif opcode in handlers:
                reply = handlers[opcode](number, view[IN_HEADER.size : size], (uid, gid))
            else:
                status = -errno.ENOSYS
        except OSError as error:
            status, reply = -(error.errno or errno.EIO), b""
        except Exception:  # noqa: BLE001  # whoever called gets an answer in any case
            traceback.print_exc(file=sys.stderr)
            status = -errno.EIO
        with suppress(FileNotFoundError):  # the caller was killed
            os.write(descriptor, OUT_HEADER.pack(OUT_HEADER.size + len(reply), status, unique) + reply)


def _initialize(body: memoryview) -> bytes:
    _, minor, readahead, offered = _INIT_IN.unpack_from(body)
    pages = MAX_WRITE_BYTES // 4096
    return _INIT_OUT.pack(
        *(7, min(minor, 31), readahead, _FLAGS & offered, 64, 48, MAX_WRITE_BYTES, 1, pages, 0, 0, 0, 0),
        *(0,) * 11,
    )
