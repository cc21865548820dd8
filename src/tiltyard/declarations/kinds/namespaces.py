"""Namespaces with their properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from tiltyard.declarations.kind import Kind, Target, id_of

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

_NOT_ALTERED = "the properties of a namespace are those that it was created with"


class Namespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A namespace."""

    properties: dict[str, str] = {}


class Namespaces(Kind[Namespace]):
    """Namespaces: created from the outermost on, and dropped once they are empty."""

    section = "namespaces"
    noun = "namespace"
    declaration = Namespace
    securable = "namespace"
    parts = frozenset({("properties",)})

    def read(self, catalog: CatalogContent) -> dict[str, Namespace]:
        """Return the namespaces of this catalog, without mounts."""
        return {name: Namespace(dict(sorted(each.items()))) for name, each in catalog.namespaces.items()}

    def differences(self, before: Namespace, after: Namespace) -> list[Difference]:
        """Return the properties that differ, which no operation changes."""
        return [replace(each, problem=_NOT_ALTERED) for each in super().differences(before, after)]

    def order(self, declared: Mapping[str, Namespace]) -> Sequence[str]:
        """Return outer namespaces before those in them."""
        return sorted(declared, key=id_of)

    def create(self, target: Target, name: str, declared: Namespace) -> None:
        """Create a namespace."""
        target.calls.call("CreateNamespace", id=id_of(name), properties=declared.properties or None)

    def delete(self, target: Target, name: str, declared: Namespace) -> None:
        """Drop an empty namespace."""
        target.calls.call("DropNamespace", id=id_of(name))
