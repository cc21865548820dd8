"""Credentials for S3, and for storages that speak its protocol: sessions of a role, narrowed to a folder."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tiltyard.storage.vending.session_policies import s3_policy
from tiltyard.storage.vending.vended_credentials import Credentials, Folder, NoCredentialsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.model.storage_settings import NamedStorage, Secrets

log = logging.getLogger("tiltyard.storage")

_DEFAULT_REGION = "us-east-1"
_CLIENT: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 10,
    "retries": {"mode": "standard", "max_attempts": 3},
}


class AwsVendor:
    """Assumes the role of a storage by STS, with the storage's credentials or those that AWS's own chain finds."""

    def __init__(self, storage: NamedStorage, secrets: Secrets, clock: Callable[[], int]) -> None:
        """Be ready to ask; nothing is sent yet. Raises ValueError for an endpoint or a profile that cannot be used."""
        self._storage = storage
        self._clock = clock
        try:
            self._client = botocore.session.get_session().create_client(
                "sts",
                region_name=storage.region or _DEFAULT_REGION,
                endpoint_url=storage.sts_endpoint or None,
                aws_access_key_id=secrets.get("aws_access_key_id", "access_key_id"),
                aws_secret_access_key=secrets.get("aws_secret_access_key", "secret_access_key"),
                aws_session_token=secrets.get("aws_session_token", "session_token"),
                config=Config(**_CLIENT),
            )
        except BotoCoreError as error:
            raise ValueError("no usable profile") from error

    def vend(self, folder: Folder, *, writable: bool) -> Credentials:
        """See Vendor."""
        storage, issued_at = self._storage, self._clock()
        asked: dict[str, Any] = {
            "RoleArn": storage.role,
            "RoleSessionName": folder.session,
            "Policy": s3_policy(folder, storage.role, writable=writable, kms_key=storage.kms_key),
            "DurationSeconds": storage.lifetime,
        }
        if storage.external_id:
            asked["ExternalId"] = storage.external_id
        try:
            given = self._client.assume_role(**asked)["Credentials"]
        except (ClientError, BotoCoreError) as error:
            log.warning("the role %s cannot be assumed: %s", storage.role, error)
            raise NoCredentialsError from error
        return Credentials(
            {
                "aws_access_key_id": given["AccessKeyId"],
                "aws_secret_access_key": given["SecretAccessKey"],
                "aws_session_token": given["SessionToken"],
            },
            issued_at,
            int(given["Expiration"].timestamp() * 1000),
        )
