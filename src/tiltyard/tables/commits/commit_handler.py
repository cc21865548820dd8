"""The server's own commits to managed tables take the road of a client's: staged, recorded, finalised.

Lance asks a namespace in process for the latest version, and tells it of each one it staged; tables are known there
by the number of their record, which a rename does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TableVersionNotFoundError

from tiltyard.model.spec import models
from tiltyard.runtime.clocks import wall_clock
from tiltyard.storage.commit_route import Check, Road
from tiltyard.storage.manifest_format import versions_folder
from tiltyard.tables.commits.commit import commit_staged
from tiltyard.tables.commits.commit_requests import wire_version
from tiltyard.tables.versions.versions import describe_version, latest_manifest, list_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import TableRecord


_WRITES = ("data", "_deletions", "_indices")
"""Folders that have the files which a commit may bring; its transaction is in the manifest, too."""
_COARSE_MS = 2000
"""How far the time that a file carries may be behind."""


class _Response(dict[str, Any]):
    """A response as pylance reads it: like one of the generated models, whose import takes a server's start as long
    again."""

    def model_dump(self) -> dict[str, Any]:
        """All fields, by name."""
        return dict(self)


class OwnCommits:
    """The part of a `LanceNamespace` that commits need: pylance asks for these methods, and not for the class."""

    def __init__(
        self,
        ctx: Context,
        written_since: int | None = None,
        checks: Sequence[Check] = (),
        refusals: list[TableNotFoundError] | None = None,
    ) -> None:
        """`written_since` is when Lance began to write what a commit brings; None if that is durable already.

        `refusals` gets why nothing was recorded, while that is sure.
        """
        self._ctx = ctx
        self._written_since = written_since
        self._checks = checks
        self._refusals = [] if refusals is None else refusals
        self._asked = False

    def namespace_id(self) -> str:
        """What tells this namespace from others."""
        return f"tiltyard-{id(self._ctx.services)}"

    def describe_table(self, request: Any) -> _Response:
        """Where a table lies, and that it is managed."""
        record = self._table(request)
        return _Response(
            location=record.location,
            storage_options=self._ctx.storage.options(record.location),
            managed_versioning=True,
        )

    def list_table_versions(self, request: Any) -> _Response:
        """The versions of a branch."""
        asked, record = _read(request, models.ListTableVersionsRequest), self._table(request)
        if asked.descending and asked.limit == 1:  # how Lance asks for the latest: it needs the file's name alone
            latest = latest_manifest(self._ctx, record, asked.branch)
            found = models.ListTableVersionsResponse(versions=[latest] if latest else [])
        else:
            found = list_versions(self._ctx, record, asked)
        return _Response(msgspec.to_builtins(found))

    def describe_table_version(self, request: Any) -> _Response:
        """One version. Raises TableVersionNotFoundError."""
        asked = _read(request, models.DescribeTableVersionRequest)
        found = describe_version(self._ctx, self._table(request), asked.branch, asked.version)
        if found is None:
            raise TableVersionNotFoundError(f"No version {asked.version}.")
        return _Response(version=msgspec.to_builtins(found))

    def create_table_version(self, request: Any) -> _Response:
        """Commit what Lance staged. Raises ConcurrentModificationError, and what the checks of the road raise."""
        record, asked = self._still_there(request), _read(request, models.CreateTableVersionRequest)
        self._check(record, asked)
        if self._written_since is not None:
            base = f"{record.location}/{versions_folder(asked.branch)}".removesuffix("/_versions")
            self._ctx.storage.sync_written([f"{base}/{folder}" for folder in _WRITES], self._written_since)
        committed = commit_staged(self._ctx, record, asked, ours=True)
        return _Response(version=msgspec.to_builtins(wire_version(record, committed)))

    def _check(self, record: TableRecord, asked: models.CreateTableVersionRequest) -> None:
        """What did not pass is not left behind."""
        storage = self._ctx.storage

        def staged() -> str:
            return storage.manifests.named(record.location, asked.manifest_path)

        try:
            for check in self._checks:
                check(asked.version, lambda: storage.manifests.content(record.location, staged()).content)
        except ConcurrentModificationError:
            storage.delete_files([staged()])
            raise

    def _still_there(self, request: Any) -> TableRecord:
        """The table to commit to. One that is gone before Lance has asked for any version has got none."""
        self._refusals.clear()
        try:
            return self._table(request)
        except TableNotFoundError as error:
            if not self._asked:
                self._refusals.append(error)
            raise
        finally:
            self._asked = True

    def _table(self, request: Any) -> TableRecord:
        return self._ctx.store.table_by_id(int(_fields(request)["id"][0]))


def _read(request: Any, model: Any) -> Any:
    return msgspec.convert(_fields(request), model)


def _fields(request: Any) -> dict[str, Any]:
    """A request as pylance hands it over, a model or like a mapping; absent fields are missing or None."""
    given = request.model_dump() if hasattr(request, "model_dump") else dict(request)
    return {name: value for name, value in given.items() if value is not None}


def road(ctx: Context, record: TableRecord, *, durable: bool) -> Road | None:
    """The way commits to a table take; None for straight to storage.

    Unless what they bring is `durable` already, what Lance writes from now on is made so before the record.
    """
    if not record.managed:
        return None
    checks: list[Check] = []
    refusals: list[TableNotFoundError] = []
    since = None if durable else wall_clock() - _COARSE_MS
    return Road(OwnCommits(ctx, since, checks, refusals), (str(record.id),), checks, refusals)
