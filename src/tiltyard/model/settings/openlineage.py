"""The settings of OpenLineage events: where they are sent, and by what name this catalog is known there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tiltyard.model.settings.storages import SecretError, read_secret


@dataclass(frozen=True, slots=True)
class OpenLineageSettings:
    """`url` is an HTTP endpoint, to which `key` is sent as a bearer token, or a file that gets a line of JSON an event.

    `namespace` is that of jobs and tables; "" for the address of the catalog.
    """

    url: str
    key: str = ""
    namespace: str = ""

    @property
    def is_http(self) -> bool:
        """Return whether events are sent by HTTP."""
        return self.url.startswith(("http://", "https://"))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> OpenLineageSettings | None:
        """Read the variables of a process that runs jobs by itself; None where events are off. Raises SecretError."""
        url = environ.get("TILTYARD_OPENLINEAGE", "")
        if not url:
            return None
        if problem := openlineage_problem(url):
            raise SecretError(problem)
        reference = environ.get("TILTYARD_OPENLINEAGE_KEY", "")
        return cls(url, read_key(reference, environ), environ.get("TILTYARD_OPENLINEAGE_NAMESPACE", ""))


def read_key(reference: str, environ: Mapping[str, str]) -> str:
    """Return the key that `env:NAME` or `file:PATH` names; "" for no reference. Raises SecretError."""
    if not reference:
        return ""
    if not reference.startswith(("env:", "file:")):
        raise SecretError("The setting openlineage_key is a secret in plain text: write env:NAME or file:PATH.")
    return read_secret("The setting openlineage_key", reference, environ)


def openlineage_problem(url: str) -> str | None:
    """Return what is wrong with the setting `openlineage`; None if nothing is."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https") and parts.hostname and not parts.username:
        return None
    if url.startswith("file:///") or ("://" not in url and Path(url).is_absolute()):
        return None
    return (
        "The setting openlineage is the URL of an endpoint without credentials, as http://marquez:5000/api/v1/lineage, "
        "or the absolute path of a file."
    )
