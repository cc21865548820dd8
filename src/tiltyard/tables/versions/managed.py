"""Which tables are managed: their versions are rows of the catalog before they are files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.model.ids import Id

MANAGED = "tiltyard.managed_versioning"
_WORDS = {"true": True, "false": False}


def new_is_managed(ctx: Context, path: Id, properties: Mapping[str, str] | None) -> bool:
    """Whether a new table is managed: as its property says, or that of the nearest namespace, or the server's setting.

    Raises InvalidInputError for a property that is neither true nor false, NamespaceNotFoundError.
    """
    if (told := _told(properties)) is not None:
        return told
    for depth in range(len(path) - 1, -1, -1):
        if (told := _told(ctx.store.describe_namespace(path[:depth]).properties)) is not None:
            return told
    return ctx.settings.managed_versioning


def registered_is_managed(properties: Mapping[str, str] | None) -> bool:
    """Whether a registered table is managed: only if its property says so. Raises InvalidInputError."""
    return bool(_told(properties))


def _told(properties: Mapping[str, str] | None) -> bool | None:
    text = (properties or {}).get(MANAGED)
    if text is None:
        return None
    if text.lower() not in _WORDS:
        raise InvalidInputError(f"The property {MANAGED} is 'true' or 'false', not '{text}'.")
    return _WORDS[text.lower()]
