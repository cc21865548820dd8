"""Versions that only their publication sees, and the files that go with them when it fails.

Lance makes a manifest final, and so visible, as soon as a namespace names one that is still staged. So the block reads
copies of its manifests: they have final names, in a folder of the publication where no reader of the table looks.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lance
import lance_namespace as upstream
import obstore
from obstore.store import LocalStore

from tiltyard.model.object_store_options import open_object_store
from tiltyard.model.table_history import read_transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class Table:
    """Where a table lies; `declared` in this very publication, which then owns all of its files.

    `options` open its files, and may have an end.
    """

    path: tuple[str, ...]
    location: str
    options: Mapping[str, str]
    managed: bool
    declared: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ending(self) -> bool:
        """Whether its credentials are about to end."""
        end = self.options.get("expires_at_millis")
        return end is not None and time.time() * 1000 >= int(end) - int(self.options.get("refresh_offset_millis", 0))

    def files(self) -> Any:
        """Its files, as an object store."""
        if "://" in self.location:
            return open_object_store(self.location, self.options)
        return LocalStore(self.location, automatic_cleanup=True)

    def delete(self) -> None:
        """Delete all of its files."""
        if "://" not in self.location:
            shutil.rmtree(self.location, ignore_errors=True)
            return
        files = self.files()
        while paths := [entry["path"] for entry in next(iter(obstore.list(files)), ())]:
            obstore.delete(files, paths)


@dataclass(frozen=True, slots=True)
class Staged:
    """A version that Lance staged: what it asked to commit, the copy that the block reads, and what is in both."""

    request: upstream.CreateTableVersionRequest
    copy: upstream.TableVersion
    content: bytes


@dataclass(slots=True)
class Line:
    """The versions that a publication adds to one branch of a table, behind `base`; others were `refused`."""

    table: Table
    branch: str | None
    copies: str
    base: int = 0
    staged: dict[int, Staged] = field(default_factory=dict)
    refused: list[Staged] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def latest(self) -> int:
        """The latest version, as the block sees it."""
        return max(self.staged, default=self.base)

    @property
    def home(self) -> str:
        """Where the branch lies inside the table's folder: empty, or with a closing slash."""
        return f"tree/{self.branch}/" if self.branch else ""

    def hold(self, request: upstream.CreateTableVersionRequest) -> Staged:
        """Copy a staged manifest to where the block, and nobody else, reads it."""
        folder, _, name = request.manifest_path.rpartition("/")
        above = folder.removesuffix(f"{self.home}_versions")
        copy = f"{self.copies}/{self.home}{name.partition('.')[0]}.manifest"
        files = self.table.files()
        content = bytes(obstore.get(files, self.relative(request.manifest_path)).bytes())
        made = obstore.put(files, copy, content, use_multipart=False)
        version = upstream.TableVersion(
            version=request.version, manifest_path=above + copy, manifest_size=len(content), e_tag=made["e_tag"]
        )
        return Staged(request, version, content)

    def relative(self, manifest: str) -> str:
        """The path of one of its manifests inside the table's folder."""
        return f"{self.home}_versions/{manifest.rpartition('/')[2]}"

    def is_final(self, staged: Staged, manifest: str) -> bool:
        """Whether a final manifest is what was staged."""
        try:
            return bytes(obstore.get(self.table.files(), self.relative(manifest)).bytes()) == staged.content
        except FileNotFoundError:
            return False

    def forget_copies(self) -> None:
        """Delete the copies: the versions are committed."""
        _delete(self.table.files(), [self._copy(staged) for staged in self.staged.values()])

    def restored(self) -> list[int]:
        """The older versions that the block has restored: its own name their files."""
        datasets = (self._dataset(staged.copy) for staged in self._lost())
        found = (transaction.operation for one in datasets if (transaction := read_transaction(one, int(one.version))))
        return [operation.version for operation in found if isinstance(operation, lance.LanceOperation.Restore)]

    def discard(self, base_manifest: str | None, other_manifests: Iterable[str] | None) -> None:
        """Delete what was staged, and the files that came with it; `base_manifest` is that of the version `base`.

        `other_manifests` are those of all other versions that the files may be part of. Without them only the commits
        themselves go.
        """
        files = self.table.files()
        lost = self._lost()
        datasets = [self._dataset(staged.copy) for staged in lost]
        if other_manifests is not None:
            brought = self._brought(files, datasets, base_manifest)
            others = (upstream.TableVersion(version=0, manifest_path=path) for path in other_manifests)
            kept = {self.home + path for version in others for path in _named(self._dataset(version))}
            _delete(files, [path for path in brought if not _is_in(path, kept)])
        _delete(files, [self.home + path for dataset in datasets for path in _transaction_files(dataset)])
        _delete(files, [self.relative(staged.request.manifest_path) for staged in lost])
        _delete(files, [self._copy(staged) for staged in lost])

    def _lost(self) -> list[Staged]:
        return [*self.staged.values(), *self.refused]

    def _brought(self, files: Any, datasets: Iterable[lance.LanceDataset], base_manifest: str | None) -> list[str]:
        """The files that the versions name and `base` does not.

        A restored version names old files: those that are not younger than `base` are left alone.
        """
        named = {path for dataset in datasets for path in _named(dataset)}
        since = None
        if base_manifest:
            base = upstream.TableVersion(version=self.base, manifest_path=base_manifest)
            named -= _named(self._dataset(base))
            since = obstore.head(files, self.relative(base_manifest))["last_modified"]
        found = [entry for path in named for entry in _entries(files, self.home + path)]
        return [entry["path"] for entry in found if since is None or entry["last_modified"] > since]

    def _copy(self, staged: Staged) -> str:
        return f"{self.copies}/{self.home}{staged.copy.manifest_path.rpartition('/')[2]}"

    def _dataset(self, version: upstream.TableVersion) -> lance.LanceDataset:
        """The branch at a version, wherever its manifest lies; a branch's folder opens like a table's."""
        view = SingleVersionNamespace(f"{self.table.location}/{self.home}".rstrip("/"), self.table.options, version)
        return lance.dataset(namespace_client=view, table_id=list(self.table.path))


