"""Hold back what a block changes: versions that only it sees, and the batch for its end.

Lance finalizes a manifest, and so makes it visible, as soon as a namespace returns one that is still staged. So the
block reads copies of its manifests: they have final names, in a folder of the publication that no reader looks into.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import lance
import lance_namespace as upstream
import obstore
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableNotFoundError
from obstore.store import LocalStore
from pydantic import BaseModel

from tiltyard.calls.pylance_messages import fields_of
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.model.settings.object_stores import open_object_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class PublishedTable:
    """A table that a block reads or writes; `declared` by this publication, which then owns all of its files.

    `options` are the storage options for its files; credentials in them may expire.
    """

    path: tuple[str, ...]
    location: str
    options: Mapping[str, str]
    managed: bool
    declared: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs_credentials(self) -> bool:
        """Whether its credentials are about to expire."""
        expires_at = self.options.get("expires_at_millis")
        return expires_at is not None and time.time() * 1000 >= int(expires_at) - int(
            self.options.get("refresh_offset_millis", 0)
        )

    def open_files(self) -> Any:
        """Open its folder as an object store."""
        if "://" in self.location:
            return open_object_store(self.location, self.options)
        return LocalStore(self.location, automatic_cleanup=True)

    def delete(self) -> None:
        """Delete all of its files."""
        if "://" not in self.location:
            shutil.rmtree(self.location, ignore_errors=True)
            return
        files = self.open_files()
        while paths := [entry["path"] for entry in next(iter(obstore.list(files)), ())]:
            obstore.delete(files, paths)


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version that Lance staged: its request, the manifest's copy that the block reads, and the content of both."""

    request: upstream.CreateTableVersionRequest
    copy: upstream.TableVersion
    content: bytes


class CheckedVersion(BaseModel):
    """What a batch says of a table that it depends on: the version that was read (0: none), as our servers take it."""

    id: list[str]
    version: int
    branch: str | None = None
    location: str | None = None


class CommitOperation(upstream.CommitTableOperation):
    """An operation of a batch, with the one that the specification does not have: the check of a table's version.

    A server that does not know it finds an operation that does nothing, and refuses the batch.
    """

    check_table_version: CheckedVersion | None = None


