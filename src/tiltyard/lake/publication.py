"""Tables that are changed together: jobs that commit to a publication, and read what it has staged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import uuid4

import lance
import lance_namespace as upstream
from lance_namespace.errors import InvalidInputError

from tiltyard.lake.tables.table import Table
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.publishing import Publication, publish

_open: dict[str, Publication] = {}
"""The publications of this process whose blocks run, by their keys."""
_deferred: dict[str, list[Callable[[CatalogConnection], None]]] = {}
"""What is called once they are published, by the same keys."""


@contextmanager
def open_publication(
    catalog: CatalogConnection, isolation: str, reads: Iterable[tuple[str, ...]]
) -> Iterator[CatalogConnection]:
    """Yield a connection whose commits a publication holds back until the end of the block. Raises as `publish`."""
    key = uuid4().hex
    deferred: list[Callable[[CatalogConnection], None]] = []
    with publish(
        catalog.client(),
        headers=catalog.headers,
        ssl_ca_cert=dict(catalog.properties).get("tls.ssl_ca_cert"),
        isolation=isolation,
        reads=reads,
    ) as block:
        _open[key], _deferred[key] = block, deferred
        try:
            yield PublishingConnection(catalog.implementation, catalog.properties, catalog.storage, key=key)
        finally:
            del _open[key], _deferred[key]
    for call in deferred:
        call(catalog)


@dataclass(frozen=True, slots=True)
class PublishingConnection(CatalogConnection):
    """A connection through a publication. In another process, which has no part in it, it is the catalog's own."""

    key: str = ""

    def client(self) -> upstream.LanceNamespace:
        """Return the publication. Raises InvalidInputError after the end of its block."""
        if self.key not in _open:
            raise InvalidInputError("The publication has ended: use a table of the lake itself.")
        return _open[self.key]

    def when_visible(self, call: Callable[[CatalogConnection], None]) -> None:
        _deferred[self.key].append(call)

    def locate(self, uri: str, options: Mapping[str, str], table: tuple[str, ...]) -> TableLocation:
        return _PublishedLocation(uri, {**options, **dict(self.storage)}, self, table)

    def catalog(self) -> CatalogConnection:
        """Return the connection without the publication."""
        return CatalogConnection(self.implementation, self.properties, self.storage, self.bound)

    def __reduce__(self) -> tuple[Any, ...]:
        return CatalogConnection, (self.implementation, self.properties, self.storage, self.bound)


@dataclass(frozen=True, slots=True)
class _PublishedLocation(TableLocation):
    """A table within a publication: here all its versions can be opened, in tasks the newest one."""

    def open(self, version: int | None, branch: str | None = None, block_size: int | None = None) -> lance.LanceDataset:
        if branch is not None:
            raise InvalidInputError("A publication changes no branches here: leave the branch out.")
        return lance.dataset(
            namespace_client=self.connection.client(),
            table_id=list(self.table),
            version=version,
            block_size=block_size,
            storage_options=dict(self.options) or None,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        assert isinstance(self.connection, PublishingConnection)
        fields = (self.uri, dict(self.options), self.connection.catalog(), self.table)
        staged = self._newest_staged()
        if staged is None:
            return TableLocation, fields
        from tiltyard.pipeline.indexes.staged import StagedTableLocation  # noqa: PLC0415  # an extra: PySpark

        return StagedTableLocation, (*fields, staged)

    def _newest_staged(self) -> Mapping[str, Any] | None:
        """Return the newest version, if it is the publication's own: storage does not have it yet."""
        block = self.connection.client()
        assert isinstance(block, Publication)
        request = upstream.ListTableVersionsRequest(id=list(self.table), descending=True, limit=1)
        if not block.has_changed(self.table):
            return None
        versions = block.list_table_versions(request).versions
        return versions[0].model_dump() if versions else None


def not_published(method: str) -> InvalidInputError:
    """Return the error of a method that has no part in a publication."""
    return InvalidInputError(f"{method} is no part of a publication: call it on the lake, before or after the block.")


_PUBLISHED = frozenset({"ingest", "upsert", "delete", "create_index"})
"""What changes tables together with others. Others commit by themselves, as a backfill goes on, or change no rows."""


class ChangedTable(Table):
    """A table within a publication: `ingest`, `write`, `upsert`, `delete` and `create_index` change it together with
    others; reading it shows what the block has changed.
    """

    def to_spark(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: Spark reads what is published."""
        raise not_published("to_spark")

    def changes(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: changes are those of published versions."""
        raise not_published("changes")

    def _request(self, *, version: int | None = None, tag: str | None = None, branch: str | None = None) -> NoReturn:
        raise not_published("What the server reads")

    def _check_change(self, method: str) -> None:
        if method not in _PUBLISHED:
            raise not_published(method)
