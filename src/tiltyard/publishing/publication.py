"""A namespace that holds back what is committed through it, until its block ends.

Reads pass through to the client, except that the block reads its own writes. Commits are recorded; the end of the
block sends them as one BatchCommitTables.
"""

from __future__ import annotations

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

from tiltyard.publishing.batch_call import Send, sender
from tiltyard.publishing.changes import Changes, Path, fields_of, path_of, shown
from tiltyard.publishing.commit import commit, latest_version, roll_back
from tiltyard.publishing.errors import PublishConflictError, PublishUncertainError
from tiltyard.publishing.passthrough import complete
from tiltyard.publishing.staged import Line, Staged, Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_LANCE_SAYS = OSError, RuntimeError, ValueError
"""How Lance says that a commit failed, and no more."""


def publish(
    client: upstream.LanceNamespace, *, headers: Mapping[str, str] | None = None, ssl_ca_cert: str | None = None
) -> Publication:
    """Write several tables and publish them together: `with tiltyard.publish(client) as tables: …`.

    `client` is any namespace that has BatchCommitTables: pylance's `RestNamespace` on a Tiltyard server, or
    `tiltyard.Namespace`. A RestNamespace keeps what it was given to itself: the batch goes with `headers`, and trusts
    a server by `ssl_ca_cert`, the path of a file with the certificates of authorities (default: those of the system).
    Raises UnsupportedOperationError for a client without BatchCommitTables, and for another publication.
    """
    return Publication(client, sender(client, headers or {}, ssl_ca_cert))


