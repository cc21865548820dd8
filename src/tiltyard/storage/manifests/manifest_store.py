"""Read, check and finalize staged manifests of tables.

To finalize a manifest is to give it its final name, which no second one ever gets: from then on it is visible.
"""

from __future__ import annotations

import re
import struct
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from tiltyard.model.branches import MAIN
from tiltyard.runtime.durability import WrittenFile, replace_file
from tiltyard.storage.errors import IncompleteFileError, lance_errors
from tiltyard.storage.files import FileContent, FileTooLargeError, LocalFiles, check_size
from tiltyard.storage.locations import check_no_links, is_local, path_in_table
from tiltyard.storage.manifests.manifest_format import (
    FINAL_NAME,
    MAX_NAME_BYTES,
    Field,
    Manifest,
    NamingScheme,
    is_complete,
    manifest_name,
    naming_scheme_of,
    newest_manifest,
    parse_manifest,
    top_fields,
    versions_folder,
)
from tiltyard.storage.manifests.manifest_references import FileReference, all_files, new_files, transaction_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.model.branches import Branch
    from tiltyard.storage.datasets import Datasets
    from tiltyard.storage.files import FileEntry, Files, FileStat

T = TypeVar("T")

_LARGE_BYTES = 1 << 20
"""Larger manifests are checked one at a time."""
_TRANSACTION = re.compile(r"^[\w.-]+\.txn$")
_ANY_NAME = re.compile("")
_MANIFEST = re.compile(r"^d?\d+\.manifest(?:[-.][\w.-]+)?$")


