"""What a loss of power leaves of a tree, in four strengths; written to a folder of the real file system."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.power.tree import PAGE, File, Folder, Node, SymbolicLink, Tree, set_name

SECTOR = 512


class Strength(StrEnum):
    """How much a file system loses of what was not fsynced."""

    KILL = "kill"  # nothing: what processes leave when they are killed
    ORDERED = "ordered"  # ext4: a prefix of all changes of names, from the last fsync on; contents as fsynced
    RANDOM = "random"  # any of the changes and of the 4 KiB pages, some of these torn
    STRICT = "strict"  # POSIX's promise alone: names by their folder's fsync, contents by the file's


@dataclass(frozen=True, slots=True)
class Survivors:
    """The names of each folder, and the content of each file."""

    names: Callable[[Folder], Mapping[bytes, Node]]
    content: Callable[[File], bytes | bytearray]


def survive(tree: Tree, strength: Strength, chance: random.Random) -> Survivors:
    """Decide what is left of a tree."""
    match strength:
        case Strength.KILL:
            return Survivors(
                lambda folder: {name: node for name, (_, node) in folder.entries.items()}, lambda file: file.data
            )
        case Strength.STRICT:
            return Survivors(lambda folder: folder.disk, lambda file: file.disk)
        case Strength.ORDERED:
            return _survive_in_order(tree, chance)
        case Strength.RANDOM:
            return _survive_by_chance(tree, chance)


def _survive_in_order(tree: Tree, chance: random.Random) -> Survivors:
    """Keep what the journal has committed, and some of the records after that, from the oldest on."""
    names: dict[int, dict[bytes, Node]] = {}
    contents: dict[int, bytes] = {}
    for record in tree.journal[: chance.randint(0, len(tree.journal))]:
        if isinstance(record[0], File):
            contents[record[0].number] = record[1]
        else:
            for folder, name, node in record:
                set_name(names.setdefault(folder.number, dict(folder.ordered)), name, node)

    def content(file: File) -> bytes | bytearray:
        committed = file.disk if file.committed is None else file.committed
        return contents.get(file.number, committed)

    return Survivors(lambda folder: names.get(folder.number, folder.ordered), content)


def _survive_by_chance(tree: Tree, chance: random.Random) -> Survivors:
    """Keep a share of the changes of names, each whole; and of the pages of files, with sectors of the last one."""
    share = chance.random()
    names = {node.number: dict(node.disk) for node in tree.nodes.values() if isinstance(node, Folder)}
    changes: dict[int, list[tuple[Folder, bytes, Node | None]]] = defaultdict(list)
    for node in tree.nodes.values():
        if isinstance(node, Folder):
            for number, name, named in node.pending:
                changes[number].append((node, name, named))
    for number in sorted(changes):
        if chance.random() < share:
            for folder, name, named in changes[number]:
                set_name(names[folder.number], name, named)
    return Survivors(lambda folder: names[folder.number], lambda file: _tear(file, share, chance))


def _tear(file: File, share: float, chance: random.Random) -> bytes | bytearray:
    if not file.dirty and len(file.data) == len(file.disk):
        return file.disk
    content, size = bytearray(file.disk), len(file.disk) if chance.random() > share else len(file.data)
    content.extend(bytes(max(size - len(content), 0)))
    for page in sorted(file.dirty):
        if chance.random() < share:
            start = page * PAGE
            end = start + (PAGE if chance.random() < 0.75 else SECTOR * chance.randint(1, PAGE // SECTOR - 1))
            new = file.data[start:end]
            if start < len(content):
                content[start : start + len(new)] = new
    del content[size:]
    return content


def write_survivors(tree: Tree, survivors: Survivors, target: str) -> None:
    """Write what is left to a new folder, with owners, modes and times."""
    _write_folder(tree.root, survivors, target, {})


def _write_folder(folder: Folder, survivors: Survivors, path: str, written: dict[int, str]) -> None:
    Path(path).mkdir()
    for name, node in survivors.names(folder).items():
        child = f"{path}/{os.fsdecode(name)}"
        if isinstance(node, Folder):
            if node.number not in written:  # a rename may have left both names of a folder
                written[node.number] = child
                _write_folder(node, survivors, child, written)
        elif node.number in written:
            os.link(written[node.number], child)
        elif isinstance(node, SymbolicLink):
            Path(child).symlink_to(os.fsdecode(node.target))
        else:
            assert isinstance(node, File)
            written[node.number] = child
            Path(child).write_bytes(survivors.content(node))
            _set_attributes(node, child)
    _set_attributes(folder, path)


def _set_attributes(node: Node, path: str) -> None:
    os.chown(path, node.uid, node.gid)
    Path(path).chmod(node.mode & 0o7777)
    os.utime(path, ns=(node.changed, node.changed))
