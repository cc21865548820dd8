"""A namespace that holds back commits until its block ends.

Reads pass through to the client, except that the block reads its own writes. Commits are recorded; the end of the
block sends them in one BatchCommitTables, with the versions of the tables that the block has read and others must not
have changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import lance_namespace as upstream
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.calls.pylance_messages import fields_of
from tiltyard.publishing.batch_call import Send, batch_sender
from tiltyard.publishing.commit import MappingRequest, commit, latest_entry, latest_version, roll_back
from tiltyard.publishing.errors import PublishConflictError, PublishUncertainError
from tiltyard.publishing.passthrough import PassthroughNamespace
from tiltyard.publishing.staged import (
    Path,
    PublishedTable,
    StagedBranch,
    StagedChanges,
    StagedVersion,
    display_id,
    path_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

_LANCE_COMMIT_ERRORS = OSError, RuntimeError, ValueError
"""What Lance raises for a failed commit, without its reason."""


class Isolation(StrEnum):
    """What others may change between a block's reads and its end."""

    SERIALIZABLE = "serializable"
    """Nothing that the block has read: a table is pinned to its version when the block opens it first."""
    SNAPSHOT = "snapshot"
    """All but the tables that the block writes, from its first commit to each, and those that it names in `reads`."""


def publish(
    client: upstream.LanceNamespace,
    *,
    headers: Mapping[str, str] | None = None,
    ssl_ca_cert: str | None = None,
    isolation: str = Isolation.SERIALIZABLE,
    reads: Iterable[str | Sequence[str]] = (),
) -> Publication:
    """Write several tables and publish them together: `with tiltyard.publish(client) as tables: …`.

    `client` is any namespace that has BatchCommitTables: pylance's `RestNamespace` on a Tiltyard server, or
    `tiltyard.Namespace`. A RestNamespace does not expose its own settings: the batch is sent with `headers`, and
    verifies the server with `ssl_ca_cert`, the path of a file of CA certificates (default: those of the system).

    By `isolation` "serializable" the block ends with PublishConflictError if others have changed a table that it has
    opened since then; by "snapshot" only tables that it writes are compared, and those that `reads` names, by their ids
    (`["library", "books"]`; a name alone is in the root). Those are pinned when the block begins.
    Raises UnsupportedOperationError for a client without BatchCommitTables, and for another publication;
    InvalidInputError for another isolation.
    """
    if isolation not in list(Isolation):
        raise InvalidInputError(f"The isolation {isolation!r} is none: choose from {', '.join(Isolation)}.")
    paths = [(name,) if isinstance(name, str) else tuple(name) for name in reads]
    return Publication(client, batch_sender(client, headers or {}, ssl_ca_cert), Isolation(isolation), paths)


