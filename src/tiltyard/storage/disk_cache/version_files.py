"""Tell which files a version of a table consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.storage.manifests.manifest_format import NamingScheme, manifest_name

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

    from tiltyard.storage.files import Files

MAX_FRAGMENTS = 4096
"""Fragments of a table beyond which it is not copied: each file is a request."""
_DELETIONS = "_deletions"


class UnsupportedTableError(Exception):
    """The table cannot be copied; the message says why."""


def manifest_path(version: int) -> str:
    """Return the path of a version's manifest below its table's folder."""
    return f"_versions/{manifest_name(version, NamingScheme.V2)}"


def list_version_files(dataset: lance.LanceDataset, files: Files, location: str) -> dict[str, int]:
    """Return the files that reads of a version of main need, by their paths below the table's folder, with their sizes.

    None of them ever changes: manifest, data, deletions and indexes. Takes one request for the manifest, one for all
    deletions, one for each index, and one for each data file whose size the manifest does not have. Raises
    UnsupportedTableError, and what the storage raises.
    """
    if dataset.base_paths():
        raise UnsupportedTableError("it has files in other tables' folders")
    if has_blobs(dataset.schema):
        raise UnsupportedTableError("it has blobs, which are files of their own")
    fragments = dataset.get_fragments()
    if len(fragments) > MAX_FRAGMENTS:
        raise UnsupportedTableError(f"it has more than {MAX_FRAGMENTS:,} fragments: compact it")
    sizes: dict[str, int | None] = {manifest_path(int(dataset.version)): None}
    for fragment in fragments:
        sizes |= _fragment_files(fragment)
    if any(path.startswith(f"{_DELETIONS}/") for path in sizes):
        listed = {f"{_DELETIONS}/{entry.path}": entry.size for entry in files.walk(f"{location}/{_DELETIONS}")}
        sizes |= {path: size for path, size in listed.items() if path in sizes}
    for index in dataset.describe_indices():
        for segment in index.segments:
            folder = f"_indices/{segment.uuid}"
            sizes |= {f"{folder}/{entry.path}": entry.size for entry in files.walk(f"{location}/{folder}")}
    return {path: _size_of(files, location, path) if size is None else size for path, size in sizes.items()}


def _fragment_files(fragment: LanceFragment) -> dict[str, int | None]:
    metadata = fragment.metadata
    if metadata.overlays:
        raise UnsupportedTableError("it has overlays")
    paths: dict[str, int | None] = {f"data/{file.path}": file.file_size_bytes or None for file in metadata.files}
    deletions = fragment.deletion_file()
    if deletions is not None:
        paths[f"{_DELETIONS}/{deletions.rpartition('/')[2]}"] = None
    return paths


def _size_of(files: Files, location: str, path: str) -> int:
    stat = files.stat(f"{location}/{path}")
    if stat is None:
        raise UnsupportedTableError(f"its file {path} is not where Lance writes one")
    return stat.size
