"""Mounts: catalogs of others that hold Lance tables, each behind the protocol `MountedCatalog`.

A kind of catalog is one module and a line in `KINDS`. Other packages add kinds by entry points of the group
`tiltyard.mounts`: `name = "their.module:TheirCatalog"`, a class made from its settings, an instance of its attribute
`settings_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

from lance_namespace.errors import InvalidInputError

from tiltyard.mounts.mount_settings import parse_settings
from tiltyard.mounts.mounted_catalog import MountedCatalog, MountedTable, NamePage, StorageCredentials

__all__ = [
    "ENTRY_POINTS",
    "KINDS",
    "MountedCatalog",
    "MountedTable",
    "NamePage",
    "StorageCredentials",
    "check_settings",
    "open_catalog",
]

ENTRY_POINTS = "tiltyard.mounts"
"""The group of entry points by which other packages add kinds."""

KINDS = {
    "dir": "tiltyard.mounts.backends.directory:DirectoryCatalog",
    "glue": "tiltyard.mounts.backends.glue:GlueCatalog",
    "hive": "tiltyard.mounts.backends.hive:HiveCatalog",
    "iceberg": "tiltyard.mounts.backends.iceberg:IcebergCatalog",
    "lance": "tiltyard.mounts.backends.lance_rest:LanceRestCatalog",
    "polaris": "tiltyard.mounts.backends.polaris:PolarisCatalog",
    "unity": "tiltyard.mounts.backends.unity:UnityCatalog",
}
"""The classes of catalogs, by kind; a class is imported, and the packages it needs, when the first one is opened."""


class CatalogType(Protocol):
    """A class of catalogs."""

    settings_type: type[Any]

    def __call__(self, settings: Any) -> MountedCatalog:
        """Make a catalog; nothing is sent yet."""


def open_catalog(kind: str, settings: Mapping[str, object]) -> MountedCatalog:
    """Open a catalog of a kind with the settings of a mount; nothing is sent yet.

    Raises InvalidInputError for an unknown kind, settings that are not valid, and packages that are not installed.
    """
    catalog_type = _catalog_type(kind)
    return catalog_type(parse_settings(catalog_type.settings_type, settings))


def check_settings(kind: str, settings: Mapping[str, object]) -> None:
    """Check the settings of a mount without opening it. Raises as `open_catalog` does."""
    parse_settings(_catalog_type(kind).settings_type, settings)


def _catalog_type(kind: str) -> CatalogType:
    kinds = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)} | KINDS
    if kind not in kinds:
        raise InvalidInputError(f"There is no kind of mount '{kind}': use one of {', '.join(sorted(kinds))}.")
    module, _, name = kinds[kind].partition(":")
    try:
        catalog_type: CatalogType = getattr(import_module(module), name)
    except ImportError as error:
        raise InvalidInputError(
            f"A mount of the kind '{kind}' needs more packages ({error.name} is missing): "
            f'pip install "tiltyard[{kind}]".'
        ) from error
    return catalog_type
