"""Mounts in the settings: a table `[mounts.NAME]` for each, with the settings of its kind and a few of our own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.model.settings.storages import is_reference

if TYPE_CHECKING:
    from tiltyard.model.ids import Id

DEFAULT_CACHE_AGE_SECONDS = 1.0
MAX_CACHE_AGE_SECONDS = 86400.0
SECRET_PREFIX = "TILTYARD_MOUNT_"  # noqa: S105  # of a variable's name
"""Of the environment variables that mounts made by an operation may refer to."""


class MountSettings(msgspec.Struct, frozen=True):
    """A mount of the settings. `namespace` is its id, by default its name; `max_age` counts seconds.

    `settings` are those of its kind: all keys of the table that are none of the others.
    """

    kind: str
    namespace: str = ""
    allowed_locations: tuple[str, ...] = ()
    max_age: float = DEFAULT_CACHE_AGE_SECONDS
    managed_versioning: bool = False
    vends_credentials: bool = False
    settings: Mapping[str, Any] = {}

    def id(self, name: str) -> Id:
        """Return the id of the namespace that the mount `name` is. Raises InvalidInputError."""
        from tiltyard.model.ids import parse_id  # noqa: PLC0415  # it imports lance_namespace, slowly

        return parse_id(self.namespace or name)


_OWN = frozenset(MountSettings.__struct_fields__) - {"settings"}


def parse_mount(values: Mapping[str, Any]) -> MountSettings:
    """Parse a table of the settings. Raises msgspec.ValidationError."""
    own = {key: value for key, value in values.items() if key in _OWN}
    settings = {key: value for key, value in values.items() if key not in _OWN}
    return msgspec.convert({**own, "settings": settings}, MountSettings)


def mounts_problem(mounts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return what is wrong with the mounts, as one sentence; None if nothing is. Secrets are not read."""
    ids: dict[Id, str] = {}
    for name, values in mounts.items():
        try:
            mount = parse_mount(values)
            path = mount.id(name)
        except (msgspec.ValidationError, ValueError) as error:
            return f"The mount {name} cannot be used: {error}."
        if not path:
            return f"The mount {name} cannot be the root: name a namespace."
        if not 0 <= mount.max_age <= MAX_CACHE_AGE_SECONDS:
            return f"The mount {name} has a max_age of {mount.max_age}: 0 to {MAX_CACHE_AGE_SECONDS:.0f} seconds."
        for other, other_name in ids.items():
            if other[: len(path)] == path or path[: len(other)] == other:
                return f"The mounts {other_name} and {name} are one below the other: move one of them."
        ids[path] = name
    return None


def mount_locations(mounts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the folders in which tables of the settings' mounts may lie: who writes the settings allows them."""
    parsed = map(parse_mount, mounts.values())
    return [place for mount in parsed for place in (*mount.allowed_locations, mount.settings.get("root")) if place]


def secret_problem(settings: Mapping[str, Any], secrets_folder: str) -> str | None:
    """Return why a client may not make a mount with these settings, as one sentence; None if it may.

    An administrator of the catalog is no operator of the host: a secret has to be one that is meant for mounts, a
    variable TILTYARD_MOUNT_… or a file in the folder of the setting `mount_secrets`.
    """
    for text in _texts(settings):
        if not is_reference(text):
            continue
        kind, _, place = text.partition(":")
        if kind == "env" and not place.startswith(SECRET_PREFIX):
            return f"A mount's secrets are in variables whose names begin with {SECRET_PREFIX}: {place} does not."
        if kind == "file" and not (secrets_folder and _is_in(place, secrets_folder)):
            return "A mount's secrets are in files of the folder that the server's setting mount_secrets names."
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _is_in(file: str, folder: str) -> bool:
    return os.path.commonpath([os.path.realpath(file), os.path.realpath(folder)]) == os.path.realpath(folder)
