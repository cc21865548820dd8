"""Columns that folders hold: `year=2013/month=01/…` (Hive), or folders whose names are values (`2013/01/…`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from tiltyard.pipeline.sources.type_inference import guess_type
from tiltyard.pipeline.task_errors import RefusedError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""What stands for null in a folder's name, and for an empty text: writers make no difference."""

HIVE, OFF = "hive", "off"

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Partitions:
    """The columns that a source's folders hold, and the values of each file, in the order of the files."""

    schema: pa.Schema
    values: tuple[Values, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.schema.names)


def read_partitions(layout: str, root: str, paths: Sequence[str]) -> Partitions:
    """Read the partition columns of files below `root`, with types that lose nothing of what the folders say.

    `layout` is `hive` (folders NAME=VALUE), `off`, or the names of the columns that the folders below the source are
    values of (`year/month`). Values are percent-decoded. Raises RefusedError for files that lie in other folders than
    the rest, or for a layout that is none.
    """
    if layout == OFF or not paths:
        return Partitions(pa.schema([]), ((),) * len(paths))
    names, rows = _hive(root, paths) if layout == HIVE else _by_position(layout, root, paths)
    columns = [pa.array([row[at] for row in rows], pa.string()) for at in range(len(names))]
    fields = [pa.field(name, _typed(column)) for name, column in zip(names, columns, strict=True)]
    return Partitions(pa.schema(fields), tuple(rows))


def _hive(root: str, paths: Sequence[str]) -> tuple[tuple[str, ...], list[Values]]:
    first: tuple[str, ...] | None = None
    rows = []
    for path in paths:
        pairs = [folder.split("=", 1) for folder in _folders(root, path) if _is_pair(folder)]
        names = tuple(unquote(name) for name, _ in pairs)
        first = names if first is None else first
        if names != first:
            there, here = (" and ".join(f"'{name}'" for name in some) or "none" for some in (first, names))
            raise RefusedError(
                f"{path} lies in folders of the partition columns {here}, and {paths[0]} of {there}: put all files "
                "into folders of the same columns, or take no columns from folders (--partitions off)."
            )
        rows.append(tuple(_value(text) for _, text in pairs))
    if first and len(set(first)) < len(first):
        raise RefusedError(f"{paths[0]} lies in two folders of one partition column: say --partitions off.")
    return first or (), rows


def _folders(root: str, path: str) -> list[str]:
    """The folders of a file below the source's root, and those of the root's end that are pairs themselves."""
    root = root.rstrip("/")
    inside = path.removeprefix(root).strip("/").split("/")[:-1] if path.startswith(root + "/") else []
    above = (root if inside or path != root else root.rpartition("/")[0]).split("/")
    ending: list[str] = []
    while above and _is_pair(above[-1]):
        ending.insert(0, above.pop())
    return [*ending, *inside]


def _is_pair(folder: str) -> bool:
    return "=" in folder[1:]


def _by_position(layout: str, root: str, paths: Sequence[str]) -> tuple[tuple[str, ...], list[Values]]:
    names = tuple(name.strip() for name in layout.strip("/").split("/"))
    if not all(names) or len(set(names)) < len(names) or any("=" in name for name in names):
        raise RefusedError(f"--partitions is '{layout}': write hive, off, or the columns of the folders (year/month).")
    rows = []
    for path in paths:
        folders = path.removeprefix(root.rstrip("/")).strip("/").split("/")[:-1]
        if len(folders) < len(names):
            raise RefusedError(f"{path} lies in fewer folders than --partitions names columns: {layout}.")
        rows.append(tuple(_value(text) for text in folders[: len(names)]))
    return names, rows


def _value(text: str) -> str | None:
    return None if text == NULL else unquote(text)


def _typed(values: pa.Array) -> pa.DataType:
    found = guess_type(values)
    return pa.string() if pa.types.is_null(found) else found