class SingleVersionNamespace(upstream.LanceNamespace):
    """A table that has one version, wherever that one's manifest lies. It can be pickled."""

    def __init__(self, location: str, options: Mapping[str, str], version: upstream.TableVersion) -> None:
        self._location = location
        self._options = dict(options)
        self._version = version

    def namespace_id(self) -> str:
        """What tells it from others."""
        return f"{self._location} {self._version.manifest_path}"

    def describe_table(self, request: Any) -> upstream.DescribeTableResponse:
        """Where it lies."""
        return upstream.DescribeTableResponse(
            location=self._location, storage_options=self._options, managed_versioning=True
        )

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """The one."""
        return upstream.ListTableVersionsResponse(versions=[self._version])

    def describe_table_version(self, request: Any) -> upstream.DescribeTableVersionResponse:
        """The same."""
        return upstream.DescribeTableVersionResponse(version=self._version)


def _named(dataset: lance.LanceDataset) -> set[str]:
    """The data, deletion and index files of a version, relative to its branch; folders have a closing slash."""
    named: set[str] = set()
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            if file.base_id is None:  # what is too large for it lies beside it, in a folder
                named.update((f"data/{file.path}", f"data/{file.path.removesuffix('.lance')}/"))
        if deletions := fragment.deletion_file():
            named.add(deletions)
    for index in dataset.describe_indices():
        named.update(f"_indices/{segment.uuid}/" for segment in index.segments)
    return named


def _is_in(path: str, named: set[str]) -> bool:
    """Whether a file is named, or lies in a folder that is."""
    return path in named or any(path.startswith(folder) for folder in named if folder.endswith("/"))


def _transaction_files(dataset: lance.LanceDataset) -> list[str]:
    """Where a version's transaction may lie: it is named by the version that it was written against."""
    version = int(dataset.version)
    transaction = read_transaction(dataset, version)
    if transaction is None:
        return []
    return [f"_transactions/{read}-{transaction.uuid}.txn" for read in range(transaction.read_version, version)]


def _entries(files: Any, path: str) -> list[Any]:
    """The file at a path, or all in the folder, if they are there."""
    if path.endswith("/"):
        return [entry for page in obstore.list(files, prefix=path) for entry in page]
    try:
        return [obstore.head(files, path)]
    except FileNotFoundError:
        return []


def _delete(files: Any, paths: Iterable[str]) -> None:
    """Delete files; missing ones are fine."""
    for path in paths:
        with suppress(FileNotFoundError):
            obstore.delete(files, path)