@dataclass(slots=True)
class StagedBranch:
    """A branch of a table in a block: the versions that it adds after `base_version`, and those that it refused.

    It is pinned if the block depends on `base_version` being the latest one when it is published: then `base` is that
    version, or None if there was none.
    """

    table: PublishedTable
    name: str | None
    copies_folder: str
    base_version: int = 0
    base: upstream.TableVersion | None = None
    is_pinned: bool = False
    versions: dict[int, StagedVersion] = field(default_factory=dict)
    refused: list[StagedVersion] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def latest_version(self) -> int:
        """The latest version, as the block sees it."""
        return max(self.versions, default=self.base_version)

    def new_versions(self) -> list[upstream.TableVersion]:
        """Return the versions that the block has added, as it reads them, in ascending order."""
        return [staged.copy for _, staged in sorted(self.versions.items())]

    def check(self) -> CommitOperation:
        """Return the operation that checks that the base version is still the latest."""
        table = self.table
        return CommitOperation(
            check_table_version=CheckedVersion(
                id=list(table.path), version=self.base_version, branch=self.name, location=table.location
            )
        )

    def pin(self, latest: upstream.TableVersion | None) -> None:
        """Let the block depend on a version, which is the latest as long as it adds none."""
        self.base, self.base_version, self.is_pinned = latest, latest.version if latest else 0, True

    @property
    def prefix(self) -> str:
        """The branch's folder inside the table's folder: empty, or with a trailing slash."""
        return f"tree/{self.name}/" if self.name else ""

    def stage(self, request: upstream.CreateTableVersionRequest) -> StagedVersion:
        """Copy a staged manifest to the publication's folder, where only the block reads it."""
        folder, _, name = request.manifest_path.rpartition("/")
        table_folder = folder.removesuffix(f"{self.prefix}_versions")
        copy = f"{self.copies_folder}/{self.prefix}{name.partition('.')[0]}.manifest"
        files = self.table.open_files()
        content = bytes(obstore.get(files, self.path_in_table(request.manifest_path)).bytes())
        result = obstore.put(files, copy, content, use_multipart=False)
        version = upstream.TableVersion(
            version=request.version,
            manifest_path=table_folder + copy,
            manifest_size=len(content),
            e_tag=result["e_tag"],
        )
        return StagedVersion(request, version, content)

    def path_in_table(self, manifest: str) -> str:
        """Return the path of one of its manifests relative to the table's folder."""
        return f"{self.prefix}_versions/{manifest.rpartition('/')[2]}"

    def is_final(self, staged: StagedVersion, manifest: str) -> bool:
        """Whether a final manifest has the content that was staged."""
        try:
            return bytes(obstore.get(self.table.open_files(), self.path_in_table(manifest)).bytes()) == staged.content
        except FileNotFoundError:
            return False

    def delete_copies(self) -> None:
        """Delete the copies of manifests, after the versions are committed."""
        _delete(self.table.open_files(), [self._copy_path(version) for version in self.versions.values()])

    def restored_versions(self) -> list[int]:
        """Return the older versions that the block has restored: its own versions reference their files."""
        datasets = (self._dataset(version.copy) for version in self._all_versions())
        transactions = (read_transaction(dataset, int(dataset.version)) for dataset in datasets)
        operations = (transaction.operation for transaction in transactions if transaction)
        return [operation.version for operation in operations if isinstance(operation, lance.LanceOperation.Restore)]

    def discard(self, base_manifest: str | None, other_manifests: Iterable[str] | None) -> None:
        """Delete the staged versions and their new files; `base_manifest` is the base version's manifest.

        `other_manifests` are those of all other versions that may reference the files. Without them only the manifests
        and transactions are deleted.
        """
        files = self.table.open_files()
        discarded = self._all_versions()
        datasets = [self._dataset(version.copy) for version in discarded]
        if other_manifests is not None:
            new_files = self._new_files(files, datasets, base_manifest)
            others = (upstream.TableVersion(version=0, manifest_path=path) for path in other_manifests)
            referenced = {
                self.prefix + path for version in others for path in _referenced_files(self._dataset(version))
            }
            _delete(files, [path for path in new_files if not _is_in(path, referenced)])
        _delete(files, [self.prefix + path for dataset in datasets for path in _transaction_files(dataset)])
        _delete(files, [self.path_in_table(version.request.manifest_path) for version in discarded])
        _delete(files, [self._copy_path(version) for version in discarded])

    def _all_versions(self) -> list[StagedVersion]:
        return [*self.versions.values(), *self.refused]

    def _new_files(self, files: Any, datasets: Iterable[lance.LanceDataset], base_manifest: str | None) -> list[str]:
        """List the files that the versions reference and the base version does not.

        A restored version references old files: those that are not newer than the base version are left out.
        """
        paths = {path for dataset in datasets for path in _referenced_files(dataset)}
        since = None
        if base_manifest:
            base = upstream.TableVersion(version=self.base_version, manifest_path=base_manifest)
            paths -= _referenced_files(self._dataset(base))
            since = obstore.head(files, self.path_in_table(base_manifest))["last_modified"]
        entries = [entry for path in paths for entry in _list(files, self.prefix + path)]
        return [entry["path"] for entry in entries if since is None or entry["last_modified"] > since]

    def _copy_path(self, version: StagedVersion) -> str:
        return f"{self.copies_folder}/{self.prefix}{version.copy.manifest_path.rpartition('/')[2]}"

    def _dataset(self, version: upstream.TableVersion) -> lance.LanceDataset:
        """Open the branch at a version, wherever its manifest lies; a branch's folder opens like a table's."""
        namespace = SingleVersionNamespace(
            f"{self.table.location}/{self.prefix}".rstrip("/"), self.table.options, version
        )
        return lance.dataset(namespace_client=namespace, table_id=list(self.table.path))


class SingleVersionNamespace(upstream.LanceNamespace):
    """A namespace with one table of one version, wherever that version's manifest lies. It can be pickled."""

    def __init__(self, location: str, options: Mapping[str, str], version: upstream.TableVersion) -> None:
        self._location = location
        self._options = dict(options)
        self._version = version

    def namespace_id(self) -> str:
        return f"{self._location} {self._version.manifest_path}"

    def describe_table(self, request: Any) -> upstream.DescribeTableResponse:
        return upstream.DescribeTableResponse(
            location=self._location, storage_options=self._options, managed_versioning=True
        )

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        return upstream.ListTableVersionsResponse(versions=[self._version])

    def describe_table_version(self, request: Any) -> upstream.DescribeTableVersionResponse:
        return upstream.DescribeTableVersionResponse(version=self._version)


def _referenced_files(dataset: lance.LanceDataset) -> set[str]:
    """List data, deletion and index files of a version, relative to its branch; folders have a trailing slash."""
    paths: set[str] = set()
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            if file.base_id is None:  # values too large for it lie in a folder next to it
                paths.update((f"data/{file.path}", f"data/{file.path.removesuffix('.lance')}/"))
        if deletions := fragment.deletion_file():
            paths.add(deletions)
    for index in dataset.describe_indices():
        paths.update(f"_indices/{segment.uuid}/" for segment in index.segments)
    return paths


def _is_in(path: str, paths: set[str]) -> bool:
    """Whether a file is one of some paths, or lies in a folder that is."""
    return path in paths or any(path.startswith(folder) for folder in paths if folder.endswith("/"))


def _transaction_files(dataset: lance.LanceDataset) -> list[str]:
    """List the possible paths of a version's transaction: its name has the version that it was written against."""
    version = int(dataset.version)
    transaction = read_transaction(dataset, version)
    if transaction is None:
        return []
    return [f"_transactions/{read}-{transaction.uuid}.txn" for read in range(transaction.read_version, version)]


def _list(files: Any, path: str) -> list[Any]:
    """List the file at a path, or all files of a folder; none if it is missing."""
    if path.endswith("/"):
        return [entry for page in obstore.list(files, prefix=path) for entry in page]
    try:
        return [obstore.head(files, path)]
    except FileNotFoundError:
        return []