class Publication(PassthroughNamespace):
    """The `namespace_client` for everything that is written in a block of `publish`, by any number of threads.

    After the block `transaction_id` is the id of the server's transaction, and reads pass through to `client`.
    """

    def __init__(
        self, client: upstream.LanceNamespace, send: Send, isolation: Isolation, reads: Iterable[Path] = ()
    ) -> None:
        if isinstance(client, Publication):
            raise UnsupportedOperationError("A publication cannot be part of another: write in the block that is open.")
        self.transaction_id: str | None = None
        self.client = client
        self._send = send
        self._isolation = isolation
        self._reads = list(reads)
        self._id = uuid4().hex
        self._changes = StagedChanges()
        self._refusal: LanceNamespaceError | None = None

    def namespace_id(self) -> str:
        """Return an id that differs from those of other publications, and from the client's."""
        return f"publication {self._id} of {self.client.namespace_id()}"

    def has_changed(self, path: Path) -> bool:
        return self._changes.is_changed(path)

    def __reduce__(self) -> Any:
        """Raise TypeError: a publication belongs to one process."""
        raise TypeError(
            "A publication cannot leave its process: let other processes write fragments, and commit those here "
            "(docs/publishing.md shows how)."
        )

    def __enter__(self) -> Self:
        """Begin; pin the tables that are named as read. Raises TableNotFoundError."""
        for path in self._reads:
            self._pin(self._changes, path, None)
        return self

    def note_read(self, request: Any) -> None:
        """Let the block depend on a table that the server is about to read for it, if it depends on what it reads.

        Whoever changes the table between this and the server's read changes it before the end of the block.
        """
        self._branch_to_read(self._changes, path_of(request), fields_of(request).get("branch"))

    def _branch_to_read(self, changes: StagedChanges, path: Path, name: str | None) -> StagedBranch | None:
        """Return a branch as the block sees it; None where that is as the client does.

        Pins it at its first opening, if the block depends on what it reads. Raises TableNotFoundError.
        """
        known = changes.known_branch(path, name)
        if known is not None or not changes.is_open or self._isolation is not Isolation.SERIALIZABLE:
            return known
        return self._pin(changes, path, name)

    def _pin(self, changes: StagedChanges, path: Path, name: str | None) -> StagedBranch:
        """Let the block depend on the latest version of a branch. Raises TableNotFoundError."""
        branch = changes.branch(self._find_table(changes, path), name)
        with branch.lock:
            if not branch.is_pinned and not branch.versions:
                branch.pin(latest_entry(self.client, branch))
        return branch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish; after an exception, roll back.

        Raises PublishConflictError, PublishUncertainError, the error with which the batch was refused, or the error
        with which a write in the block was refused (Lance itself reports only that a commit failed).
        """
        changes, self._changes = self._changes, StagedChanges(is_open=False)
        changes.close()
        if error is not None or self._refusal is not None:
            roll_back(self.client, changes, self._renew)
            if self._refusal is not None and (error is None or isinstance(error, _LANCE_COMMIT_ERRORS)):
                raise self._refusal from error
            return
        try:
            self.transaction_id = commit(self.client, self._send, changes, self._renew)
        except PublishUncertainError:
            raise
        except LanceNamespaceError:
            roll_back(self.client, changes, self._renew)
            raise

    def describe_table(self, request: Any) -> upstream.DescribeTableResponse:
        """Describe a table; one that is declared in the block exists.

        Every table is described as managed, so that commits to unmanaged tables come here, too, and are refused.
        Raises TableNotFoundError, PublishConflictError for one that was replaced since the block used it.
        """
        path, changes = path_of(request), self._changes
        try:
            return self._describe(changes, path, request)
        except PublishConflictError as error:
            self._refusal = self._refusal or error
            raise
        except TableNotFoundError:
            if changes.is_written(path):
                self._refusal = self._refusal or PublishConflictError([path])
            raise

    def _describe(self, changes: StagedChanges, path: Path, request: Any) -> upstream.DescribeTableResponse:
        if table := changes.declared_table(path):
            self._renew(table)
            return upstream.DescribeTableResponse(
                table=path[-1],
                namespace=list(path[:-1]),
                location=table.location,
                storage_options=dict(table.options) or None,
                properties=dict(table.properties),
                managed_versioning=True,
            )
        response = self.client.describe_table(request)
        if changes.is_open:
            table = changes.table(path)
            if table is not None and table.location != response.location:
                raise PublishConflictError([path])
            if fields_of(request).get("vend_credentials") is not False:
                changes.remember(_published_table(path, response))
            response.managed_versioning = True
        return response

    def table_exists(self, request: Any) -> Any:
        """Return if a table exists. Raises TableNotFoundError."""
        return None if self._changes.declared_table(path_of(request)) else self.client.table_exists(request)

    def list_tables(self, request: Any) -> upstream.ListTablesResponse:
        """List the tables of a namespace; those that the block declares come last on the last page."""
        response, parent = self.client.list_tables(request), path_of(request)
        names = [name for name in response.tables if (*parent, name) not in self._changes.deregistered]
        if not response.page_token:
            names += [table.path[-1] for table in self._changes.new_tables() if table.path[:-1] == parent]
        response.tables = names
        return response

    def declare_table(self, request: Any) -> upstream.DeclareTableResponse:
        """Declare a table within the batch: its name appears at the end of the block.

        Raises TableAlreadyExistsError, NamespaceNotFoundError, InvalidInputError for a request with a location.
        """
        changes = self._changes
        changes.check_open()
        path, fields = path_of(request), fields_of(request)
        if fields.get("location"):
            raise InvalidInputError("Leave the location out: in a publication the server chooses it.")
        if path in changes.deregistered:
            raise InvalidInputError(f"{display_id(path)} is deregistered in this block: declare it in another.")
        table = changes.declared_table(path) or self._reserve(path, fields)
        if not table.managed:
            raise _unmanaged_error(path)
        changes.declare(table)
        return upstream.DeclareTableResponse(
            location=table.location,
            storage_options=dict(table.options) or None,
            properties=dict(table.properties),
            managed_versioning=True,
        )

    def create_empty_table(self, request: Any) -> upstream.CreateEmptyTableResponse:
        """Declare a table, by the operation's older name."""
        response = self.declare_table(request)
        return upstream.CreateEmptyTableResponse(
            location=response.location, storage_options=response.storage_options, properties=response.properties
        )

    def deregister_table(self, request: Any) -> upstream.DeregisterTableResponse:
        """Deregister a table within the batch. Raises TableNotFoundError, InvalidInputError."""
        changes = self._changes
        changes.check_open()
        path = path_of(request)
        table = self._find_table(changes, path)
        changes.deregister(table)
        return upstream.DeregisterTableResponse(
            id=list(path), location=table.location, properties=dict(table.properties)
        )

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """List the versions of a table, the block's first if descending; else last, and then beyond the limit."""
        path, fields, changes = path_of(request), fields_of(request), self._changes
        if changes.declared_table(path):
            declared = changes.known_branch(path, fields.get("branch"))
            new = [] if declared is None else declared.new_versions()
            return upstream.ListTableVersionsResponse(versions=new[::-1] if fields.get("descending") else new)
        branch = self._branch_to_read(changes, path, fields.get("branch"))
        if branch is None:
            return self.client.list_table_versions(request)
        new = branch.new_versions()
        if not fields.get("descending"):
            response = self.client.list_table_versions(request)
            old = [entry for entry in response.versions if entry.version <= branch.base_version]
            response.versions = old if response.page_token else old + new
            return response
        first = [*new[::-1], branch.base] if branch.base else new[::-1]
        if not fields.get("page_token"):
            limit = fields.get("limit")
            if limit and limit <= len(first):
                return upstream.ListTableVersionsResponse(versions=first[:limit])
            fields["limit"] = limit and limit - len(new)
        response = self.client.list_table_versions(upstream.ListTableVersionsRequest.model_validate(fields))
        known = {entry.version for entry in first}
        old = [
            entry for entry in response.versions if entry.version <= branch.base_version and entry.version not in known
        ]
        response.versions = old if fields.get("page_token") else first + old
        return response

    def describe_table_version(self, request: Any) -> Any:
        """Describe a version of a table, by default the latest. Raises TableVersionNotFoundError."""
        path, fields, changes = path_of(request), fields_of(request), self._changes
        branch = changes.known_branch(path, fields.get("branch"))
        if branch is None and not changes.declared_table(path):
            if not fields.get("version"):
                branch = self._branch_to_read(changes, path, fields.get("branch"))
            if branch is None:  # a version by its number does not change
                return self.client.describe_table_version(request)
        latest = 0 if branch is None else branch.latest_version
        number = fields.get("version") or latest
        if branch is not None and number in branch.versions:
            return upstream.DescribeTableVersionResponse(version=branch.versions[number].copy)
        if branch is None or not 0 < number <= branch.base_version:
            raise TableVersionNotFoundError(f"No version {number} of {display_id(path)}: the latest is {latest}.")
        return self.client.describe_table_version(MappingRequest({**fields, "version": number}))  # type: ignore[arg-type]  # as pylance calls it

    def create_table_version(self, request: Any) -> upstream.CreateTableVersionResponse:
        """Add a staged version to the batch.

        Raises ConcurrentModificationError for a version that exists already, so that Lance rebases; any other error is
        raised again at the end of the block.
        """
        try:
            changes = self._changes
            changes.check_open()
            version = upstream.CreateTableVersionRequest.model_validate(fields_of(request))
            branch = changes.branch(self._find_table(changes, path_of(version)), version.branch)
            staged = self._stage(changes, branch, version)
        except PublishConflictError as error:
            self._refusal = self._refusal or error
            raise InvalidInputError(str(error)) from error  # not a conflict for Lance, which retries those twenty times
        except ConcurrentModificationError:
            raise
        except LanceNamespaceError as error:
            self._refusal = self._refusal or error
            raise
        return upstream.CreateTableVersionResponse(version=staged.copy)

    def _stage(
        self, changes: StagedChanges, branch: StagedBranch, version: upstream.CreateTableVersionRequest
    ) -> StagedVersion:
        with branch.lock:
            if not branch.versions and not branch.table.declared and not branch.is_pinned:
                branch.base_version = latest_version(self.client, branch)
            if version.version <= branch.latest_version:
                staged = branch.versions.get(version.version)
                if staged is not None and staged.request.manifest_path == version.manifest_path:
                    return staged  # Lance repeats its request
                raise ConcurrentModificationError(f"Version {version.version} exists: describe it, and rebase.")
            self._renew(branch.table)
            staged = branch.stage(version)
            if error := self._refusal_of(branch, version):
                branch.refused.append(staged)
                raise error
            changes.add_version(version)
            branch.versions[version.version] = staged
            return staged

    @staticmethod
    def _refusal_of(branch: StagedBranch, version: upstream.CreateTableVersionRequest) -> LanceNamespaceError | None:
        """Return the error of a version that cannot be part of the batch; None for others."""
        path, latest = branch.table.path, branch.latest_version
        if not branch.table.managed:
            return _unmanaged_error(path)
        if branch.name and not latest:
            return InvalidInputError(f"Make the branch {branch.name} of {display_id(path)} before the block.")
        if version.version > latest + 1:  # based on versions that Lance has found in storage
            return PublishConflictError([path])
        if version.version != latest + 1:
            return InvalidInputError(f"The next version of {display_id(path)} is {latest + 1}, not {version.version}.")
        return None

    def _find_table(self, changes: StagedChanges, path: Path) -> PublishedTable:
        """Return a table that the block knows, or else that the client describes. Raises TableNotFoundError."""
        if table := changes.table(path):
            return table
        response = self.client.describe_table(upstream.DescribeTableRequest(id=list(path)))
        return changes.remember(_published_table(path, response))

    def _renew(self, table: PublishedTable) -> None:
        """Replace a table's credentials if they are about to expire. Raises PublishConflictError."""
        if not table.needs_credentials:
            return
        try:
            if table.declared:
                table.options = self._reserve(table.path, {"location": table.location}).options
                return
            response = self.client.describe_table(upstream.DescribeTableRequest(id=list(table.path)))
        except (TableAlreadyExistsError, TableNotFoundError) as error:
            raise PublishConflictError([table.path]) from error
        if response.location != table.location:
            raise PublishConflictError([table.path])
        table.options = response.storage_options or {}

    def _reserve(self, path: Path, fields: Mapping[str, Any]) -> PublishedTable:
        """Reserve a location for a new table: declare and deregister it in one batch, so that it is never visible.

        That reserves the folder for this principal; for one that it has reserved before, as `location`, the server
        vends new credentials. The batch has no idempotency key: its response has credentials, and must not be stored.
        """
        declaration = upstream.DeclareTableRequest(
            id=list(path),
            location=fields.get("location"),
            properties=fields.get("properties"),
            vend_credentials=fields.get("vend_credentials") is not False,
        )
        operations = [
            upstream.CommitTableOperation(declare_table=declaration),
            upstream.CommitTableOperation(deregister_table=upstream.DeregisterTableRequest(id=list(path))),
        ]
        response = self._send(upstream.BatchCommitTablesRequest(operations=operations), None)
        return _published_table(path, response.results[0].declare_table, declared=True)


def _published_table(path: Path, response: Any, declared: bool = False) -> PublishedTable:
    return PublishedTable(
        path,
        response.location,
        response.storage_options or {},
        response.managed_versioning is True,
        declared,
        response.properties or {},
    )


def _unmanaged_error(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{display_id(path)} commits straight to storage: only managed tables can be published together "
        "(the property tiltyard.managed_versioning of the table, or of its namespace; below a mount, the mount's)."
    )
