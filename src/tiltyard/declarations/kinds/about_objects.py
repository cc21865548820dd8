"""Declarations about the server, a namespace or a table, which are named by these: `table:sales.orders`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tiltyard.declarations.kind import D, Kind, id_of, normalize_id
from tiltyard.model.text.typed_ids import format_id
from tiltyard.model.text.yaml_text import ContentError

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent

SERVER = "server"
_KINDS = (SERVER, "namespace", "table")


class AboutObjects(Kind[D]):
    """What is declared of objects of other kinds, views among the tables."""

    takes_server: ClassVar[bool] = True
    """Whether it can be about the server."""

    def parse_name(self, name: str, path: Sequence[str | int]) -> str:
        """Return the object in its one form. Raises ContentError."""
        kind, colon, identifier = name.partition(":")
        if name == SERVER and self.takes_server:
            return name
        if kind not in _KINDS[1:] or not colon:
            server = "'server', " if self.takes_server else ""
            raise ContentError(path, f"{self.section} are on {server}'namespace:a' or 'table:a.b'.")
        return f"{kind}:{normalize_id(identifier, path)}"

    def names(self, catalog: CatalogContent) -> Iterator[str]:
        """Yield what the catalog has that it can be about."""
        if self.takes_server and not catalog.within:
            yield SERVER
        yield from (f"namespace:{each}" for each in sorted({*catalog.namespaces, *map(_mount_id, catalog.mounts)}))
        yield from (f"table:{each}" for each in sorted(catalog.tables))

    def is_within(self, name: str, namespace: Sequence[str]) -> bool:
        """Return whether it is about a namespace, or about what is in it."""
        _, _, identifier = name.partition(":")
        return super().is_within(identifier, namespace) if identifier else not namespace

    def order(self, declared: Mapping[str, D]) -> Sequence[str]:
        """Return the server, then namespaces, then tables."""
        return sorted(declared, key=lambda name: (_KINDS.index(name.partition(":")[0]), name))

    def object_of(self, name: str) -> str:
        """Return the namespace or table that it is about."""
        return name if name != SERVER else ""


def object_fields(name: str) -> dict[str, Any]:
    """Return the fields of a request that name an object."""
    kind, _, identifier = name.partition(":")
    return {"object_kind": kind, "id": id_of(identifier) if identifier else None}


def _mount_id(entry: Mapping[str, Any]) -> str:
    return format_id(entry["id"])
