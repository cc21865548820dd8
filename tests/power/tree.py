"""Files and folders in memory, each with what a program sees and with what is on the disk by now.

Three books are kept of names: what programs see (`entries`), what the fsync of a folder has made durable (`disk`), and
what the commits of an ordered journal have (`ordered`). Contents have two: `data`, and `disk`, as of the last fsync.
"""

from __future__ import annotations

import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

PAGE = 4096


@dataclass(eq=False, slots=True)
class Node:
    """What has an inode; mode, owner and times count as durable at once."""

    number: int
    mode: int
    uid: int = 0
    gid: int = 0
    changed: int = field(default_factory=time.time_ns)
    """When it was modified, in nanoseconds since 1970."""
    links: int = 0


@dataclass(eq=False, slots=True)
class SymbolicLink(Node):
    """A symbolic link; its target is durable with its name."""

    target: bytes = b""


@dataclass(eq=False, slots=True)
class File(Node):
    """A file; `dirty` are the pages that differ from the disk's."""

    data: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    committed: bytes | None = None
    """Content that the ordered journal has put to the disk without an fsync, where that is newer than `disk`."""

    def write(self, offset: int, content: memoryview) -> None:
        """Write at an offset, beyond the end if need be."""
        end = offset + len(content)
        if offset > len(self.data):
            self.resize(offset)
        self.data[offset:end] = content
        self.dirty.update(range(offset // PAGE, -(-end // PAGE)))

    def resize(self, size: int) -> None:
        """Cut the end off, or add zeros."""
        old = len(self.data)
        if size < old:
            del self.data[size:]
        else:
            self.data.extend(bytes(size - old))
        self.dirty.update(range(min(size, old) // PAGE, -(-max(size, old) // PAGE)))

    def sync(self) -> None:
        """Put the content to the disk."""
        size = len(self.data)
        if len(self.disk) < size:
            self.disk.extend(bytes(size - len(self.disk)))
        del self.disk[size:]
        for page in self.dirty:
            start = page * PAGE
            if start < size:
                self.disk[start : start + PAGE] = self.data[start : start + PAGE]
        self.dirty.clear()
        self.committed = None


@dataclass(eq=False, slots=True)
class Folder(Node):
    """A folder; entries have a cookie, which grows, so that a listing goes on where it stopped."""

    entries: dict[bytes, tuple[int, Node]] = field(default_factory=dict)
    disk: dict[bytes, Node] = field(default_factory=dict)
    ordered: dict[bytes, Node] = field(default_factory=dict)
    pending: list[tuple[int, bytes, Node | None]] = field(default_factory=list)
    """Changes of names since the last fsync: number of the change, name, what it names then."""

    def sync(self) -> None:
        """Put the names to the disk."""
        for _, name, node in self.pending:
            set_name(self.disk, name, node)
        self.pending.clear()


Names = tuple[tuple[Folder, bytes, "Node | None"], ...]
"""One change of names, which an ordered journal makes whole or not at all."""


@dataclass(slots=True)
class Tree:
    """A file system's nodes by their numbers, and its journal since the last commit."""

    nodes: dict[int, Node] = field(default_factory=dict)
    journal: list[Names | tuple[File, bytes]] = field(default_factory=list)
    changes: int = 0
    cookies: int = 0

    def __post_init__(self) -> None:
        self.nodes[1] = Folder(1, stat.S_IFDIR | 0o755, links=2)

    @property
    def root(self) -> Folder:
        root = self.nodes[1]
        assert isinstance(root, Folder)
        return root

    def make(self, mode: int, uid: int, gid: int, target: bytes = b"") -> Node:
        """Make a node without a name."""
        number = len(self.nodes) + 1
        if stat.S_ISDIR(mode):
            node: Node = Folder(number, mode, uid, gid)
        elif stat.S_ISLNK(mode):
            node = SymbolicLink(number, mode, uid, gid, target=target)
        else:
            node = File(number, mode, uid, gid)
        self.nodes[number] = node
        return node

    def change(self, *names: tuple[Folder, bytes, Node | None]) -> None:
        """Set or remove names, all at once."""
        self.changes += 1
        now = time.time_ns()
        for folder, name, node in names:
            cookie, old = folder.entries.get(name, (0, None))
            if old is not None:
                old.links -= 1
            if node is None:
                folder.entries.pop(name, None)
            else:
                node.links += 1
                if not cookie:
                    self.cookies += 1
                folder.entries[name] = (cookie or self.cookies, node)
            folder.pending.append((self.changes, name, node))
            folder.changed = now
        self.journal.append(names)

    def flush(self, file: File) -> None:
        """Order a file's content before the next changes of names, as ext4 does for a rename over another file."""
        if file.dirty:
            self.journal.append((file, bytes(file.data)))

    def truncate(self, file: File, size: int) -> None:
        """Resize; an ordered journal has smaller sizes in order, too."""
        if size < len(file.data):
            content = file.disk if file.committed is None else file.committed
            self.journal.append((file, bytes(content[:size])))
        file.resize(size)

    def commit(self) -> None:
        """Commit the ordered journal, as each fsync does."""
        for record in self.journal:
            if isinstance(record[0], File):
                record[0].committed = record[1]
            else:
                for folder, name, node in record:
                    set_name(folder.ordered, name, node)
        self.journal.clear()

    def sync_all(self) -> None:
        """Put everything to the disk."""
        self.commit()
        for node in self.nodes.values():
            if isinstance(node, (File, Folder)):
                node.sync()

    def load(self, path: Path, folder: Folder | None = None, seen: dict[int, Node] | None = None) -> None:
        """Take over a folder of the real file system; all of it is on the disk."""
        into, seen = folder or self.root, {} if seen is None else seen
        for child in path.iterdir():
            status = child.lstat()
            node = seen.get(status.st_ino)
            if node is None:
                target = bytes(child.readlink()) if child.is_symlink() else b""
                node = seen[status.st_ino] = self.make(status.st_mode, status.st_uid, status.st_gid, target)
                if isinstance(node, File):
                    node.write(0, memoryview(child.read_bytes()))
                elif isinstance(node, Folder):
                    self.load(child, node, seen)
                node.changed = status.st_mtime_ns
            self.change((into, bytes(Path(child.name)), node))
        if folder is None:
            self.sync_all()


def set_name(names: dict[bytes, Node], name: bytes, node: Node | None) -> None:
    """Set or remove a name."""
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
