"""Vend temporary credentials for one table's folder to clients that read and write its files directly.

The packages of a provider are imported only for a storage that vends credentials.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tiltyard.storage.vending.credential_cache import CredentialCache, refresh_offset
from tiltyard.storage.vending.vendor import Folder, VendedCredentials, Vendor

if TYPE_CHECKING:
    from tiltyard.model.settings.storages import NamedStorage, StorageSecrets

__all__ = ["Folder", "MissingVendorError", "Shared", "VendedCredentials", "Vendor", "open_vendor", "refresh_offset"]

# Their debug logs have the bodies of responses, and so the credentials.
_LOGGERS_WITH_SECRETS = ("azure", "botocore", "google.auth", "msal", "urllib3")

_EXTRAS = {"s3": "aws", "az": "azure", "abfss": "azure", "gs": "gcp"}


class MissingVendorError(Exception):
    """The packages of a provider are not installed; the message says how to install them."""


def open_vendor(storage: NamedStorage, secrets: StorageSecrets, clock: Callable[[], int]) -> Vendor:
    """Create the vendor of a storage, with a cache that shares credentials between callers.

    Raises MissingVendorError, ValueError for unusable credentials of the storage.
    """
    for name in _LOGGERS_WITH_SECRETS:
        logging.getLogger(name).setLevel(logging.WARNING)
    extra = _EXTRAS[storage.scheme]
    try:
        vendor = _create_vendor(extra, storage, secrets, clock)
    except ImportError as error:
        raise MissingVendorError(
            f"To issue credentials for {storage.uri}, more packages are needed ({error.name} is missing): "
            f'pip install "tiltyard[{extra}]".'
        ) from error
    return CredentialCache(vendor, clock)


def _create_vendor(extra: str, storage: NamedStorage, secrets: StorageSecrets, clock: Callable[[], int]) -> Vendor:
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
