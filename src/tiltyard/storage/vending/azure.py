"""Vend credentials for Azure: shared access signatures for one directory, signed with a user delegation key.

Azure has signatures for a directory only on accounts with a hierarchical namespace. The only alternative, a signature
for the whole container, would give access to every other table, so it is never created.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError
from azure.identity import ClientSecretCredential, DefaultAzureCredential
from azure.storage.filedatalake import DataLakeServiceClient, generate_directory_sas

from tiltyard.storage.vending.session_policies import azure_permissions
from tiltyard.storage.vending.vendor import Folder, NoCredentialsError, VendedCredentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure.core.credentials import TokenCredential

    from tiltyard.model.settings.storages import NamedStorage, StorageSecrets

log = logging.getLogger("tiltyard.storage")

_CLOCK_SKEW = timedelta(minutes=5)
"""How far Azure's clock may be behind the server's."""


class AzureVendor:
    """Sign for directories of a storage account, with the storage's client credentials or the host's identity."""

    def __init__(
        self,
        storage: NamedStorage,
        secrets: StorageSecrets,
        clock: Callable[[], int],
        credential: TokenCredential | None = None,
        **transport: Any,
    ) -> None:
        """Create the client; nothing is sent yet. Tests pass `credential` and options of the `transport`."""
        self._storage = storage
        self._clock = clock
        self._client = DataLakeServiceClient(
            storage.endpoint or f"https://{storage.account}.dfs.core.windows.net",
            credential=credential or _credential(secrets),
            retry_total=2,
            connection_timeout=5,
            read_timeout=10,
            **transport,
        )

    def vend(self, folder: Folder, *, writable: bool) -> VendedCredentials:
        issued_at = self._clock()
        now = datetime.fromtimestamp(issued_at / 1000, UTC)
        expires = (now + timedelta(seconds=self._storage.lifetime)).replace(microsecond=0)
        try:
            key = self._client.get_user_delegation_key(now - _CLOCK_SKEW, expires)
        except AzureError as error:
            log.warning("no user delegation key for the account %s: %s", self._storage.account, error)
            raise NoCredentialsError from error
        token = generate_directory_sas(
            account_name=self._storage.account,
            file_system_name=folder.bucket,
            directory_name=folder.path,
            credential=key,
            permission=azure_permissions(writable=writable),
            start=now - _CLOCK_SKEW,
            expiry=expires,
            protocol="https",
        )
        return VendedCredentials({"azure_storage_sas_token": token}, issued_at, int(expires.timestamp() * 1000))


def _credential(secrets: StorageSecrets) -> TokenCredential:
    """Return the server's identity: a client with a secret if the storage names one, else the host's default."""
    tenant = secrets.get("azure_storage_tenant_id", "azure_tenant_id")
    client = secrets.get("azure_storage_client_id", "azure_client_id")
    secret = secrets.get("azure_storage_client_secret", "azure_client_secret")
    if tenant and client and secret:
        return ClientSecretCredential(tenant, client, secret)
    return DefaultAzureCredential()
