"""The server's own commits to managed tables take the road of a client's: staged, recorded, finalised.

Lance asks a namespace in process for the latest version, and tells it of each one it staged; tables are known there
by the number of their record, which a rename does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance_namespace as upstream
import msgspec
from lance_namespace.errors import TableVersionNotFoundError

from tiltyard.spec import models
from tiltyard.storage.road import Road
from tiltyard.tables.version_commits import commit_staged, wire_version
from tiltyard.tables.versions import describe_version, latest_manifest, list_versions

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TableRecord


class OwnCommits(upstream.LanceNamespace):
    """The part of a namespace that commits need."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def namespace_id(self) -> str:
        """What tells this namespace from others."""
        return f"tiltyard-{id(self._ctx.services)}"

    def describe_table(self, request: Any) -> upstream.DescribeTableResponse:
        """Where a table lies, and that it is managed."""
        record = self._table(request)
        return upstream.DescribeTableResponse(
            location=record.location,
            storage_options=self._ctx.storage.options(record.location),
            managed_versioning=True,
        )

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """The versions of a branch."""
        asked, record = _read(request, models.ListTableVersionsRequest), self._table(request)
        if asked.descending and asked.limit == 1:  # how Lance asks for the latest: it needs the file's name alone
            latest = latest_manifest(self._ctx, record, asked.branch)
            found = models.ListTableVersionsResponse(versions=[latest] if latest else [])
        else:
            found = list_versions(self._ctx, record, asked)
        return upstream.ListTableVersionsResponse.model_validate(msgspec.to_builtins(found))

    def describe_table_version(self, request: Any) -> upstream.DescribeTableVersionResponse:
        """One version. Raises TableVersionNotFoundError."""
        asked = _read(request, models.DescribeTableVersionRequest)
        found = describe_version(self._ctx, self._table(request), asked.branch, asked.version)
        if found is None:
            raise TableVersionNotFoundError(f"No version {asked.version}.")
        return upstream.DescribeTableVersionResponse.model_validate({"version": msgspec.to_builtins(found)})

    def create_table_version(self, request: Any) -> upstream.CreateTableVersionResponse:
        """Commit what Lance staged. Raises ConcurrentModificationError."""
        record = self._table(request)
        committed = commit_staged(self._ctx, record, _read(request, models.CreateTableVersionRequest), ours=True)
        version = msgspec.to_builtins(wire_version(record, committed))
        return upstream.CreateTableVersionResponse.model_validate({"version": version})

    def _table(self, request: Any) -> TableRecord:
        return self._ctx.store.table_by_id(int(_fields(request)["id"][0]))


def _read(request: Any, model: Any) -> Any:
    return msgspec.convert(_fields(request), model)


def _fields(request: Any) -> dict[str, Any]:
    """A request as pylance hands it over, a model or like a mapping; absent fields are missing or None."""
    given = request.model_dump() if hasattr(request, "model_dump") else dict(request)
    return {name: value for name, value in given.items() if value is not None}


def road(ctx: Context, record: TableRecord) -> Road | None:
    """The way commits to a table take; None for straight to storage."""
    return Road(OwnCommits(ctx), (str(record.id),)) if record.managed else None