class ManifestStore:
    """The manifests of all tables of a storage. Safe to use from several threads.

    Methods raise ServiceUnavailableError and PermissionDeniedError for a storage that does not answer or refuses.
    """

    def __init__(
        self,
        files: Callable[[str], Files],
        make_durable: Callable[..., None],
        datasets: Datasets,
        max_bytes: int,
        set_broken_aside: Callable[[str, list[FileEntry]], None],
    ) -> None:
        """`files` maps a location to its files, `make_durable` is the storage's; manifests and transactions of more
        than `max_bytes` are refused; `set_broken_aside` is that of ReferenceFiles.
        """
        self._files = files
        self._make_durable = make_durable
        self._datasets = datasets
        self._max_bytes = max_bytes
        self._set_broken_aside = set_broken_aside
        self._reading_large = threading.Lock()

    def resolve_path(self, location: str, path: str) -> str:
        """Return the full location of a manifest that a client names, staged or final, without looking at the storage.

        Links are checked when the manifest is read. Raises InvalidInputError for a path that is no manifest's, or not
        inside the table's folder.
        """
        target = path_in_table(location, path)
        folder, _, name = target.rpartition("/")
        if not folder.endswith("/_versions") or not _MANIFEST.match(name):
            raise InvalidInputError("A manifest is a file <version>.manifest in the folder _versions.")
        if len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidInputError(f"The name of the manifest is too long: {MAX_NAME_BYTES} bytes at most.")
        return target

    def read_checked(self, location: str, path: str, version: int) -> tuple[FileContent, Manifest]:
        """Read, parse and check a staged manifest; the path is one from `resolve_path`.

        Large manifests, whose check takes twice their size in memory, are checked one at a time, and returned without
        their content.
        Raises InvalidInputError unless this is a manifest of the version, with its files in the table's folder or
        at bases that the catalog knows, FileTooLargeError for it or for its transaction.
        """
        try:
            return self._read_checked(location, path, version, _LARGE_BYTES)
        except FileTooLargeError:
            with self._reading_large:
                return self._check_large(location, path, version)

    def read_latest(self, location: str, version: int) -> bytes | None:
        """Read and check the manifest of main's latest version, to commit on top of it.

        None for one that is large, is named by the older scheme, or names files that the catalog does not know.
        """
        path = f"{location}/{versions_folder(MAIN)}/{manifest_name(version, NamingScheme.V2)}"
        try:
            return self.read_checked(location, path, version)[0].content or None
        except InvalidInputError:
            return None

    def _check_large(self, location: str, path: str, version: int) -> tuple[FileContent, Manifest]:
        """Check a large manifest, and free its content: it is neither returned, nor kept by an error's traceback."""
        try:
            file, manifest = self._read_checked(location, path, version)
        except LanceNamespaceError as error:
            raise error.with_traceback(None) from None
        return FileContent(b"", file.stat), manifest

    def _read_checked(
        self, location: str, path: str, version: int, max_bytes: int | None = None
    ) -> tuple[FileContent, Manifest]:
        file = _read_client_path(path, partial(self._files(location).read_nofollow, max_bytes=max_bytes))
        manifest = parse_manifest(file.content, version)
        if manifest.transaction_file and not manifest.has_transaction:
            self._check_transaction(location, path, manifest.transaction_file)
        for base in manifest.bases:
            if not self._datasets.allows_base(location, base):
                raise _foreign_files_error()
        if is_local(location):
            manifest.previous, previous = self._read_previous(location, path, version)
            manifest.new_files = _new_files(path, file.content, manifest.fields, previous)
        return file, manifest

    def new_files(self, location: str, path: str, content: bytes, version: int) -> list[WrittenFile]:
        """List the files that a staged manifest names and the version before it does not, as far as they are on a disk.

        None of a table on an object store, whose objects are whole and durable: to ask for each would take a request.
        Where the version before is missing, all files of its own folder count as new. The path is one from
        `resolve_path`. Raises InvalidInputError for a manifest that is damaged or names a file outside the folders of
        the table.
        """
        if not is_local(location):
            return []
        return _new_files(path, content, None, self.find_previous(location, path, version))

    def find_previous(self, location: str, path: str, version: int) -> bytes | None:
        """Read the manifest of the version before a staged one; None if it is missing, not final yet, or not whole."""
        return self._read_previous(location, path, version)[1]

    def _read_previous(self, location: str, path: str, version: int) -> tuple[NamingScheme | None, bytes | None]:
        """Read the manifest of the version before a staged one, and tell how it is named; a name alone if not whole."""
        folder, files = path.rpartition("/")[0], self._files(location)
        with lance_errors(location):
            for scheme in (NamingScheme.V2, NamingScheme.V1):
                if content := _read_if_exists(files, f"{folder}/{manifest_name(version - 1, scheme)}"):
                    return scheme, content if is_complete(content) else None
        return None, None

    def version_files(self, location: str, branch: Branch, version: int) -> list[WrittenFile]:
        """List the manifest of a version that is in storage, and its new files, as `new_files` does; none if gone.

        Raises InvalidInputError for a damaged manifest.
        """
        path, content = self._read_final(location, branch, version)
        if content is None or not is_local(location):
            return []
        if not is_complete(content):
            raise InvalidInputError(f"The manifest of version {version} is damaged: repair the table.")
        return [*self.new_files(location, path, content, version), WrittenFile(path, len(content))]

    def named_files(self, location: str, branch: Branch, version: int) -> set[str]:
        """Return the locations of all files that a version in storage names; empty if it is gone."""
        path, content = self._read_final(location, branch, version)
        return set() if content is None else all_files(content, path.rpartition("/_versions/")[0])

    def _read_final(self, location: str, branch: Branch, version: int) -> tuple[str, bytes | None]:
        """Read the manifest of a version by its final name, whatever it is named by; None if it is gone."""
        path, content = "", None
        for scheme in NamingScheme:
            path = f"{location}/{versions_folder(branch)}/{manifest_name(version, scheme)}"
            with lance_errors(location):
                content = _read_if_exists(self._files(location), path)
            if content is not None:
                break
        return path, content

    def staged_files(self, location: str, path: str, content: bytes) -> list[WrittenFile]:
        """Check that a manifest that was staged here is whole; return the file of its transaction, on a disk alone.

        Raises IncompleteFileError.
        """
        if not is_complete(content):
            raise IncompleteFileError(location)
        file = transaction_file(content, path.rpartition("/_versions/")[0])
        return [] if file is None else [_written(*file)]

    def check_size(self, location: str, branch: Branch, version: int | None = None) -> None:
        """Check the size of a version's manifest (None: the latest version's) before Lance reads all of it.

        Clients with write access to a table's files can put one there without the server. Raises FileTooLargeError.
        """
        files, folder = self._files(location), f"{location}/{versions_folder(branch)}"
        with lance_errors(location):
            if version is None:
                sizes = _find_latest(files, folder)
            else:
                sizes = dict.fromkeys(manifest_name(version, scheme) for scheme in NamingScheme)
            for name, size in sizes.items():
                stat = files.stat(f"{folder}/{name}") if size is None else None
                check_size(name, stat.size if stat else size or 0, self._max_bytes)

    def check_history(self, location: str, branch: Branch) -> None:
        """Check the sizes of all manifests and transactions of a branch, before an operation that reads many of them.

        Raises FileTooLargeError.
        """
        folder = f"{location}/{versions_folder(branch)}"
        folders = (folder, FINAL_NAME), (f"{folder.removesuffix('_versions')}_transactions", _TRANSACTION)
        with lance_errors(location):
            for parent, pattern in folders:
                for entry in self._files(location).walk_targets(parent, pattern):
                    check_size(entry.path, entry.size, self._max_bytes)

    def check_references(self, location: str) -> None:
        """Check the files of a table's tags and branches before Lance reads all of them: their total size, and on a
        disk that each is whole.

        What a loss of power has left of one is deleted: it was never acknowledged. Raises FileTooLargeError.
        """
        folder = f"{location}/_refs"
        with lance_errors(location):
            entries = list(self._files(location).walk_targets(folder, _ANY_NAME))
            check_size(folder, sum(entry.size for entry in entries), self._max_bytes)
        self._set_broken_aside(location, entries)

    def _check_transaction(self, location: str, manifest: str, name: str) -> None:
        """Check the size of the transaction file that a manifest names, before Lance reads all of it.

        Raises InvalidInputError for an invalid name, FileTooLargeError.
        """
        if not _TRANSACTION.match(name):
            raise InvalidInputError("The staged manifest names no file of _transactions: nothing was committed.")
        folder = manifest.rpartition("/_versions/")[0]
        with lance_errors(location):
            stat = self._files(location).stat(f"{folder}/_transactions/{name}")
        if stat is not None:
            check_size(name, stat.size, self._max_bytes)

    def read(self, location: str, path: str) -> FileContent:
        """Read a staged manifest; the path is one from `resolve_path`.

        Raises InvalidInputError if there is none, or the path has a symbolic link.
        """
        return _read_client_path(path, self._files(location).read_nofollow)

    def has_content(self, location: str, path: str, content: bytes) -> bool:
        """Whether a manifest exists with exactly this content."""
        with lance_errors(location):
            return _read_if_exists(self._files(location), self._resolve_without_links(location, path)) == content

    def finalize(self, location: str, staged_path: str, final_path: str) -> FileStat:
        """Give a staged manifest its final name, unless a manifest has it already. Idempotent.

        Raises ConcurrentModificationError if another manifest has the name, InvalidInputError for paths that are
        no manifests of this table, or if no manifest is staged.
        """
        staged = self._resolve_without_links(location, staged_path)
        final = self._resolve_without_links(location, final_path)
        with lance_errors(location):
            files = self._files(location)
            if staged == final:
                return _require(files.stat(final))
            try:
                self._make_durable([staged], missing_ok=True)
                if not files.rename_if_not_exists(staged, final):
                    if files.read(final) != files.read(staged):
                        raise _version_conflict()
                    files.delete([staged])
            except FileNotFoundError:
                pass  # a concurrent call has renamed it
            return _require(files.stat(final))

    def publish_checked(
        self, location: str, staged: str, final: str, stat: FileStat | None, content: bytes | None
    ) -> FileStat | None:
        """Give a manifest that was just checked its final name; None if that fails, and `finalize` has to look why.

        `stat` and `content` are those of the staged file, if the caller knows them. On an object store the content is
        put under the final name, and the staged object is left: whoever marks the version as final deletes it before.
        """
        if staged == final:
            return None
        with lance_errors(location):
            files = self._files(location)
            try:
                if not is_local(location):
                    return files.write_if_not_exists(final, files.read(staged) if content is None else content)
                return (stat or files.stat(final)) if files.rename_if_not_exists(staged, final) else None
            except FileNotFoundError:
                return None

    def is_published(self, location: str, staged: str, final: str) -> bool:
        """Return whether a manifest on an object store has its final name besides its staged one."""
        if is_local(location):
            return False
        with lance_errors(location):
            content = _read_if_exists(self._files(location), staged)
        return content is not None and self.has_content(location, final, content)

    def finalize_content(
        self, location: str, staged_path: str, final_path: str, content: bytes, version: int
    ) -> FileStat:
        """Finalize a manifest on a disk from its content, also if the staged file is gone. Raises as `finalize` does.

        A loss of power may have left empty or partly written files: those are written again.
        """
        staged = self._resolve_without_links(location, staged_path)
        final = self._resolve_without_links(location, final_path)
        with lance_errors(location):
            disk = LocalFiles(self._max_bytes)
            final_content = _read_if_exists(disk, final)
            if final_content is None:
                if _read_if_exists(disk, staged) != content or not _rename(disk, staged, final):
                    disk.write_if_not_exists(final, content)
                final_content = disk.read(final)
            if final_content != content:
                if _is_valid(final_content, version):
                    raise _version_conflict()
                replace_file(final, content)
            if staged != final:
                disk.delete([staged])
            return _require(disk.stat(final))

    def _resolve_without_links(self, location: str, path: str) -> str:
        target = self.resolve_path(location, path)
        check_no_links(target)
        return target


