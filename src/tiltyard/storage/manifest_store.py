"""The manifests of tables: named by clients, staged, and given their final names.

A manifest is final from the moment it has its name, and no second one ever gets that.
"""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import FileTooLargeError, LocalFiles, WholeFile, check_size
from tiltyard.storage.locations import check_no_links, file_in, is_local
from tiltyard.storage.manifest_format import (
    FINAL,
    LONGEST_NAME,
    Manifest,
    NamingScheme,
    check_manifest,
    manifest_name,
    newest_manifest,
    scheme_of,
    versions_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.storage.datasets import Datasets
    from tiltyard.storage.files import Files, FileStat
    from tiltyard.storage.fsync import Disks

T = TypeVar("T")

_LARGE = 1 << 20
"""Bytes of a manifest that is checked whatever others are."""
_TRANSACTION = re.compile(r"^[\w.-]+\.txn$")
_MANIFEST = re.compile(r"^d?\d+\.manifest(?:[-.][\w.-]+)?$")


class Manifests:
    """Those of all tables of a storage. Safe to use from several threads.

    Methods raise ServiceUnavailableError and PermissionDeniedError for a storage that does not answer or refuses.
    """

    def __init__(self, files: Callable[[str], Files], disks: Disks, datasets: Datasets, largest: int) -> None:
        """Read and write with what `files` gives for a location; no transaction has more than `largest` bytes."""
        self._files = files
        self._disks = disks
        self._datasets = datasets
        self._largest = largest
        self._reading_large = threading.Lock()

    def named(self, location: str, path: str) -> str:
        """The full location of a manifest that a client names, staged or final, by the words alone.

        Whether a link leads there is seen when it is read. Raises InvalidInputError for what is no manifest's name,
        or not inside the table's folder.
        """
        target = file_in(location, path)
        folder, _, name = target.rpartition("/")
        if not folder.endswith("/_versions") or not _MANIFEST.match(name):
            raise InvalidInputError("A manifest is a file <version>.manifest in the folder _versions.")
        if len(name.encode()) > LONGEST_NAME:
            raise InvalidInputError(f"The name of the manifest is too long: {LONGEST_NAME} bytes at most.")
        return target

    def checked(self, location: str, path: str, version: int) -> tuple[WholeFile, Manifest]:
        """A staged manifest, and what it says; the path is one that `named` gave.

        Of large ones, whose check takes twice their size in memory, one is looked at at a time; their content is left
        out of the answer.
        Raises InvalidInputError unless this is a manifest of the version, with its files in the table's folder or
        where the catalog knows of some, FileTooLargeError for it or for its transaction.
        """
        try:
            return self._checked(location, path, version, _LARGE)
        except FileTooLargeError:
            with self._reading_large:
                return self._checked_large(location, path, version)

    def _checked_large(self, location: str, path: str, version: int) -> tuple[WholeFile, Manifest]:
        """Do that without keeping the content: neither for the caller, nor in the frames of an error."""
        try:
            file, found = self._checked(location, path, version)
        except LanceNamespaceError as error:
            raise error.with_traceback(None) from None
        return WholeFile(b"", file.stat), found

    def _checked(self, location: str, path: str, version: int, most: int | None = None) -> tuple[WholeFile, Manifest]:
        file = read_named(path, partial(self._files(location).read_plain, most=most))
        found = check_manifest(file.content, version)
        if found.transaction_file and not found.has_transaction:
            self._check_transaction(location, path, found.transaction_file)
        for base in found.bases:
            if not self._datasets.may_use(location, base):
                raise InvalidInputError(
                    "The staged manifest names files outside the table's folder: nothing was committed."
                )
        return file, found

    def check_size(self, location: str, branch: str | None, version: int | None = None) -> None:
        """Look at the manifest of a version before Lance reads it whole: of the latest one without a number.

        Whoever may write a table's files can put one there round the server. Raises FileTooLargeError.
        """
        files, folder = self._files(location), f"{location}/{versions_folder(branch)}"
        with lance_errors(location):
            if version is None:
                found = _newest(files, folder)
            else:
                found = dict.fromkeys(manifest_name(version, scheme) for scheme in NamingScheme)
            for name, size in found.items():
                stat = files.stat(f"{folder}/{name}") if size is None else None
                check_size(name, stat.size if stat else size or 0, self._largest)

    def check_history(self, location: str, branch: str | None) -> None:
        """Look at the manifests and transactions of all versions of a branch, for what reads many of them.

        Raises FileTooLargeError.
        """
        folder = f"{location}/{versions_folder(branch)}"
        parts = (folder, FINAL), (f"{folder.removesuffix('_versions')}_transactions", _TRANSACTION)
        with lance_errors(location):
            for place, names in parts:
                for found in self._files(location).walk(place):
                    if names.match(found.path):
                        check_size(found.path, found.size, self._largest)

    def check_references(self, location: str) -> None:
        """Look at the files that say which tags and branches a table has, before Lance reads all of them.

        Raises FileTooLargeError.
        """
        folder = f"{location}/_refs"
        with lance_errors(location):
            check_size(folder, sum(found.size for found in self._files(location).walk(folder)), self._largest)

    def _check_transaction(self, location: str, manifest: str, name: str) -> None:
        """Look at the file that a manifest has its transaction in, which Lance reads whole.

        Raises InvalidInputError for what is no file's name, FileTooLargeError.
        """
        if not _TRANSACTION.match(name):
            raise InvalidInputError("The staged manifest names no file of _transactions: nothing was committed.")
        home = manifest.rpartition("/_versions/")[0]
        with lance_errors(location):
            stat = self._files(location).stat(f"{home}/_transactions/{name}")
        if stat is not None:
            check_size(name, stat.size, self._largest)

    def content(self, location: str, path: str) -> WholeFile:
        """A staged manifest as it is; the path is one that `named` gave.

        Raises InvalidInputError if there is none, or it is reached through a symbolic link.
        """
        return read_named(path, self._files(location).read_plain)

    def has_content(self, location: str, path: str, content: bytes) -> bool:
        """Whether a manifest is there, and has just this content."""
        with lance_errors(location):
            return _content(self._files(location), self._inside(location, path)) == content

    def finalize(self, location: str, staged_path: str, final_path: str) -> FileStat:
        """Give a staged manifest its final name, if none has it yet. Done twice, it is done once.

        Raises ConcurrentModificationError if another manifest has the name, InvalidInputError for paths that are
        no manifests of this table, or nothing staged.
        """
        staged, final = self._inside(location, staged_path), self._inside(location, final_path)
        with lance_errors(location):
            files = self._files(location)
            if staged == final:
                return _existing(files.stat(final))
            if is_local(staged):
                self._disks.sync([staged])
            try:
                if not files.move_new(staged, final):
                    if files.read(final) != files.read(staged):
                        raise _taken()
                    files.delete([staged])
            except FileNotFoundError:
                pass  # somebody else has moved it meanwhile
            return _existing(files.stat(final))

    def move(self, location: str, staged: str, final: str, stat: FileStat | None) -> FileStat | None:
        """Give a staged manifest, which has just been checked, its final name; None if there is more to it.

        `stat` is what is known of the file there, if something is.
        """
        if staged == final:
            return None
        with lance_errors(location):
            files = self._files(location)
            try:
                return (stat or files.stat(final)) if files.move_new(staged, final) else None
            except FileNotFoundError:
                return None

    def restore(self, location: str, staged_path: str, final_path: str, content: bytes, version: int) -> FileStat:
        """`finalize` on a disk, for a manifest whose content is known: it need not be staged any more.

        A loss of power may have left files of which nothing, or not all, was written: those are written again.
        """
        staged, final = self._inside(location, staged_path), self._inside(location, final_path)
        with lance_errors(location):
            disk = LocalFiles(self._largest)
            found = _content(disk, final)
            if found is None:
                if _content(disk, staged) != content or not _moved(disk, staged, final):
                    disk.write_new(final, content)
                found = disk.read(final)
            if found != content:
                if _is_whole(found, version):
                    raise _taken()
                disk.replace(final, content)
            if staged != final:
                disk.delete([staged])
            return _existing(disk.stat(final))

    def _inside(self, location: str, path: str) -> str:
        target = self.named(location, path)
        check_no_links(target)
        return target


def _newest(files: Files, folder: str) -> dict[str, int | None]:
    """The latest version's manifest in a folder, with its size if that is known; empty without one.

    By its name it comes first, but where manifests are named as of old.
    """
    first = files.first_files(folder)
    name = newest_manifest(first)
    if name is None or scheme_of(name) is NamingScheme.V1:
        name = newest_manifest(files.names(folder))
    return {} if name is None else {name: first.get(name)}


def read_named(location: str, read: Callable[[str], T]) -> T:
    """What `read` gives of a file that a client names. Raises InvalidInputError if there is none."""
    try:
        with lance_errors(location):
            return read(location)
    except LanceNamespaceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise InvalidInputError(f"There is no file {location.rsplit('/', 1)[-1]} in this table.") from error
        raise


def _content(files: Files, location: str) -> bytes | None:
    try:
        return files.read(location)
    except FileNotFoundError:
        return None


def _moved(files: Files, source: str, target: str) -> bool:
    try:
        return files.move_new(source, target)
    except FileNotFoundError:  # somebody else has moved it meanwhile
        return False


def _is_whole(content: bytes, version: int) -> bool:
    try:
        check_manifest(content, version)
    except InvalidInputError:
        return False
    return True


def _taken() -> ConcurrentModificationError:
    return ConcurrentModificationError("Another manifest has this version: describe it, and rebase.")


def _existing(found: FileStat | None) -> FileStat:
    if found is None:
        raise InvalidInputError("There is no staged manifest at this path: write it first.")
    return found
