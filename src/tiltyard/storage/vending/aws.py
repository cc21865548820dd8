"""Vend credentials for S3 and compatible storages: sessions of a role, restricted to a folder."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tiltyard.storage.vending.session_policies import s3_policy
from tiltyard.storage.vending.vendor import Folder, NoCredentialsError, VendedCredentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.model.settings.storages import NamedStorage, StorageSecrets

log = logging.getLogger("tiltyard.storage")

_DEFAULT_REGION = "us-east-1"
_CLIENT_CONFIG: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 10,
    "retries": {"mode": "standard", "max_attempts": 3},
}


class AwsVendor:
    """Assume a storage's role through STS, with the storage's credentials or AWS's default credential chain."""

    def __init__(self, storage: NamedStorage, secrets: StorageSecrets, clock: Callable[[], int]) -> None:
        """Create the STS client; nothing is sent yet. Raises ValueError for an unusable endpoint or profile."""
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
                config=Config(**_CLIENT_CONFIG),
            )
        except BotoCoreError as error:
            raise ValueError("no usable profile") from error

    def vend(self, folder: Folder, *, writable: bool) -> VendedCredentials:
        storage, issued_at = self._storage, self._clock()
        request: dict[str, Any] = {
            "RoleArn": storage.role,
            "RoleSessionName": folder.session_name,
            "Policy": s3_policy(folder, storage.role, writable=writable, kms_key=storage.kms_key),
            "DurationSeconds": storage.lifetime,
        }
        if storage.external_id:
            request["ExternalId"] = storage.external_id
        try:
            session = self._client.assume_role(**request)["Credentials"]
        except (ClientError, BotoCoreError) as error:
            log.warning("the role %s cannot be assumed: %s", storage.role, error)
            raise NoCredentialsError from error
        return VendedCredentials(
            {
                "aws_access_key_id": session["AccessKeyId"],
                "aws_secret_access_key": session["SecretAccessKey"],
                "aws_session_token": session["SessionToken"],
            },
            issued_at,
            int(session["Expiration"].timestamp() * 1000),
        )
