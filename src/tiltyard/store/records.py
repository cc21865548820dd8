"""Records that several entities of the store share: the others have theirs beside their methods."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import Principal
from tiltyard.runtime.durability import WrittenFile
from tiltyard.store.repository import Path, Properties, Record


class NamespaceRecord(Record, frozen=True):
    """A namespace. The root has id 1 and no parent."""

    id: int
    parent_id: int | None
    name: str
    properties: dict[str, str]
    created_at: int


class DroppedNamespace(msgspec.Struct, frozen=True):
    """A namespace that was just dropped: its properties, and the number of tables dropped with it."""

    properties: dict[str, str]
    tables: int


class RemovedTable(Record, frozen=True):
    """A table in the trash: `dropped`, so that its folder is scheduled for deletion, or deregistered.

    It keeps its id. `removal` is shared by all that was dropped together with a namespace.
    """

    id: int
    removal: str | None
    namespace: Path
    namespace_id: int
    name: str
    location: str
    dropped: bool
    removed_at: int
    due_at: int


class RemovedNamespace(Record, frozen=True):
    """A namespace in the trash; the `top` one of a removal is the one that was dropped, the others were in it."""

    id: int
    removal: str
    top: bool
    parent_id: int
    path: Path
    properties: dict[str, str]
    created_at: int
    removed_at: int
    due_at: int


class TransactionRecord(Record, frozen=True):
    """A long-running operation. While it is Running, `available_at` is when the lease of `lease_owner` ends.

    `requested_by` is the name of the principal who requested it, None for the servers themselves. A paused one is not
    claimed; it may run until its driver releases it. One that `is_local` is driven by its submitter's own process, and
    adopted by no worker.
    """

    id: str
    kind: str
    status: TransactionStatus
    table_id: int | None
    payload: dict[str, Any]
    properties: dict[str, str]
    error: str | None
    attempts: int
    lease_owner: str | None
    available_at: int
    created_at: int
    updated_at: int
    requested_by: str | None
    paused_at: int | None = None
    is_local: bool = False

    COLUMNS = (
        "id, kind, status, table_id, payload, properties, error, attempts,"
        " lease_owner, available_at, created_at, updated_at, asked_by, paused_at, is_local"
    )

    def status_at(self, now: int) -> TransactionStatus:
        """Return the status at a time: a run of its submitter's own process is Lost as soon as its lease has ended."""
        is_lost = self.is_local and self.status is TransactionStatus.RUNNING and self.available_at <= now
        return TransactionStatus.LOST if is_lost else self.status

    @property
    def is_paused(self) -> bool:
        """Return whether it waits for a caller to resume it, or will as soon as its driver releases it."""
        return self.paused_at is not None and not self.status.is_final


class NewVersion(msgspec.Struct, frozen=True):
    """A version to record: its staged manifest, and the final path of that.

    `manifest` is the content of the staged file, stored until the final file is known to be durable; without it, the
    staged file has to be durable before the version is recorded. `content` is that of a staged object, which is not
    stored: to finalize it, no one has to read it again. `finalized_by_rename` says that finalizing renames the
    staged file, so that its size and ETag are known already. With `expected_name`, a (namespace id, name), the version
    is recorded only while the table has that name; it is recorded only while the table has this `primary_key` and
    this `contract`. `checks` says what checks of the contract have found, as JSON, where there is something to say.
    `changed_rows` says what is known of them, as JSON, for the version's event.
    `checked_key` names the declaration of the key that all rows of this version were found to fulfil. `files` are those
    on a disk that have to be whole and durable before the version is recorded. `committed_by` is the principal whose
    rows it brings.
    """

    table_id: int
    version: int
    staged_path: str
    manifest_path: str
    manifest_size: int | None = None
    e_tag: str | None = None
    metadata: Properties | None = None
    naming_scheme: str = "V2"
    branch: str = ""
    finalized: bool = False
    manifest: bytes | None = None
    finalized_by_rename: bool = False
    expected_name: tuple[int, str] | None = None
    primary_key: str | None = None
    contract: str | None = None
    checked_key: str | None = None
    checks: str | None = None
    changed_rows: str | None = None
    content: bytes | None = None
    files: tuple[WrittenFile, ...] = ()
    committed_by: Principal | None = None


class VersionRecord(Record, frozen=True):
    """A commit made through the server; `finalized` once its manifest is durable at `manifest_path`.

    The branch '' is main.
    """

    table_id: int
    branch: str
    version: int
    staged_path: str
    manifest_path: str
    manifest_size: int | None
    e_tag: str | None
    metadata: dict[str, str]
    naming_scheme: str
    created_at: int
    finalized: bool
    transaction_id: str | None

    def as_finalized(self, size: int, e_tag: str | None) -> VersionRecord:
        """Return the record as finalized."""
        return structs.replace(self, manifest_size=size, e_tag=e_tag or self.e_tag, finalized=True)
