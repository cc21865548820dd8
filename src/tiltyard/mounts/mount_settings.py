"""Parse the settings of a mount: a dataclass of its backend, from the values of a table in the settings file.

Unknown keys are refused. A field with the metadata `SECRET` holds a secret, or a mapping of them, and has `repr=False`;
the settings have a reference to it: `env:NAME` or `file:PATH`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.model.settings.storages import SecretError, is_reference, read_secret
from tiltyard.storage.locations import canonical_location

SECRET = {"is_secret": True}
MAX_SECONDS = 600.0
"""Of any time limit: calls have to be bounded."""


class DataclassSettings(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=DataclassSettings)


def parse_settings(settings_type: type[S], values: Mapping[str, object]) -> S:
    """Return the settings, with the secrets that they refer to.

    Raises InvalidInputError for an unknown key, an invalid value, and a secret that is missing or in plain text.
    """
    known = {each.name: each for each in fields(settings_type)}
    if unknown := sorted(values.keys() - known.keys()):
        raise InvalidInputError(f"A mount of this kind has no setting '{unknown[0]}': it has {', '.join(known)}.")
    try:
        resolved = {
            key: _resolve(key, value) if known[key].metadata.get("is_secret") else value
            for key, value in values.items()
        }
        return msgspec.convert(resolved, settings_type, strict=False)  # a command line has texts alone
    except SecretError as error:
        raise InvalidInputError(str(error)) from error
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The mount's settings are not valid: {error}.") from error


def check_seconds(**limits: float) -> None:
    """Raise ValueError, which parsing reports, for a time limit that is none."""
    for name, seconds in limits.items():
        if not 0 < seconds <= MAX_SECONDS:
            raise ValueError(f"{name} is {seconds}: more than 0, at most {MAX_SECONDS:.0f} seconds")


def check_age(**ages: float) -> None:
    """Raise ValueError for how long something is remembered, if that is too long."""
    for name, seconds in ages.items():
        if not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"{name} is {seconds}: 0 to {MAX_SECONDS:.0f} seconds")


def _resolve(key: str, value: object) -> object:
    """Return the secret that a value refers to, or the secrets of a mapping."""
    if isinstance(value, Mapping):
        return {name: _resolve(f"{key}.{name}", reference) for name, reference in value.items()}
    if not isinstance(value, str) or not is_reference(value):
        raise SecretError(f"The mount's setting {key} is a secret in plain text: write env:NAME or file:PATH.")
    return read_secret(f"The mount's setting {key}", value)


def check_network(timeout: float, connect_timeout: float, connections: int, root: str) -> None:
    """Raise ValueError unless the limits and the root of a mount that is reached over the network can be used."""
    check_seconds(timeout=timeout, connect_timeout=connect_timeout)
    if not 1 <= connections <= 1000:
        raise ValueError(f"connections is {connections}: 1 to 1000")
    if root:
        canonical_location(root)


def tls_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return what connections are made with: the authorities are those of the host without a file.

    Raises InvalidInputError for files that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert_file:
            context.load_cert_chain(cert_file, key_file or None)
    except OSError as error:
        raise InvalidInputError("The mount's certificates cannot be read.") from error
    return context
