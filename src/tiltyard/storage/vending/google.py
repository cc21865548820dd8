"""Vend credentials for Google Cloud Storage: tokens that a credential access boundary restricts to a folder."""

from __future__ import annotations

import json
import logging
from datetime import UTC
from typing import TYPE_CHECKING, Any

import google.auth
from google.auth import downscoped, impersonated_credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from tiltyard.storage.vending.session_policies import gcs_condition, gcs_permissions
from tiltyard.storage.vending.vendor import Folder, NoCredentialsError, VendedCredentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.model.settings.storages import NamedStorage, StorageSecrets

log = logging.getLogger("tiltyard.storage")

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_MAX_IMPERSONATION_SECONDS = 3600


class GoogleVendor:
    """Downscope tokens of the storage's service account, of the role it impersonates, or of the host's account.

    A token expires with its source token: after an hour, or after `lifetime` where a role is impersonated.
    """

    def __init__(
        self,
        storage: NamedStorage,
        secrets: StorageSecrets,
        clock: Callable[[], int],
        transport: Callable[..., Any] | None = None,
    ) -> None:
        """Load the credentials; nothing is sent yet. Raises ValueError for a malformed key, a host without account."""
        self._storage = storage
        self._clock = clock
        self._transport = transport or Request()
        self._source = _source_credentials(storage, secrets)

    def vend(self, folder: Folder, *, writable: bool) -> VendedCredentials:
        rule = downscoped.AccessBoundaryRule(
            available_resource=f"//storage.googleapis.com/projects/_/buckets/{folder.bucket}",
            available_permissions=gcs_permissions(writable=writable),
            availability_condition=downscoped.AvailabilityCondition(gcs_condition(folder)),
        )
        issued_at = self._clock()
        try:
            downscoped_token = downscoped.Credentials(self._source, downscoped.CredentialAccessBoundary([rule]))
            downscoped_token.refresh(self._transport)
        except GoogleAuthError as error:
            log.warning("no downscoped token for the storage at %s: %s", self._storage.uri, error)
            raise NoCredentialsError from error
        assert downscoped_token.expiry is not None  # a refresh that did not raise set both
        assert downscoped_token.token is not None
        expires = downscoped_token.expiry.replace(tzinfo=UTC)
        return VendedCredentials(
            {"google_storage_token": downscoped_token.token}, issued_at, int(expires.timestamp() * 1000)
        )


def _source_credentials(storage: NamedStorage, secrets: StorageSecrets) -> Any:
    key = secrets.get("google_service_account_key", "service_account_key")
    try:
        if key:
            source = service_account.Credentials.from_service_account_info(json.loads(key), scopes=_SCOPES)
        else:
            source, _ = google.auth.default(scopes=_SCOPES)
    except GoogleAuthError as error:
        raise ValueError("no usable account") from error
    if not storage.role:
        return source
    return impersonated_credentials.Credentials(
        source, storage.role, target_scopes=_SCOPES, lifetime=min(storage.lifetime, _MAX_IMPERSONATION_SECONDS)
    )
