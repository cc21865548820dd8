"""Files on object stores, through the Rust object_store crate that Lance uses, too, so the options are the same."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, UnknownConfigurationKeyError
from obstore.store import from_url

from tiltyard.storage.files import FileStat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CLIENT_OPTIONS = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "timeout", "user_agent",
    }
)  # fmt: skip
_FLAGS = frozenset({"allow_http", "allow_invalid_certificates", "http1_only", "http2_only"})
_DELETE_AT_ONCE = 1000
_RETRY: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}


class ObjectFiles:
    """Files below one bucket or container: the part of a location before its path."""

    def __init__(self, base: str, options: Mapping[str, str]) -> None:
        """Be ready to connect to `base`, such as s3://bucket. Raises obstore's errors for options it cannot use."""
        self._base = base
        client = {
            name: value.lower() == "true" if name in _FLAGS else value
            for name, value in options.items()
            if name in CLIENT_OPTIONS
        }
        config = {name: value for name, value in options.items() if name not in CLIENT_OPTIONS}
        self._store = _connected(base, config, {"timeout": "30s", "connect_timeout": "5s", **client})

    def _path(self, location: str) -> str:
        return location.removeprefix(self._base).strip("/")

    def names(self, folder: str) -> list[str]:
        """See Files."""
        prefix = self._path(folder) + "/"
        found = obstore.list_with_delimiter(self._store, prefix=prefix)
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return [path.removeprefix(prefix).strip("/") for path in paths]

    def is_file(self, location: str) -> bool:
        """See Files."""
        return self.stat(location) is not None

    def read(self, location: str) -> bytes:
        """See Files."""
        return bytes(obstore.get(self._store, self._path(location)).bytes())

    def stat(self, location: str) -> FileStat | None:
        """See Files."""
        try:
            found = obstore.head(self._store, self._path(location))
        except FileNotFoundError:
            return None
        return FileStat(found["size"], found["e_tag"])

    def write_new(self, location: str, content: bytes) -> bool:
        """See Files: a conditional put."""
        try:
            obstore.put(self._store, self._path(location), content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def delete(self, locations: Iterable[str]) -> None:
        """See Files."""
        paths = [self._path(location) for location in locations]
        for start in range(0, len(paths), _DELETE_AT_ONCE):
            obstore.delete(self._store, paths[start : start + _DELETE_AT_ONCE])

    def delete_folder(self, folder: str) -> None:
        """See Files: until a list comes back empty, for a write under way may add to it."""
        prefix = self._path(folder) + "/"
        while paths := [entry["path"] for entry in next(iter(obstore.list(self._store, prefix=prefix)), ())]:
            obstore.delete(self._store, paths)

    def probe(self, root: str) -> None:
        """See Files: a list of one entry, the cheapest question that needs bucket, network and credentials."""
        next(iter(obstore.list(self._store, prefix=self._path(root) + "/.tiltyard-probe", chunk_size=1)), None)

    def prepare(self, root: str) -> None:
        """See Files."""
        path = self._path(f"{root}/.tiltyard-probe-{uuid4().hex}")
        obstore.put(self._store, path, b"probe", use_multipart=False)
        obstore.delete(self._store, [path])


def _connected(base: str, config: dict[str, str], client: Any) -> Any:
    """A store with those options it knows; the others are Lance's own."""
    while True:
        try:
            return from_url(base, config=config, client_options=client, retry_config=_RETRY)  # type: ignore[call-overload]  # kinds of stores differ in their options' types
        except UnknownConfigurationKeyError as error:
            unknown = [name for name in config if f"'{name}'" in str(error)]
            if not unknown:
                raise
            config = {name: value for name, value in config.items() if name not in unknown}
