"""Credentials for clients that read and write tables by themselves: for one folder each, and for a while.

What each provider needs is imported only for a storage that hands out credentials.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tiltyard.storage.vending.credential_cache import CredentialCache, refresh_offset
from tiltyard.storage.vending.vended_credentials import Credentials, Folder, Vendor

if TYPE_CHECKING:
    from tiltyard.model.storage_settings import NamedStorage, Secrets

__all__ = ["Credentials", "Folder", "MissingVendorError", "Shared", "Vendor", "open_vendor", "refresh_offset"]

# What these log at level debug has the bodies of answers in it, and so the credentials.
_TALKATIVE = ("azure", "botocore", "google.auth", "msal", "urllib3")

_EXTRAS = {"s3": "aws", "az": "azure", "abfss": "azure", "gs": "gcp"}


class MissingVendorError(Exception):
    """The packages that a provider needs are not installed; the message says how to get them."""


def open_vendor(storage: NamedStorage, secrets: Secrets, clock: Callable[[], int]) -> Vendor:
    """A vendor for a storage, its credentials shared by all callers.

    Raises MissingVendorError, ValueError for credentials of the storage that cannot be used.
    """
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    extra = _EXTRAS[storage.scheme]
    try:
        made = _made(extra, storage, secrets, clock)
    except ImportError as error:
        raise MissingVendorError(
            f"To hand out credentials for {storage.uri}, more packages are needed ({error.name} is missing): "
            f'pip install "tiltyard[{extra}]".'
        ) from error
    return CredentialCache(made, clock)


def _made(extra: str, storage: NamedStorage, secrets: Secrets, clock: Callable[[], int]) -> Vendor:
    match extra:
        case "aws":
            from tiltyard.storage.vending.aws import AwsVendor  # noqa: PLC0415  # an extra

            return AwsVendor(storage, secrets, clock)
        case "azure":
            from tiltyard.storage.vending.azure import AzureVendor  # noqa: PLC0415  # an extra

            return AzureVendor(storage, secrets, clock)
        case _:
            from tiltyard.storage.vending.google import GoogleVendor  # noqa: PLC0415  # an extra

            return GoogleVendor(storage, secrets, clock)
