"""Sessions of AWS with a mount's keys or the role that it assumes, and signatures (SigV4) made with them."""

from __future__ import annotations

from collections.abc import Mapping

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import CredentialProvider, CredentialResolver, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.mounts.catalog_errors import UNAUTHENTICATED, UNAVAILABLE
from tiltyard.mounts.http.aws_keys import AwsKeys

_SIGNED = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token")
"""What a signature adds to a request."""
_STS_CONFIG = {"connect_timeout": 3, "read_timeout": 10, "retries": {"mode": "standard", "total_max_attempts": 2}}


def aws_session(keys: AwsKeys, region: str) -> botocore.session.Session:
    """Return a session with a mount's keys, or those of its role, which is assumed when they are needed.

    Raises InvalidInputError for an unusable profile or region.
    """
    try:
        session = botocore.session.Session(profile=keys.profile or None)
        if keys.access_key_id:
            session.set_credentials(keys.access_key_id, keys.secret_access_key, keys.session_token or None)
        if not keys.role_arn:
            session.get_scoped_config()  # has the profile, or raises
            return session
        role = _Role(keys, session, region)
    except (BotoCoreError, ValueError) as error:
        raise InvalidInputError("The mount's region, profile or endpoint cannot be used.") from error
    with_role = botocore.session.Session()
    with_role.register_component("credential_provider", CredentialResolver([role]))
    return with_role


class _Role(CredentialProvider):  # type: ignore[misc]  # the package has no types
    """The keys of a role, renewed before they expire."""

    METHOD = "tiltyard-mount"

    def __init__(self, keys: AwsKeys, session: botocore.session.Session, region: str) -> None:
        super().__init__()
        self._keys = keys
        self._client = session.create_client(
            "sts", region_name=region, endpoint_url=keys.sts_endpoint or None, config=Config(**_STS_CONFIG)
        )

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(self._assume, self.METHOD)

    def _assume(self) -> Mapping[str, str]:
        keys = self._keys
        external_id = {"ExternalId": keys.role_external_id} if keys.role_external_id else {}
        response = self._client.assume_role(
            RoleArn=keys.role_arn, RoleSessionName=keys.role_session_name, **external_id
        )["Credentials"]
        return {
            "access_key": response["AccessKeyId"],
            "secret_key": response["SecretAccessKey"],
            "token": response["SessionToken"],
            "expiry_time": response["Expiration"].isoformat(),
        }


class AwsSignatures:
    """Authorizes requests by signatures of one service."""

    def __init__(self, name: str, keys: AwsKeys, service: str, region: str) -> None:
        """`name` is what messages call the catalog. Raises InvalidInputError for an unusable profile."""
        self._name = name
        self._session = aws_session(keys, region)
        self._service = service
        self._region = region

    def headers(self, method: str, url: str, body: bytes | None) -> Mapping[str, str]:
        """Return the headers of a signature. Raises UnauthenticatedError, ServiceUnavailableError."""
        request = AWSRequest(method, url, data=body)
        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise NoCredentialsError
            SigV4Auth(credentials.get_frozen_credentials(), self._service, self._region).add_auth(request)
        except (BotoCoreError, ClientError) as error:
            raise keys_error(self._name, error) from error
        return {name: request.headers[name] for name in _SIGNED if name in request.headers}

    def reject(self, headers: Mapping[str, str]) -> bool:
        """Return False: keys are renewed by their expiry."""
        return False


def keys_error(name: str, error: Exception) -> LanceNamespaceError:
    """Return the error for keys that cannot be had."""
    is_missing = isinstance(error, ClientError | NoCredentialsError)
    return UNAUTHENTICATED.error(name) if is_missing else UNAVAILABLE.error(f"AWS's token service for {name}")
