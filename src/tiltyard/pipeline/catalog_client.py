"""Open tables through the namespace client, in the driver. All commits go through it, and so through the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lance
import lance_namespace as upstream
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.model.text.typed_ids import is_server_address
from tiltyard.pipeline.table_location import CatalogConnection, Pairs, TableLocation

TWIN = "tiltyard.namespace.Namespace"


class NoFilesError(UnsupportedOperationError):
    """A plain view has no files: its rows are what the server computes, by QueryTable."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a catalog, by its id. It can be pickled."""

    connection: CatalogConnection
    path: tuple[str, ...]

    @property
    def client(self) -> upstream.LanceNamespace:
        """Return this process's namespace client."""
        return self.connection.client()

    @property
    def id(self) -> list[str]:
        """Return the id as a list, as requests have it."""
        return list(self.path)

    @property
    def _bound(self) -> str | None:
        """Return the location that the table must have; None for any."""
        return dict(self.connection.bound).get(str(self))

    def describe(self, **fields: Any) -> upstream.DescribeTableResponse:
        """Describe the table.

        Raises TableNotFoundError, ConcurrentModificationError if it is bound and has another name by now.
        """
        try:
            response = self.client.describe_table(upstream.DescribeTableRequest(id=self.id, **fields))
        except TableNotFoundError as error:
            if self._bound is None:
                raise
            raise self._renamed() from error
        if self._bound not in (None, response.location):
            raise self._renamed()
        return response

    def _renamed(self) -> ConcurrentModificationError:
        return ConcurrentModificationError(
            f"{self} is no longer the table of this job: that one was renamed or dropped meanwhile. "
            "Resume the job: it continues with its table under the table's current name."
        )

    def dataset(
        self,
        version: int | str | None = None,
        branch: str | None = None,
        client: upstream.LanceNamespace | None = None,
        block_size: int | None = None,
    ) -> lance.LanceDataset:
        """Open the table so that commits go through the namespace; `version` may be a tag.

        `client` replaces the namespace's own, `block_size` as in `indexes.tasks.block_size`. Raises as `describe` does,
        PermissionDeniedError (also if a policy binds the caller, who has to read by QueryTable),
        InvalidTableStateError (it is only declared), NoFilesError, TableVersionNotFoundError, TableTagNotFoundError,
        TableBranchNotFoundError.
        """
        options = dict(self.connection.storage) or None
        try:
            newest = lance.dataset(
                namespace_client=client or self.client, table_id=self.id, block_size=block_size, storage_options=options
            )
        except (OSError, ValueError) as error:
            if "did not return a 'location'" in str(error):
                raise NoFilesError(f"{self} is a view: it has no files, versions or indexes of its own.") from error
            is_ours = any(reason in str(error).lower() for reason in ("not found", "permission denied"))
            if not is_ours or self.latest_version():  # which raises PermissionDeniedError itself
                raise
            raise InvalidTableStateError(
                f"{self} is only declared, and has neither columns nor rows yet: write to it first."
            ) from error
        if self._bound is not None:
            self.describe()  # the dataset was opened by name: check that the name still is the bound table's
        if branch:
            branch_version = version if isinstance(version, int) else None
            return _checkout(
                newest, (branch, branch_version), TableBranchNotFoundError(f"{self} has no branch '{branch}'.")
            )
        if version is None:
            return newest
        missing_version = TableVersionNotFoundError(f"There is no version {version} of {self}.")
        missing_tag = TableTagNotFoundError(f"{self} has no tag '{version}'.")
        return _checkout(newest, version, missing_tag if isinstance(version, str) else missing_version)

    def latest_version(self) -> int:
        """Return the number of the newest version; 0 for a table that is only declared."""
        request = upstream.ListTableVersionsRequest(id=self.id, descending=True, limit=1)
        versions = self.client.list_table_versions(request).versions
        return int(versions[0].version) if versions else 0

    def location(self) -> TableLocation:
        """Return where its files are, for tasks. Raises TableNotFoundError."""
        response = self.describe()
        if not response.location:
            raise InvalidInputError(f"The namespace gives no location of {self}.")
        return self.location_at(response.location, response.storage_options)

    def location_at(self, uri: str, options: Mapping[str, str] | None) -> TableLocation:
        """Return the location that a response of the namespace named."""
        return self.connection.locate(uri, options or {}, self.path)

    def __str__(self) -> str:
        return DEFAULT_DELIMITER.join(self.path)


def _checkout(dataset: lance.LanceDataset, version: Any, missing: Exception) -> lance.LanceDataset:
    """Check out another version of a dataset. Raises `missing` if it does not exist, else what Lance raises."""
    try:
        return dataset.checkout_version(version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        raise missing from error


def connection(
    uri: str, properties: Mapping[str, str] | None = None, storage: Mapping[str, str] | None = None
) -> CatalogConnection:
    """Describe the connection to a catalog: `http(s)://…` is a server, all else the root of a catalog in this process.

    `properties` are those of the client (`header.Authorization`, `db`, …).
    """
    all_properties = dict(properties or {})
    if is_server_address(uri):
        return CatalogConnection("rest", _to_pairs({"uri": uri, **all_properties}), _to_pairs(storage or {}))
    return CatalogConnection(TWIN, _to_pairs({"root": uri, "jobs": "0", **all_properties}), _to_pairs(storage or {}))


def table(where: CatalogConnection | str, name: str | tuple[str, ...]) -> Table:
    """Return a table by its id (`films`, `library$books`). Raises InvalidInputError."""
    catalog = where if isinstance(where, CatalogConnection) else connection(where)
    # A plain tuple: tasks get it, and would import the namespace client with the class `Id`.
    path = tuple(parse_id(name)) if isinstance(name, str) else name
    if not path:
        raise InvalidInputError("Name a table.")
    return Table(catalog, path)


def _to_pairs(options: Mapping[str, str]) -> Pairs:
    return tuple(sorted((name, str(value)) for name, value in options.items()))
