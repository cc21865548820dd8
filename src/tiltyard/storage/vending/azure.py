"""Credentials for Azure: shared access signatures for one directory, made with a user delegation key.

Azure grants signatures for a directory on accounts with a hierarchical namespace alone. One for the whole container
would be the only other choice; it would open every other table, so it is never made.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError
from azure.identity import ClientSecretCredential, DefaultAzureCredential
from azure.storage.filedatalake import DataLakeServiceClient, generate_directory_sas

from tiltyard.storage.vending.session_policies import azure_permissions
from tiltyard.storage.vending.vended_credentials import Credentials, Folder, NoCredentialsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure.core.credentials import TokenCredential

    from tiltyard.model.storage_settings import NamedStorage, Secrets

log = logging.getLogger("tiltyard.storage")

_CLOCKS = timedelta(minutes=5)
"""By how much Azure's clock may be behind ours."""


class AzureVendor:
    """Signs for the directories of a storage account, as the client of the storage's credentials or the host's."""

    def __init__(
        self,
        storage: NamedStorage,
        secrets: Secrets,
        clock: Callable[[], int],
        credential: TokenCredential | None = None,
        **transport: Any,
    ) -> None:
        """Be ready to ask; nothing is sent yet. `credential` and `transport` are for clients of another kind."""
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

    def vend(self, folder: Folder, *, writable: bool) -> Credentials:
        """See Vendor."""
        issued_at = self._clock()
        now = datetime.fromtimestamp(issued_at / 1000, UTC)
        expires = (now + timedelta(seconds=self._storage.lifetime)).replace(microsecond=0)
        try:
            key = self._client.get_user_delegation_key(now - _CLOCKS, expires)
        except AzureError as error:
            log.warning("no user delegation key for the account %s: %s", self._storage.account, error)
            raise NoCredentialsError from error
        token = generate_directory_sas(
            account_name=self._storage.account,
            file_system_name=folder.bucket,
            directory_name=folder.path,
            credential=key,
            permission=azure_permissions(writable=writable),
            start=now - _CLOCKS,
            expiry=expires,
            protocol="https",
        )
        return Credentials({"azure_storage_sas_token": token}, issued_at, int(expires.timestamp() * 1000))


def _credential(secrets: Secrets) -> TokenCredential:
    """The identity that asks: a client with a secret if the storage names one, else what the host offers."""
    tenant = secrets.get("azure_storage_tenant_id", "azure_tenant_id")
    client = secrets.get("azure_storage_client_id", "azure_client_id")
    secret = secrets.get("azure_storage_client_secret", "azure_client_secret")
    if tenant and client and secret:
        return ClientSecretCredential(tenant, client, secret)
    return DefaultAzureCredential()