def _delete(files: Any, paths: Iterable[str]) -> None:
    """Delete files; ignore missing ones."""
    for path in paths:
        with suppress(FileNotFoundError):
            obstore.delete(files, path)


Path: TypeAlias = tuple[str, ...]

COPIES_PREFIX = "_publishing-"
"""Prefix of the folder with a publication's copies of manifests, inside the folder of each table that it writes."""


def display_id(path: Path) -> str:
    """Format a table's id for messages."""
    return "$".join(path)


def path_of(request: Any) -> Path:
    """Return the id in a request; empty for the root."""
    return tuple(fields_of(request).get("id") or ())


class StagedChanges:
    """The tables and versions of a block, under one lock: several threads may write in it."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.operations: list[upstream.CommitTableOperation] = []
        self.deregistered: dict[Path, PublishedTable] = {}
        self._copies_folder = f"{COPIES_PREFIX}{uuid4().hex}"
        self._tables: dict[Path, PublishedTable] = {}
        self._branches: dict[tuple[Path, str | None], StagedBranch] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Accept no more changes: later ones would not be in the batch."""
        with self._lock:
            self.is_open = False

    def check_open(self) -> None:
        """Raise InvalidInputError after the end of the block."""
        if not self.is_open:
            raise InvalidInputError("The block of this publication has ended: open another one to write.")

    def table(self, path: Path) -> PublishedTable | None:
        """Return a table that the block has used; None for others. Raises TableNotFoundError for a deregistered one."""
        if path in self.deregistered:
            raise TableNotFoundError(f"{display_id(path)} is deregistered in this block.")
        return self._tables.get(path)

    def declared_table(self, path: Path) -> PublishedTable | None:
        """Return a table that the block declares. Raises as `table` does."""
        table = self.table(path)
        return table if table is not None and table.declared else None

    def remember(self, table: PublishedTable) -> PublishedTable:
        """Add a table that the client described, unless it is known; return the known one."""
        with self._lock:
            return self._tables.setdefault(table.path, table)

    def declare(self, table: PublishedTable) -> None:
        """Add a declaration to the batch. Raises TableAlreadyExistsError, also for a table that existed before."""
        request = upstream.DeclareTableRequest(
            id=list(table.path), location=table.location, properties=dict(table.properties)
        )
        with self._lock:
            self.check_open()
            if table.path in self._tables and self._tables[table.path].declared:
                raise TableAlreadyExistsError(f"{display_id(table.path)} is declared in this block already.")
            if any(branch.table.path == table.path for branch in self._branches.values()):
                raise TableAlreadyExistsError(f"{display_id(table.path)} was there when this block wrote it.")
            self._tables[table.path] = table
            self.operations.append(upstream.CommitTableOperation(declare_table=request))

    def deregister(self, table: PublishedTable) -> None:
        """Add a deregistration to the batch. Raises InvalidInputError for a table that the block writes."""
        request = upstream.DeregisterTableRequest(id=list(table.path))
        with self._lock:
            self.check_open()
            branches = [branch for branch in self._branches.values() if branch.table.path == table.path]
            if table.declared or any(branch.versions for branch in branches):
                raise InvalidInputError(f"{display_id(table.path)} is written in this block: deregister it in another.")
            self.deregistered[table.path] = table
            self.operations.append(upstream.CommitTableOperation(deregister_table=request))

    def add_version(self, version: upstream.CreateTableVersionRequest) -> None:
        """Add a version to the batch."""
        with self._lock:
            self.check_open()
            self.operations.append(upstream.CommitTableOperation(create_table_version=version))

    def branch(self, table: PublishedTable, name: str | None) -> StagedBranch:
        """Return the staged versions of a branch, to add to them."""
        with self._lock:
            return self._branches.setdefault((table.path, name), StagedBranch(table, name, self._copies_folder))

    def known_branch(self, path: Path, name: str | None) -> StagedBranch | None:
        """Return a branch that the block has added versions to, or pinned; None for others."""
        branch = self._branches.get((path, name))
        return branch if branch is not None and (branch.versions or branch.is_pinned) else None

    def branches(self) -> list[StagedBranch]:
        """Return all branches that the block has written, or tried to."""
        with self._lock:
            return [branch for branch in self._branches.values() if branch.versions or branch.refused]

    def read_branches(self) -> list[StagedBranch]:
        """Return the branches that the block depends on, and has not written."""
        with self._lock:
            return [branch for branch in self._branches.values() if branch.is_pinned and not branch.versions]

    def new_tables(self) -> list[PublishedTable]:
        """Return all tables that the block declares."""
        with self._lock:
            return [table for table in self._tables.values() if table.declared]

    def is_written(self, path: Path) -> bool:
        """Whether the block has added versions to a table."""
        return any(branch.versions for branch in self.branches() if branch.table.path == path)

    def is_changed(self, path: Path) -> bool:
        """Whether the block has written a table, or declares it."""
        return self.is_written(path) or any(table.path == path for table in self.new_tables())