def _find_latest(files: Files, folder: str) -> dict[str, int | None]:
    """Find the latest version's manifest in a folder, with its size if that is known; empty without one.

    In name order it is the first, except where manifests are named by the older scheme V1.
    """
    sizes = files.list_first_files(folder)
    name = newest_manifest(sizes)
    if name is None or naming_scheme_of(name) is NamingScheme.V1:
        name = newest_manifest(files.list_names(folder))
    return {} if name is None else {name: sizes.get(name)}


def _read_client_path(location: str, read: Callable[[str], T]) -> T:
    """Read a file that a client names. Raises InvalidInputError if there is none."""
    try:
        with lance_errors(location):
            return read(location)
    except LanceNamespaceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise InvalidInputError(f"There is no file {location.rsplit('/', 1)[-1]} in this table.") from error
        raise


def _written(location: str, file: FileReference) -> WrittenFile:
    """Return what is to be checked of a file that a manifest names: it has its transaction itself, mostly."""
    is_copy = file.size is not None and file.path.startswith("_transactions/")
    return WrittenFile(location, file.size, file.deleted_rows, is_copy)


def _new_files(path: str, content: bytes, fields: Sequence[Field] | None, previous: bytes | None) -> list[WrittenFile]:
    """List the files on a disk that a staged manifest names and the `previous` one does not; `fields` are its own."""
    try:
        fields = fields or list(top_fields(content))
        named = new_files(content, fields, previous, path.rpartition("/_versions/")[0])
    except (LookupError, ValueError, AssertionError, RuntimeError, struct.error) as error:
        raise InvalidInputError("The staged file is not a Lance manifest: nothing was committed.") from error
    if any(".." in file.path.split("/") for _, file in named):
        raise _foreign_files_error()
    return [_written(place, file) for place, file in named if is_local(place)]


def _read_if_exists(files: Files, location: str) -> bytes | None:
    try:
        return files.read(location)
    except FileNotFoundError:
        return None


def _rename(files: Files, source: str, target: str) -> bool:
    try:
        return files.rename_if_not_exists(source, target)
    except FileNotFoundError:  # a concurrent call has renamed it
        return False


def _is_valid(content: bytes, version: int) -> bool:
    try:
        parse_manifest(content, version)
    except InvalidInputError:
        return False
    return True


def _foreign_files_error() -> InvalidInputError:
    return InvalidInputError("The staged manifest names files outside the table's folder: nothing was committed.")


def _version_conflict() -> ConcurrentModificationError:
    return ConcurrentModificationError("Another manifest has this version: describe it, and rebase.")


def _require(stat: FileStat | None) -> FileStat:
    if stat is None:
        raise InvalidInputError("There is no staged manifest at this path: write it first.")
    return stat
