"""A file system that knows what is on the disk, loses power on command, and has as much room as it is told.

    python -m tests.power.filesystem MOUNTPOINT [SOURCE]

mounts it, with a copy of a folder, says `ready`, and ends when it is unmounted or its starter has ended. It takes
commands as an extended attribute of its root (`CONTROL`), from whatever process: see `FileSystem.control`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import signal
import stat
import sys
import time
from pathlib import Path
from struct import Struct

from tests.power.kernel import Handler, mount, serve, unmount
from tests.power.strengths import Strength, survive, write_survivors
from tests.power.tree import File, Folder, Node, SymbolicLink, Tree

CONTROL = "user.power"
_CACHED_SECONDS = 1 << 20  # nothing but this mount changes it
_ATTRIBUTES = Struct("<6Q10I")
_ENTRY = Struct("<4Q2I")
_ATTRIBUTE_REPLY = Struct("<QII")
_SET_ATTRIBUTES = Struct("<2I6Q8I")
_READ = Struct("<QQIIQII")
_WRITE = Struct("<QQIIQII")
_STATFS = Struct("<5Q4I6I")
_ENTRY_OF_LISTING = Struct("<QQII")
_TWO = Struct("<II")
_FOUR = Struct("<IIII")
_NUMBER = Struct("<Q")
_RENAME_2 = Struct("<QII")
_MODE, _UID, _GID, _SIZE, _MTIME, _MTIME_NOW = 1, 2, 4, 8, 32, 256
_NOREPLACE = 1
_BLOCKS = 1 << 20


class FileSystem:
    """The operations, on a tree in memory."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.is_cut = False
        self._left: int | None = None
        """Changes until the power is cut."""
        self._room: int | None = None
        """Bytes until the disk is full."""
        self._count = 0
        read: dict[int, Handler] = {
            1: self.look_up,
            5: self.read_link,
            15: self.read,
            17: self.stat,
            28: self.list,
        }
        change: dict[int, Handler] = {
            4: self.set_attributes,
            6: self.make_link,
            8: self.make_file,
            9: self.make_folder,
            10: self.remove,
            11: self.remove_folder,
            12: self.rename,
            13: self.link,
            16: self.write,
            20: self.sync,
            30: self.sync,
            45: self.rename_2,
        }
        self.handlers: dict[int, Handler] = {
            **{opcode: self._reading(handler) for opcode, handler in read.items()},
            **{opcode: self._changing(handler) for opcode, handler in change.items()},
            3: self.get_attributes,  # with the power off, too: the way to a command passes by it
            21: self.control,
            22: self.report,
        }

    def _reading(self, handler: Handler) -> Handler:
        def guarded(number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
            if self.is_cut:
                raise OSError(errno.EIO, "")
            return handler(number, body, caller)

        return guarded

    def _changing(self, handler: Handler) -> Handler:
        def guarded(number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
            self._count += 1
            if self._left is not None:
                self._left -= 1
                self.is_cut = self.is_cut or self._left < 0
            if self.is_cut:
                raise OSError(errno.EIO, "")
            return handler(number, body, caller)

        return guarded

    def control(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        """Obey a command.

        `cut`: the power is off, and everything fails with EIO. `arm N`: that after so many changes more. `syncfs`: all
        is on the disk now. `room N`: after so many bytes the disk is full (ENOSPC); `room` without a number: it is not.
        `keep STRENGTH SEED FOLDER`: write what a loss of power leaves to a new folder.
        """
        name, value = bytes(body[_TWO.size :]).split(b"\0", 1)
        if number != 1 or name != CONTROL.encode():
            raise OSError(errno.EOPNOTSUPP, "")
        match value.decode().split(" ", 3):
            case ["cut"]:
                self.is_cut = True
            case ["arm", changes]:
                self._left = int(changes)
            case ["room"]:
                self._room = None
            case ["room", size]:
                self._room = int(size)
            case ["syncfs"]:
                if self.is_cut:
                    raise OSError(errno.EIO, "")
                self.tree.sync_all()
            case ["keep", strength, seed, folder]:
                survivors = survive(self.tree, Strength(strength), random.Random(seed))
                write_survivors(self.tree, survivors, folder)
            case _:
                raise OSError(errno.EINVAL, "")
        return b""

    def report(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        """Report the number of changes, and whether the power is cut, as JSON."""
        size, _ = _TWO.unpack_from(body)
        if number != 1 or bytes(body[_TWO.size :]).rstrip(b"\0") != CONTROL.encode():
            raise OSError(errno.ENODATA, "")
        value = json.dumps({"changes": self._count, "cut": self.is_cut}).encode()
        return value if size else _TWO.pack(len(value), 0)

    # Reading

    def look_up(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        _, node = self._folder(number).entries.get(_name(body), (0, None))
        return self._entry(node) if node else _ENTRY.pack(0, 0, _CACHED_SECONDS, 0, 0, 0) + bytes(_ATTRIBUTES.size)

    def get_attributes(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        return _ATTRIBUTE_REPLY.pack(_CACHED_SECONDS, 0, 0) + _attributes(self.tree.nodes[number])

    def read_link(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        node = self.tree.nodes[number]
        assert isinstance(node, SymbolicLink)
        return node.target

    def read(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        _, offset, size, *_ = _READ.unpack_from(body)
        return bytes(self._file(number).data[offset : offset + size])

    def stat(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        left = _BLOCKS if self._room is None else self._room // 4096
        return _STATFS.pack(_BLOCKS, left, left, _BLOCKS, _BLOCKS, 4096, 255, 4096, 0, *(0,) * 6)

    def list(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        _, offset, size, *_ = _READ.unpack_from(body)
        listing = bytearray()
        for name, (cookie, node) in self._folder(number).entries.items():
            if cookie > offset:
                padding = -len(name) % 8
                if len(listing) + _ENTRY_OF_LISTING.size + len(name) + padding > size:
                    break
                listing += _ENTRY_OF_LISTING.pack(node.number, cookie, len(name), stat.S_IFMT(node.mode) >> 12)
                listing += name + bytes(padding)
        return bytes(listing)

    # Changes

    def set_attributes(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        valid, _, _, size, _, _, mtime, _, _, mtime_ns, _, mode, _, uid, gid, _ = _SET_ATTRIBUTES.unpack_from(body)
        node = self.tree.nodes[number]
        if valid & _MODE:
            node.mode = stat.S_IFMT(node.mode) | mode & 0o7777
        if valid & _UID:
            node.uid = uid
        if valid & _GID:
            node.gid = gid
        if valid & _SIZE:
            file = self._file(number)
            self._take_room(size - len(file.data))
            self.tree.truncate(file, size)
            node.changed = time.time_ns()
        if valid & _MTIME_NOW:
            node.changed = time.time_ns()
        elif valid & _MTIME:
            node.changed = mtime * 1_000_000_000 + mtime_ns
        return _ATTRIBUTE_REPLY.pack(_CACHED_SECONDS, 0, 0) + _attributes(node)

    def make_link(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        name, target, _ = bytes(body).split(b"\0", 2)
        return self._make(number, name, stat.S_IFLNK | 0o777, caller, target)

    def make_file(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        mode, *_ = _FOUR.unpack_from(body)
        return self._make(number, _name(body[_FOUR.size :]), mode, caller)

    def make_folder(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        mode, _ = _TWO.unpack_from(body)
        return self._make(number, _name(body[_TWO.size :]), stat.S_IFDIR | mode, caller)

    def _make(self, number: int, name: bytes, mode: int, caller: tuple[int, int], target: bytes = b"") -> bytes:
        folder = self._folder(number)
        if name in folder.entries:
            raise OSError(errno.EEXIST, "")
        self._take_room(1)
        node = self.tree.make(mode, *caller, target)
        self.tree.change((folder, name, node))
        return self._entry(node)

    def link(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        (old,) = _NUMBER.unpack_from(body)
        folder, name, node = self._folder(number), _name(body[_NUMBER.size :]), self.tree.nodes[old]
        if name in folder.entries:
            raise OSError(errno.EEXIST, "")
        self.tree.change((folder, name, node))
        return self._entry(node)

    def remove(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        folder, name = self._folder(number), _name(body)
        if name not in folder.entries:
            raise OSError(errno.ENOENT, "")
        self.tree.change((folder, name, None))
        return b""

    def remove_folder(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        _, node = self._folder(number).entries.get(_name(body), (0, None))
        if isinstance(node, Folder) and node.entries:
            raise OSError(errno.ENOTEMPTY, "")
        return self.remove(number, body, caller)

    def rename(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        (to,) = _NUMBER.unpack_from(body)
        return self._rename(number, to, body[_NUMBER.size :], 0)

    def rename_2(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        to, flags, _ = _RENAME_2.unpack_from(body)
        return self._rename(number, to, body[_RENAME_2.size :], flags)

    def _rename(self, number: int, to: int, names: memoryview, flags: int) -> bytes:
        old_name, new_name, _ = bytes(names).split(b"\0", 2)
        source, target = self._folder(number), self._folder(to)
        _, node = source.entries.get(old_name, (0, None))
        _, replaced = target.entries.get(new_name, (0, None))
        if node is None:
            raise OSError(errno.ENOENT, "")
        if flags & ~_NOREPLACE:
            raise OSError(errno.EINVAL, "")
        if replaced is not None:
            if flags & _NOREPLACE:
                raise OSError(errno.EEXIST, "")
            if isinstance(replaced, Folder) and replaced.entries:
                raise OSError(errno.ENOTEMPTY, "")
            if isinstance(node, File):
                self.tree.flush(node)
        if node is not replaced:
            self.tree.change((target, new_name, node), (source, old_name, None))
        return b""

    def write(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        _, offset, size, *_ = _WRITE.unpack_from(body)
        file = self._file(number)
        self._take_room(offset + size - len(file.data))
        file.write(offset, body[_WRITE.size : _WRITE.size + size])
        file.changed = time.time_ns()
        return _TWO.pack(size, 0)

    def sync(self, number: int, body: memoryview, caller: tuple[int, int]) -> bytes:
        """Sync a file or a folder: an ordered journal is committed with it."""
        node = self.tree.nodes[number]
        assert isinstance(node, (File, Folder))
        self.tree.commit()
        node.sync()
        return b""

    def _take_room(self, size: int) -> None:
        if self._room is not None and size > 0:
            if size > self._room:
                raise OSError(errno.ENOSPC, "")
            self._room -= size

    def _folder(self, number: int) -> Folder:
        node = self.tree.nodes[number]
        if not isinstance(node, Folder):
            raise OSError(errno.ENOTDIR, "")
        return node

    def _file(self, number: int) -> File:
        node = self.tree.nodes[number]
        if not isinstance(node, File):
            raise OSError(errno.EISDIR, "")
        return node

    @staticmethod
    def _entry(node: Node) -> bytes:
        return _ENTRY.pack(node.number, 0, _CACHED_SECONDS, _CACHED_SECONDS, 0, 0) + _attributes(node)


def _name(body: memoryview) -> bytes:
    return bytes(body).rstrip(b"\0")


def _attributes(node: Node) -> bytes:
    size = len(node.data) if isinstance(node, File) else len(node.target) if isinstance(node, SymbolicLink) else 4096
    seconds, nanoseconds = divmod(node.changed, 1_000_000_000)
    return _ATTRIBUTES.pack(
        *(node.number, size, -(-size // 512), seconds, seconds, seconds, nanoseconds, nanoseconds, nanoseconds),
        *(node.mode, max(node.links, 0), node.uid, node.gid, 0, 4096, 0),
    )


def main(mountpoint: str, source: str | None = None) -> None:
    """Mount, and serve until it is unmounted."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: nobody would unmount it
    signal.signal(signal.SIGTERM, lambda *_: (unmount(mountpoint), os._exit(0)))
    tree = Tree()
    if source:
        tree.load(Path(source))
    descriptor = mount(mountpoint)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        serve(descriptor, FileSystem(tree).handlers)
    finally:
        unmount(mountpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
