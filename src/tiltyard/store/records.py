"""Records that several entities of the store share: the others have theirs beside their methods.

They are msgspec structs, since every request creates some: in a fifth of the time of a frozen dataclass.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tiltyard.model.modes import TransactionStatus
from tiltyard.runtime.durability import WrittenFile
from tiltyard.store.repository import Path, Properties, decode


class NamespaceRecord(msgspec.Struct, frozen=True):
    """A namespace. The root has id 1 and no parent."""

    id: int
    parent_id: int | None
    name: str
    properties: dict[str, str]
    created_at: int

    COLUMNS = "id, parent_id, name, properties, created_at"

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> NamespaceRecord:
        """Read a row of COLUMNS."""
        id_, parent_id, name, properties, created_at = row
        return cls(id_, parent_id, name, decode(properties), created_at)


class DroppedNamespace(msgspec.Struct, frozen=True):
    """A namespace that was just dropped: its properties, and the number of tables dropped with it."""

    properties: dict[str, str]
    tables: int


class RemovedTable(msgspec.Struct, frozen=True):
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

    COLUMNS = "id, removal, namespace, namespace_id, name, location, dropped, removed_at, due_at"

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> RemovedTable:
        """Read a row of COLUMNS."""
        id_, removal, namespace, namespace_id, name, location, dropped, removed_at, due_at = row
        path = tuple(json.loads(namespace))
        return cls(id_, removal, path, namespace_id, name, location, bool(dropped), removed_at, due_at)


class RemovedNamespace(msgspec.Struct, frozen=True):
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

    COLUMNS = "id, removal, top, parent_id, path, properties, created_at, removed_at, due_at"

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> RemovedNamespace:
        """Read a row of COLUMNS."""
        id_, removal, top, parent_id, path, properties, created_at, removed_at, due_at = row
        names = tuple(json.loads(path))
        return cls(id_, removal, bool(top), parent_id, names, decode(properties), created_at, removed_at, due_at)


class TransactionRecord(msgspec.Struct, frozen=True):
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

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> TransactionRecord:
        """Read a row of COLUMNS."""
        id_, kind, status, table_id, payload, properties, *remaining, is_local = row
        values: list[Any] = [*remaining, bool(is_local)]
        return cls(id_, kind, TransactionStatus(status), table_id, json.loads(payload), decode(properties), *values)


class NewVersion(msgspec.Struct, frozen=True):
    """A version to record: its staged manifest, and the final path of that.

    `manifest` is the content of the staged file, stored until the final file is known to be durable; without it, the
    staged file has to be durable before the version is recorded. `content` is that of a staged object, which is not
    stored: to finalize it, no one has to read it again. `finalized_by_rename` says that finalizing renames the
    staged file, so that its size and ETag are known already. With `expected_name`, a (namespace id, name), the version
    is recorded only while the table has that name; it is recorded only while the table has this `primary_key` and
    this `contract`. `checks` says what checks of the contract have found, as JSON, where there is something to say.
    `checked_key` names the declaration of the key that all rows of this version were found to fulfil. `files` are those
    on a disk that have to be whole and durable before the version is recorded.
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
    content: bytes | None = None
    files: tuple[WrittenFile, ...] = ()


class VersionRecord(msgspec.Struct, frozen=True):
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

    COLUMNS = (
        "table_id, branch, version, staged_path, manifest_path, manifest_size,"
        " e_tag, metadata, naming_scheme, created_at, finalized, transaction_id"
    )

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> VersionRecord:
        """Read a row of COLUMNS."""
        table_id, branch, version, staged, path, size, e_tag, metadata, scheme, created_at, finalized, transaction = row
        head = table_id, branch, version, staged, path, size, e_tag
        return cls(*head, decode(metadata), scheme, created_at, bool(finalized), transaction)

    def as_finalized(self, size: int, e_tag: str | None) -> VersionRecord:
        """Return the record as finalized; this takes a fifth of the time of `replace`."""
        head = self.table_id, self.branch, self.version, self.staged_path, self.manifest_path, size
        tail = self.metadata, self.naming_scheme, self.created_at, True, self.transaction_id
        return VersionRecord(*head, e_tag or self.e_tag, *tail)
