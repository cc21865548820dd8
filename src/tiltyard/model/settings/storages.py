"""Named storages: their location, the server's credentials, and whether it vends credentials to clients.

Secrets are never in the settings themselves, but references: `env:NAME` or `file:PATH`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

MIN_LIFETIME_SECONDS, MAX_LIFETIME_SECONDS = 900, 43200
"""Seconds, as AWS allows for a role's session; Azure and Google allow the same."""

_NAME = re.compile(r"[\w-]+", re.ASCII)
_REFERENCE = re.compile(r"(env|file):(.+)")
_SECRET = re.compile(r"secret|token|password|sas|credential|access_key|(?:_|^)key$", re.IGNORECASE)


class SecretError(Exception):
    """A secret that its reference does not lead to; the message names the reference, never the secret."""


class NamedStorage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One storage, used for all tables below `uri`; of several, the one with the longest `uri`.

    `credentials` has references to secrets, under the keys that Lance reads; `options` has what is no secret. With
    `vend` the server vends credentials for one table's folder that are valid for `lifetime` seconds; on S3 they are
    those of the `role`, on Google Cloud of the service account `role` where one is named. `kms_key` is the ARN of the
    key that encrypts an S3 bucket.
    """

    uri: str
    endpoint: str = ""
    region: str = ""
    account: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    credentials: dict[str, str] = msgspec.field(default_factory=dict)
    vend: bool = False
    role: str = ""
    external_id: str = ""
    sts_endpoint: str = ""
    kms_key: str = ""
    lifetime: int = 3600

    @property
    def scheme(self) -> str:
        """The scheme of the URI, in lower case; "file" for a path."""
        return self.uri.partition("://")[0].lower() if "://" in self.uri else "file"


@dataclass(frozen=True, slots=True)
class StorageSecrets:
    """The secrets of a storage; `repr` does not show them."""

    values: Mapping[str, str] = field(repr=False)

    def get(self, *names: str) -> str | None:
        """Return the first of these that exists; the case of names does not matter."""
        folded = {name.lower(): value for name, value in self.values.items()}
        return next((folded[name] for name in names if name in folded), None)


def read_secrets(name: str, storage: NamedStorage) -> StorageSecrets:
    """Read the secrets that a storage's credentials refer to. Raises SecretError."""
    owner = f"The storage {name}"
    return StorageSecrets({key: read_secret(owner, reference) for key, reference in storage.credentials.items()})


def is_reference(text: str) -> bool:
    """Whether a text refers to a secret: `env:NAME` or `file:PATH`."""
    return _REFERENCE.fullmatch(text) is not None


def read_secret(owner: str, reference: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret that a reference leads to; `owner` begins the message. Raises SecretError."""
    kind, _, place = reference.partition(":")
    if kind == "env":
        if not environ.get(place):
            raise SecretError(f"{owner} needs the variable {place}: set it.")
        return environ[place]
    try:
        return Path(place).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"{owner} needs the file {place}, which cannot be read.") from error


def storages_problem(storages: Mapping[str, NamedStorage]) -> str | None:
    """Return what is wrong with the storages, as one sentence; None if nothing is. Secrets are not read."""
    names_by_uri: dict[str, str] = {}
    for name, storage in storages.items():
        if not _NAME.fullmatch(name):
            return f"A storage's name has letters, digits, - and _: it cannot be {name!r}."
        if (other := names_by_uri.get(storage.uri.rstrip("/"))) is not None:
            return f"The storages {other} and {name} have the same uri: take one away."
        names_by_uri[storage.uri.rstrip("/")] = name
        if problem := _problem(storage):
            return f"The storage {name} {problem}"
    return None


def _problem(storage: NamedStorage) -> str | None:
    for key, reference in storage.credentials.items():
        if not is_reference(reference):
            return f"has a secret in plain text ({key}): write env:NAME or file:PATH."
    if plain := [key for key in storage.options if _SECRET.search(key)]:
        return f"has {plain[0]} among its options: it belongs to its credentials, by reference."
    if not storage.uri:
        return "needs a uri."
    if not MIN_LIFETIME_SECONDS <= storage.lifetime <= MAX_LIFETIME_SECONDS:
        return f"has a lifetime of {storage.lifetime}: {MIN_LIFETIME_SECONDS} to {MAX_LIFETIME_SECONDS} seconds."
    if not storage.vend:
        return "has a role but vends no credentials: set vend = true, or leave the role out." if storage.role else None
    match storage.scheme:
        case "s3":
            return None if storage.role else "needs the role to assume for vended credentials: set role."
        case "az" | "abfss":
            return None if storage.account else "needs the name of its storage account: set account."
        case "gs":
            return None
    return "cannot vend credentials: it is not an object store; leave vend out."
