"""Other catalogs: those that are mounted as namespaces, and those that tables of this one are published to.

Their secrets are references to variables or files of the server's machine; a server refuses any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.declarations.kind import Kind, Target, id_of, normalize_id
from tiltyard.model.settings.mounts import DEFAULT_CACHE_AGE_SECONDS
from tiltyard.model.text.typed_ids import format_id

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

_OF_SETTINGS = "It is one of the server's settings."


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A catalog of a kind, with the settings of that kind."""

    kind: str
    settings: dict[str, Any] = {}
    allowed_locations: list[str] = []
    max_age_seconds: float = DEFAULT_CACHE_AGE_SECONDS
    managed_versioning: bool = False
    vends_credentials: bool = False


class Mounts(Kind[Mount]):
    """Catalogs that are served as namespaces."""

    section = "mounts"
    noun = "mount"
    declaration = Mount
    securable = "namespace"
    replaced_by = frozenset({"kind"})

    def read(self, catalog: CatalogContent) -> dict[str, Mount]:
        """Return the mounts that were made by operations, for an administrator."""
        found = {}
        for entry in catalog.mounts:
            name = format_id(entry["id"])
            if entry["origin"] == "settings":
                catalog.leave_out(self.section, name, _OF_SETTINGS)
                continue
            found[name] = Mount(
                entry["kind"],
                dict(sorted(entry["settings"].items())),
                entry["allowed_locations"],
                entry["max_age_millis"] / 1000,
                entry["managed_versioning"],
                entry["vends_credentials"],
            )
        return found

    def create(self, target: Target, name: str, declared: Mount) -> None:
        """Mount a catalog, once it has answered."""
        target.calls.call("MountCatalog", id=id_of(name), kind=declared.kind, **_mount_fields(declared))

    def alter(self, target: Target, name: str, after: Mount, differences: Sequence[Difference]) -> bool:
        """Alter a mount."""
        target.calls.call("AlterMount", id=id_of(name), **_mount_fields(after))
        return True

    def delete(self, target: Target, name: str, declared: Mount) -> None:
        """Remove a mount, with the grants and policies of what is in it; the other catalog stays as it is."""
        target.calls.call("UnmountCatalog", id=id_of(name))


def _mount_fields(mount: Mount) -> dict[str, Any]:
    return {
        "settings": mount.settings,
        "allowed_locations": mount.allowed_locations,
        "max_age_millis": round(mount.max_age_seconds * 1000),
        "managed_versioning": mount.managed_versioning,
        "vends_credentials": mount.vends_credentials,
    }


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A catalog of a kind in which tables are entered: those of a `namespace`, or all."""

    kind: str
    settings: dict[str, Any] = {}
    namespace: str | None = None
    target: str | None = None
    columns: bool = False


class Publications(Kind[Publication]):
    """Catalogs that tables are published to. One that differs is made again; entries in the other catalog stay."""

    section = "publications"
    noun = "publication"
    declaration = Publication
    is_in_namespaces = False
    is_deleted_first = True
    replaced_by = frozenset(Publication.__struct_fields__)

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, Publication]:
        """Return the name and the publication. Raises ContentError."""
        name, each = super().parse(name, content, path)
        namespace = None if each.namespace is None else normalize_id(each.namespace, (*path, "namespace"))
        entered = None if each.target is None else normalize_id(each.target, (*path, "target"))
        return name, Publication(each.kind, each.settings, namespace, entered, each.columns)

    def read(self, catalog: CatalogContent) -> dict[str, Publication]:
        """Return the publications, for an administrator."""
        return {
            entry["publication"]: Publication(
                entry["kind"],
                dict(sorted(entry["settings"].items())),
                format_id(entry["namespace"]) if entry.get("namespace") else None,
                format_id(entry["target"]) if entry.get("target") else None,
                entry["columns"],
            )
            for entry in catalog.entries(self.section, "ListPublications", "publications")
            if not entry["removing"]
        }

    def create(self, target: Target, name: str, declared: Publication) -> None:
        """Publish from now on, once the other catalog has answered."""
        target.calls.call(
            "CreatePublication",
            publication=name,
            kind=declared.kind,
            settings=declared.settings,
            namespace=None if declared.namespace is None else id_of(declared.namespace),
            target=None if declared.target is None else id_of(declared.target),
            columns=declared.columns,
        )

    def delete(self, target: Target, name: str, declared: Publication) -> None:
        """Drop a publication; its entries in the other catalog stay."""
        target.calls.call("DropPublication", publication=name)
