"""Read partition columns from folder names: `year=2013/month=01/…` (Hive), or positional values (`2013/01/…`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.text_types import infer_type

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder name for null, and for empty text: writers do not distinguish them."""

HIVE, OFF = "hive", "off"

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partition columns of a source, and the values of each file, in the order of the files."""

    schema: pa.Schema
    values: tuple[Values, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self.schema.names)


def read_partitions(layout: str, root: str, paths: Sequence[str]) -> Partitions:
    """Read the partition columns of files below `root`, with types that lose nothing.

    `layout` is `hive` (folders NAME=VALUE), `off`, or the names of the columns whose values the folders below the
    source are (`year/month`). Values are percent-decoded. Raises RefusedError for files in folders of other columns, or
    for an invalid layout.
    """
    if layout == OFF or not paths:
        return Partitions(pa.schema([]), ((),) * len(paths))
    names, rows = _read_hive(root, paths) if layout == HIVE else _read_by_position(layout, root, paths)
    columns = [pa.array([row[at] for row in rows], pa.string()) for at in range(len(names))]
    fields = [pa.field(name, _column_type(column)) for name, column in zip(names, columns, strict=True)]
    return Partitions(pa.schema(fields), tuple(rows))


def _read_hive(root: str, paths: Sequence[str]) -> tuple[tuple[str, ...], list[Values]]:
    first: tuple[str, ...] | None = None
    rows = []
    for path in paths:
        pairs = [folder.split("=", 1) for folder in _partition_folders(root, path) if _is_hive_folder(folder)]
        names = tuple(unquote(name) for name, _ in pairs)
        first = names if first is None else first
        if names != first:
            there, here = (" and ".join(f"'{name}'" for name in columns) or "none" for columns in (first, names))
            raise RefusedError(
                f"{path} lies in folders of the partition columns {here}, and {paths[0]} of {there}: put all files "
                "into folders of the same columns, or take no columns from folders (--partitions off)."
            )
        rows.append(tuple(_decode_value(text) for _, text in pairs))
    if first and len(set(first)) < len(first):
        raise RefusedError(f"{paths[0]} lies in two folders of one partition column: say --partitions off.")
    return first or (), rows


def _partition_folders(root: str, path: str) -> list[str]:
    """Return the folders of a file below the source's root, and trailing `name=value` folders of the root itself."""
    root = root.rstrip("/")
    below_root = path.removeprefix(root).strip("/").split("/")[:-1] if path.startswith(root + "/") else []
    root_parts = (root if below_root or path != root else root.rpartition("/")[0]).split("/")
    root_folders: list[str] = []
    while root_parts and _is_hive_folder(root_parts[-1]):
        root_folders.insert(0, root_parts.pop())
    return [*root_folders, *below_root]


def _is_hive_folder(folder: str) -> bool:
    return "=" in folder[1:]


def _read_by_position(layout: str, root: str, paths: Sequence[str]) -> tuple[tuple[str, ...], list[Values]]:
    names = tuple(name.strip() for name in layout.strip("/").split("/"))
    if not all(names) or len(set(names)) < len(names) or any("=" in name for name in names):
        raise RefusedError(f"--partitions is '{layout}': write hive, off, or the columns of the folders (year/month).")
    rows = []
    for path in paths:
        folders = path.removeprefix(root.rstrip("/")).strip("/").split("/")[:-1]
        if len(folders) < len(names):
            raise RefusedError(f"{path} lies in fewer folders than --partitions names columns: {layout}.")
        rows.append(tuple(_decode_value(text) for text in folders[: len(names)]))
    return names, rows


def _decode_value(text: str) -> str | None:
    return None if text == NULL else unquote(text)


def _column_type(values: pa.Array) -> pa.DataType:
    dtype = infer_type(values)
    return pa.string() if pa.types.is_null(dtype) else dtype
