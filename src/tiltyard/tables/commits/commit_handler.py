"""Lance's commits in this process to managed tables: staged, recorded in the catalog, and finalized, as a client's are.

Lance gets a namespace in process (`CommitNamespace`), asks it for the latest version, and has it commit each manifest
that it has staged. Tables are known there by the id of their record, which a rename does not change.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
)

from tiltyard.calls.pylance_messages import Response, fields_of
from tiltyard.model.branches import Branch
from tiltyard.model.spec import models
from tiltyard.runtime.process import file_clock
from tiltyard.storage.commit_route import Check, CommitRoute
from tiltyard.storage.errors import IncompleteFileError, lance_errors
from tiltyard.storage.files import is_written_since
from tiltyard.store import AppendNotWaitingError, RequestLeaseLostError
from tiltyard.tables.commits.commit import commit_staged
from tiltyard.tables.keys.errors import DuplicateKeyError
from tiltyard.tables.versions.records import wire_version
from tiltyard.tables.versions.versions import describe_version, latest_manifest, list_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import TableRecord
    from tiltyard.tables.keys.checked_appends import CheckedAppend


_REFUSALS = (
    *(DuplicateKeyError, TableSchemaValidationError, InvalidInputError, PermissionDeniedError),
    *(AppendNotWaitingError, RequestLeaseLostError, IncompleteFileError),
)
"""Errors of a commit that nothing can be recorded for, on no later version either."""


class CommitNamespace:
    """The part of a `LanceNamespace` that commits need: pylance calls these methods, and does not check the class."""

    def __init__(
        self,
        ctx: Context,
        written_since: int | None = None,
        checks: Sequence[Check] = (),
        refusals: list[LanceNamespaceError] | None = None,
        checked_appends: Sequence[CheckedAppend] = (),
        queued_appends: Sequence[tuple[str, list[str]]] = (),
    ) -> None:
        """`written_since` is when Lance began to write what a commit brings, in milliseconds; None if that is durable.

        `checks` may refuse a staged manifest. `refusals` gets the errors on which certainly nothing was recorded.
        `checked_appends` need no check by the table's key. `queued_appends` are turns and what a commit brings of them.
        """
        self._ctx = ctx
        self._written_since = written_since
        self._checks = checks
        self.refusals = [] if refusals is None else refusals
        self._checked_appends = checked_appends
        self._queued_appends = queued_appends
        self._has_requested_commit = False

    def namespace_id(self) -> str:
        """Return what tells this namespace from others."""
        return f"tiltyard-{id(self._ctx.services)}"

    def describe_table(self, request: Any) -> Response:
        """Return a table's location, and that it is managed."""
        record = self._table(request)
        return Response(
            location=record.location,
            storage_options=self._ctx.storage.options(record.location),
            managed_versioning=True,
        )

    def list_table_versions(self, request: Any) -> Response:
        """List the versions of a branch."""
        query, record = _decode(request, models.ListTableVersionsRequest), self._table(request)
        if query.descending and query.limit == 1:  # how Lance asks for the latest: it needs the file's name alone
            latest = latest_manifest(self._ctx, record, Branch.parse(query.branch))
            response = models.ListTableVersionsResponse(versions=[latest] if latest else [])
        else:
            response = list_versions(self._ctx, record, query)
        return Response(msgspec.to_builtins(response))

    def describe_table_version(self, request: Any) -> Response:
        """Describe one version. Raises TableVersionNotFoundError."""
        query = _decode(request, models.DescribeTableVersionRequest)
        version = describe_version(self._ctx, self._table(request), Branch.parse(query.branch), query.version)
        if version is None:
            raise TableVersionNotFoundError(f"No version {query.version}.")
        return Response(version=msgspec.to_builtins(version))

    def create_table_version(self, request: Any) -> Response:
        """Commit a manifest that Lance has staged. Raises ConcurrentModificationError, and what the checks raise.

        Errors that are final are added to `refusals`: of what is raised here Lance only says that the outcome is
        unknown.
        """
        return self.commit_content(request, None)

    def commit_content(self, request: Any, content: bytes | None) -> Response:
        """Commit a staged manifest as `create_table_version` does; its content is not read again if it is given."""
        record, entry = self._table_to_commit(request), _decode(request, models.CreateTableVersionRequest)
        self._check(record, entry)
        is_durable = self._written_since is None
        appends, queued = self._checked_appends, self._queued_appends
        try:
            committed = commit_staged(self._ctx, record, entry, appends, content, queued, durable=is_durable)
        except _REFUSALS as error:
            self.refusals.append(error)
            storage = self._ctx.storage
            staged = storage.manifests.resolve_path(record.location, entry.manifest_path)
            if self._written_since is not None and isinstance(error, IncompleteFileError):
                self._delete_written(record, staged, entry.version, self._written_since)
            storage.delete_files([staged])
            raise
        return Response(version=msgspec.to_builtins(wire_version(record, committed)))

    def _delete_written(self, record: TableRecord, staged: str, version: int, since: int) -> None:
        """Delete the files that Lance has written for a version which was refused, as far as its manifest is whole.

        Without the manifest of the version before, what other versions have would count as written for this one.
        """
        storage = self._ctx.storage
        if version > 1 and storage.manifests.find_previous(record.location, staged, version) is None:
            return
        content = storage.manifests.read(record.location, staged).content
        with suppress(InvalidInputError):
            files = [file.location for file in storage.manifests.new_files(record.location, staged, content, version)]
            with lance_errors(record.location):
                storage.delete_files([file for file in files if is_written_since(file, since)])

    def _check(self, record: TableRecord, entry: models.CreateTableVersionRequest) -> None:
        """Run the checks; delete a staged manifest that is refused."""
        storage = self._ctx.storage

        def staged_path() -> str:
            return storage.manifests.resolve_path(record.location, entry.manifest_path)

        try:
            for check in self._checks:
                check(entry.version, lambda: storage.manifests.read(record.location, staged_path()).content)
        except ConcurrentModificationError:
            storage.delete_files([staged_path()])
            raise

    def _table_to_commit(self, request: Any) -> TableRecord:
        """Return the table to commit to. If it is gone at the first request, nothing was recorded: see `refusals`."""
        self.refusals.clear()
        try:
            return self._table(request)
        except TableNotFoundError as error:
            if not self._has_requested_commit:
                self.refusals.append(error)
            raise
        finally:
            self._has_requested_commit = True

    def _table(self, request: Any) -> TableRecord:
        return self._ctx.store.table_by_id(int(fields_of(request)["id"][0]))


def _decode(request: Any, model: Any) -> Any:
    return msgspec.convert(fields_of(request), model)


def commit_route(ctx: Context, record: TableRecord, *, durable: bool) -> CommitRoute | None:
    """Return how commits reach a managed table; None for a table whose commits go straight to storage.

    Unless what they bring is `durable` already, files that Lance writes from now on are synced before the record.
    """
    if not record.managed:
        return None
    route = CommitRoute(None, (str(record.id),))
    since = None if durable else file_clock()
    namespace = CommitNamespace(ctx, since, route.checks, route.refusals, route.checked_appends, route.queued_appends)
    return replace(route, client=namespace)
