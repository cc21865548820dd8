"""Commit Lance's transactions in a temporary folder of this machine, to get the manifests that they make as bytes.

Lance's commit to an object store lists the versions there, and puts a manifest that has to be read again to get its
final name. On a copy of the latest manifest, or on nothing for a table's first version, it does the same work without a
request, as long as it needs nothing but that.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import lance
from lance.fragment import write_fragments

from tiltyard.storage.manifests.manifest_format import NamingScheme, manifest_name, message_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from lance.fragment import FragmentMetadata

log = logging.getLogger("tiltyard.versions")

COMMIT_HOOKS = "lance.auto_cleanup"
"""How the configuration begins of tables whose old versions Lance removes when it commits."""

_NONE: Mapping[int, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NextManifest:
    """A manifest that is in no version yet, with the transaction that it names, and the names of both files."""

    name: str
    content: bytes
    transaction_name: str
    transaction: bytes

    def open(
        self, location: str, options: Mapping[str, str], session: lance.Session, version: int
    ) -> lance.LanceDataset:
        """Open the version with this manifest, once that has its final name; it is not read again."""
        return lance.LanceDataset(
            location,
            version=version,
            storage_options=dict(options),
            session=session,
            serialized_manifest=message_of(self.content),
        )


def make_next_manifest(
    latest: bytes, version: int, transaction: lance.Transaction, earlier: Mapping[int, bytes] = _NONE
) -> NextManifest | None:
    """Commit a transaction to a copy of the latest version's manifest.

    It was made on that version, or on the first of the `earlier` ones, whose manifests are given by number: then Lance
    rebases it, and None is returned for a conflict. None, too, where Lance has to commit to the table itself: it
    removes old versions as well, or reads data files, as for manifests of older releases.
    """
    if COMMIT_HOOKS.encode() in latest:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="tiltyard-commit-") as folder:
            return _commit_in(folder, {**earlier, version: latest}, transaction)
    except Exception as error:  # noqa: BLE001  # whatever it is, Lance's own commit comes next, and says it
        log.info("a commit is left to Lance: %s", error)
        return None


@dataclass(frozen=True, slots=True)
class MadeAppend:
    """Rows as data files by their names, and the manifest of the version that they make."""

    manifest: NextManifest
    fragments: list[FragmentMetadata]
    files: Mapping[str, bytes]


def make_append(
    latest: bytes, version: int, groups: Sequence[pa.Table], properties: Mapping[str, str]
) -> MadeAppend | None:
    """Write rows and commit them to a copy of the latest version's manifest, without a request to storage.

    Tables of several schemas become a fragment each. None where `make_next_manifest` returns None, and where rows have
    files besides those that the manifest names, as large blobs have.
    """
    if COMMIT_HOOKS.encode() in latest:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="tiltyard-append-") as folder:
            dataset = _open_copy(folder, {version: latest})
            fragments = [each for rows in groups for each in write_fragments(rows, dataset, mode="append")]
            operation = lance.LanceOperation.Append(fragments)
            transaction = lance.Transaction(version, operation, transaction_properties=dict(properties))
            lance.LanceDataset.commit(dataset, transaction, max_retries=0)
            paths = sorted(Path(folder, "data").iterdir())
            if [path.name for path in paths] != sorted(file.path for each in fragments for file in each.files):
                return None
            files = {path.name: path.read_bytes() for path in paths}
            return MadeAppend(_read_manifest(folder, version + 1), fragments, files)
    except Exception as error:  # noqa: BLE001  # the same
        log.info("an append is written to storage first: %s", error)
        return None


def make_first_manifest(transaction: lance.Transaction, *, stable_row_ids: bool) -> NextManifest:
    """Commit a transaction as the first version of a table. Raises what Lance raises."""
    with tempfile.TemporaryDirectory(prefix="tiltyard-commit-") as folder:
        lance.LanceDataset.commit(
            folder, transaction, enable_v2_manifest_paths=True, enable_stable_row_ids=stable_row_ids
        )
        return _read_manifest(folder, 1)


def _open_copy(folder: str, manifests: Mapping[int, bytes]) -> lance.LanceDataset:
    """Write manifests to a folder, and open the latest version, which has no files there."""
    versions = Path(folder, "_versions")
    versions.mkdir()
    for version, manifest in manifests.items():
        (versions / manifest_name(version, NamingScheme.V2)).write_bytes(manifest)
    return lance.dataset(folder)


def _commit_in(folder: str, manifests: Mapping[int, bytes], transaction: lance.Transaction) -> NextManifest:
    lance.LanceDataset.commit(_open_copy(folder, manifests), transaction, max_retries=0)
    return _read_manifest(folder, max(manifests) + 1)


def _read_manifest(folder: str, version: int) -> NextManifest:
    name = manifest_name(version, NamingScheme.V2)
    content = Path(folder, "_versions", name).read_bytes()
    [transaction_file] = Path(folder, "_transactions").iterdir()
    return NextManifest(name, content, transaction_file.name, transaction_file.read_bytes())
