"""The types of vending: a table's folder, the credentials for it, and the vendor that creates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from lance_namespace.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from tiltyard.storage.files import Files


@dataclass(frozen=True, slots=True)
class Folder:
    """A table's folder on an object store; `path` has a slash at neither end, and is not empty."""

    bucket: str
    path: str

    @classmethod
    def of(cls, location: str) -> Folder:
        """Parse a canonical location, such as s3://bucket/tables/t. Raises ValueError for a whole bucket."""
        parts = urlsplit(location)
        bucket, path = parts.netloc.partition("@")[0], location.partition("://")[2].partition("/")[2].strip("/")
        if not bucket or not path:
            raise ValueError(f"no folder inside a bucket: {location}")
        return cls(bucket, path)

    @property
    def prefix(self) -> str:
        """The prefix of all objects in it, and of no others: the path with a trailing slash."""
        return f"{self.path}/"

    @property
    def session_name(self) -> str:
        """A name for the provider's logs: letters, digits and hyphens, the same for the same folder."""
        return f"tiltyard-{blake2b(f'{self.bucket}/{self.path}'.encode(), digest_size=12).hexdigest()}"


@dataclass(frozen=True, slots=True)
class VendedCredentials:
    """Storage options with credentials, and their validity (milliseconds since 1970)."""

    options: Mapping[str, str] = field(repr=False)
    issued_at: int
    expires_at: int
    clients: list[Files] = field(default_factory=list, repr=False, compare=False)
    """The client of the object store that this server opens with them, once it has: it goes with them."""


class NoCredentialsError(ServiceUnavailableError):
    """The provider does not answer, or refuses; the log has the reason."""

    def __init__(self) -> None:
        super().__init__("The storage issues no credentials now: set vend_credentials=false, or try again in a moment.")


class Vendor(Protocol):
    """Create credentials, in a blocking request to a provider. Safe to use from several threads."""

    def vend(self, folder: Folder, *, writable: bool) -> VendedCredentials:
        """Create credentials for all files of a folder, and nothing else: to read, or to write and delete as well.

        Raises NoCredentialsError.
        """