class Publication(upstream.LanceNamespace):
    """What `publish` gives: the `namespace_client` of all that is written in its block, by any number of threads.

    After the block `transaction_id` names the server's transaction, and reads pass through to `client`.
    """

    def __init__(self, client: upstream.LanceNamespace, send: Send) -> None:
        if isinstance(client, Publication):
            raise UnsupportedOperationError("A publication cannot be part of another: write in the block that is open.")
        self.transaction_id: str | None = None
        self.client = client
        self._send = send
        self._id = uuid4().hex
        self._changes = Changes()
        self._refusal: LanceNamespaceError | None = None

    def namespace_id(self) -> str:
        """What tells this publication from others, and from its client."""
        return f"publication {self._id} of {self.client.namespace_id()}"

    def has_changed(self, path: Path) -> bool:
        """Whether the block holds back something of a table."""
        return self._changes.is_changed(path)

    def __reduce__(self) -> Any:
        """Raise TypeError: a publication is one process's."""
        raise TypeError(
            "A publication stays in its process: let other processes write fragments, and commit those here "
            "(docs/publishing.md shows how)."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish; after an exception, leave nothing behind.

        Raises PublishConflictError, PublishUncertainError, what the batch was refused with, or why a write in the
        block was refused (Lance says no more of that than that a commit failed).
        """
        changes, self._changes = self._changes, Changes(is_open=False)
        changes.close()
        if error is not None or self._refusal is not None:
            roll_back(self.client, changes, self._renew)
            if self._refusal is not None and (error is None or isinstance(error, _LANCE_SAYS)):
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
        """Where a table lies; one that is declared in the block is there.

        Each is said to be managed, so that commits to one that is not come here, too, and are refused.
        Raises TableNotFoundError, PublishConflictError for one that the block knows, and somebody has replaced.
        """
        path, changes = path_of(request), self._changes
        try:
            return self._described(changes, path, request)
        except PublishConflictError as error:
            self._refusal = self._refusal or error
            raise
        except TableNotFoundError:
            if changes.is_written(path):
                self._refusal = self._refusal or PublishConflictError([path])
            raise

    def _described(self, changes: Changes, path: Path, request: Any) -> upstream.DescribeTableResponse:
        if table := changes.declared(path):
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
            known = changes.table(path)
            if known is not None and known.location != response.location:
                raise PublishConflictError([path])
            if fields_of(request).get("vend_credentials") is not False:
                changes.remember(_table(path, response))
            response.managed_versioning = True
        return response

    def table_exists(self, request: Any) -> Any:
        """Answer if a table is there. Raises TableNotFoundError."""
        return None if self._changes.declared(path_of(request)) else self.client.table_exists(request)

    def list_tables(self, request: Any) -> upstream.ListTablesResponse:
        """The tables of a namespace; those of the block stand at the end of the last page."""
        response, parent = self.client.list_tables(request), path_of(request)
        names = [name for name in response.tables if (*parent, name) not in self._changes.deregistered]
        if not response.page_token:
            names += [table.path[-1] for table in self._changes.new_tables() if table.path[:-1] == parent]
        response.tables = names
        return response

    def declare_table(self, request: Any) -> upstream.DeclareTableResponse:
        """Declare a table within the batch: its name appears at the end of the block.

        Raises TableAlreadyExistsError, NamespaceNotFoundError, InvalidInputError for a location of the caller's.
        """
        changes = self._changes
        changes.check_open()
        path, fields = path_of(request), fields_of(request)
        if fields.get("location"):
            raise InvalidInputError("Leave the location out: in a publication the server chooses it.")
        if path in changes.deregistered:
            raise InvalidInputError(f"{shown(path)} is deregistered in this block: declare it in another.")
        table = changes.declared(path) or self._placed(path, fields)
        if not table.managed:
            raise _unmanaged(path)
        changes.declare(table)
        return upstream.DeclareTableResponse(
            location=table.location,
            storage_options=dict(table.options) or None,
            properties=dict(table.properties),
            managed_versioning=True,
        )

    def create_empty_table(self, request: Any) -> upstream.CreateEmptyTableResponse:
        """Do what `declare_table` does, under its older name."""
        declared = self.declare_table(request)
        return upstream.CreateEmptyTableResponse(
            location=declared.location, storage_options=declared.storage_options, properties=declared.properties
        )

    def deregister_table(self, request: Any) -> upstream.DeregisterTableResponse:
        """Deregister a table within the batch. Raises TableNotFoundError, InvalidInputError."""
        changes = self._changes
        changes.check_open()
        path = path_of(request)
        table = self._table(changes, path)
        changes.deregister(table)
        return upstream.DeregisterTableResponse(
            id=list(path), location=table.location, properties=dict(table.properties)
        )

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """The versions of a table, the block's own first if descending; else last, and then beyond the limit."""
        path, fields = path_of(request), fields_of(request)
        line = self._changes.changed_line(path, fields.get("branch"))
        new = [] if line is None else [staged.copy for _, staged in sorted(line.staged.items())]
        if self._changes.declared(path):
            return upstream.ListTableVersionsResponse(versions=new[::-1] if fields.get("descending") else new)
        if line is None:
            return self.client.list_table_versions(request)
        if not fields.get("descending"):
            response = self.client.list_table_versions(request)
            old = [entry for entry in response.versions if entry.version <= line.base]
            response.versions = old if response.page_token else old + new
            return response
        if not fields.get("page_token"):
            limit = fields.get("limit")
            if limit and limit <= len(new):
                return upstream.ListTableVersionsResponse(versions=new[::-1][:limit])
            fields["limit"] = limit and limit - len(new)
        response = self.client.list_table_versions(upstream.ListTableVersionsRequest.model_validate(fields))
        old = [entry for entry in response.versions if entry.version <= line.base]
        response.versions = old if fields.get("page_token") else new[::-1] + old
        return response

    def describe_table_version(self, request: Any) -> Any:
        """A version of a table, or the latest. Raises TableVersionNotFoundError."""
        path, fields = path_of(request), fields_of(request)
        line = self._changes.changed_line(path, fields.get("branch"))
        if line is None and not self._changes.declared(path):
            return self.client.describe_table_version(request)
        latest = 0 if line is None else line.latest
        number = fields.get("version") or latest
        if line is not None and number in line.staged:
            return upstream.DescribeTableVersionResponse(version=line.staged[number].copy)
        if line is None or number > line.base:
            raise TableVersionNotFoundError(f"No version {number} of {shown(path)}: the latest is {latest}.")
        return self.client.describe_table_version(request)

    def create_table_version(self, request: Any) -> upstream.CreateTableVersionResponse:
        """Hold a staged version back for the batch.

        Raises ConcurrentModificationError for one that is there already, so that Lance rebases; any other error is
        raised again at the end of the block.
        """
        try:
            changes = self._changes
            changes.check_open()
            asked = upstream.CreateTableVersionRequest.model_validate(fields_of(request))
            line = changes.line(self._table(changes, path_of(asked)), asked.branch)
            staged = self._stage(changes, line, asked)
        except PublishConflictError as error:
            self._refusal = self._refusal or error
            raise InvalidInputError(str(error)) from error  # for Lance, which repeats a conflict twenty times
        except ConcurrentModificationError:
            raise
        except LanceNamespaceError as error:
            self._refusal = self._refusal or error
            raise
        return upstream.CreateTableVersionResponse(version=staged.copy)

    def _stage(self, changes: Changes, line: Line, asked: upstream.CreateTableVersionRequest) -> Staged:
        with line.lock:
            if not line.staged and not line.table.declared:
                line.base = latest_version(self.client, line)
            if asked.version <= line.latest:
                staged = line.staged.get(asked.version)
                if staged is not None and staged.request.manifest_path == asked.manifest_path:
                    return staged  # Lance asks again
                raise ConcurrentModificationError(f"Version {asked.version} exists: describe it, and rebase.")
            self._renew(line.table)
            staged = line.hold(asked)
            if error := self._objection(line, asked):
                line.refused.append(staged)
                raise error
            changes.add(asked)
            line.staged[asked.version] = staged
            return staged

    @staticmethod
    def _objection(line: Line, asked: upstream.CreateTableVersionRequest) -> LanceNamespaceError | None:
        """Why a version cannot be part of the batch."""
        path = line.table.path
        if not line.table.managed:
            return _unmanaged(path)
        if line.branch and not line.latest:
            return InvalidInputError(f"Make the branch {line.branch} of {shown(path)} before the block.")
        if asked.version > line.latest + 1:  # on top of versions that Lance has found in storage
            return PublishConflictError([path])
        if asked.version != line.latest + 1:
            return InvalidInputError(f"The next version of {shown(path)} is {line.latest + 1}, not {asked.version}.")
        return None

    def _table(self, changes: Changes, path: Path) -> Table:
        """A table as the block knows it, or as the client describes it. Raises TableNotFoundError."""
        if found := changes.table(path):
            return found
        described = self.client.describe_table(upstream.DescribeTableRequest(id=list(path)))
        return changes.remember(_table(path, described))

    def _renew(self, table: Table) -> None:
        """Take other credentials for a table where its own are about to end. Raises PublishConflictError."""
        if not table.is_ending:
            return
        try:
            if table.declared:
                table.options = self._placed(table.path, {"location": table.location}).options
                return
            described = self.client.describe_table(upstream.DescribeTableRequest(id=list(table.path)))
        except (TableAlreadyExistsError, TableNotFoundError) as error:
            raise PublishConflictError([table.path]) from error
        if described.location != table.location:
            raise PublishConflictError([table.path])
        table.options = described.storage_options or {}

    def _placed(self, path: Path, fields: Mapping[str, Any]) -> Table:
        """Learn where the server puts a new table: declared and deregistered in one batch, nobody sees it.

        The folder is reserved for this principal by that; one that is already, as `location`, is given other
        credentials. No key: the answer has them, and is not to be kept.
        """
        declared = upstream.DeclareTableRequest(
            id=list(path),
            location=fields.get("location"),
            properties=fields.get("properties"),
            vend_credentials=fields.get("vend_credentials") is not False,
        )
        operations = [
            upstream.CommitTableOperation(declare_table=declared),
            upstream.CommitTableOperation(deregister_table=upstream.DeregisterTableRequest(id=list(path))),
        ]
        answer = self._send(upstream.BatchCommitTablesRequest(operations=operations), None)
        return _table(path, answer.results[0].declare_table, declared=True)


def _table(path: Path, told: Any, declared: bool = False) -> Table:
    return Table(
        path,
        told.location,
        told.storage_options or {},
        told.managed_versioning is True,
        declared,
        told.properties or {},
    )


def _unmanaged(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{shown(path)} commits straight to storage: only managed tables can be published together "
        "(the property tiltyard.managed_versioning of the table, or of its namespace)."
    )


complete(Publication)
