"""Read manifests that are to become versions, and those before them, for the checks of what a version brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lance

from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_format import (
    NamingScheme,
    manifest_name,
    message_of,
    versions_folder,
    without_dictionaries,
)

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord


def read_manifest(ctx: Context, table: TableRecord, branch: Branch, version: int, scheme: str) -> bytes | None:
    """Return the manifest of a version that was checked; None where it was cleaned up since."""
    path = f"{table.location}/{versions_folder(branch)}/{manifest_name(version, NamingScheme(scheme))}"
    if ctx.storage.stat(table.location, path) is None:
        return None
    return ctx.storage.manifests.read(table.location, path).content


def open_staged(ctx: Context, table: TableRecord, branch: Branch, content: bytes) -> lance.LanceDataset:
    """Open a staged manifest, to scan its fragments: its indexes cannot be read, and dictionaries are plain values."""
    folder = f"{table.location}/{versions_folder(branch)}".removesuffix("/_versions")
    with lance_errors(table.location):
        return lance.LanceDataset(
            folder,
            storage_options=dict(ctx.storage.options(table.location)),
            serialized_manifest=without_dictionaries(message_of(content)),
            session=ctx.storage.datasets.session,
        )
