"""Translate storage credentials that catalogs vend into Lance's storage options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Required, TypedDict

from tiltyard.mounts.lance_entries import normalized_location
from tiltyard.mounts.mounted_catalog import StorageCredentials


class PrefixCredentials(TypedDict):
    """Credentials for what lies below a prefix, in Iceberg's words."""

    prefix: str
    config: dict[str, str]


class _Aws(TypedDict, total=False):
    access_key_id: Required[str]
    secret_access_key: Required[str]
    session_token: str | None


class _Azure(TypedDict):
    sas_token: str


class _Google(TypedDict):
    oauth_token: str


class UnityCredentials(TypedDict, total=False):
    """What Unity Catalog vends: credentials of one cloud."""

    aws_temp_credentials: _Aws | None
    azure_user_delegation_sas: _Azure | None
    gcp_oauth_token: _Google | None
    expiration_time: int | None


_LANCE_OPTIONS = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.endpoint": "aws_endpoint",
    "s3.region": "aws_region",
    "s3.client.region": "aws_region",
    "client.region": "aws_region",
    "gcs.oauth2.token": "google_storage_token",
    "adls.auth.shared-key.account.name": "azure_storage_account_name",
    "adls.auth.shared-key.account.key": "azure_storage_account_key",
}
"""Iceberg's words for storage options, and Lance's."""
_SECRETS = frozenset(
    ("aws_secret_access_key", "google_storage_token", "azure_storage_sas_token", "azure_storage_account_key")
)
_EXPIRY_KEYS = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "expiration-time")
_PATH_STYLE = "s3.path-style-access"
_SAS_TOKEN, _SAS_EXPIRY = "adls.sas-token.", "adls.sas-token-expires-at-ms."
"""Followed by a storage account, with its host's domain or without."""


def iceberg_credentials(
    location: str, config: Mapping[str, str], vended: Iterable[PrefixCredentials]
) -> StorageCredentials | None:
    """Return what an Iceberg catalog vends for a location: a configuration, and credentials below prefixes.

    Of several prefixes, the longest counts. None without a secret.
    """
    below = [credentials for credentials in vended if _is_within(location, credentials["prefix"])]
    innermost = max(below, key=lambda credentials: len(credentials["prefix"]), default=None)
    values: dict[str, str] = {**config, **(innermost["config"] if innermost else {})}
    options = {name: values[key] for key, name in _LANCE_OPTIONS.items() if values.get(key)}
    if values.get(_PATH_STYLE, "").lower() == "true":
        options["aws_virtual_hosted_style_request"] = "false"
    if options.get("aws_endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    account = azure_account(location)
    expiries = [values[key] for key in _EXPIRY_KEYS if values.get(key)]
    for key, value in values.items():
        if key.startswith(_SAS_TOKEN) and key.removeprefix(_SAS_TOKEN).partition(".")[0] == account:
            options |= {"azure_storage_account_name": account, "azure_storage_sas_token": value.lstrip("?")}
        elif key.startswith(_SAS_EXPIRY) and key.removeprefix(_SAS_EXPIRY).partition(".")[0] == account:
            expiries.append(value)
    if _SECRETS.isdisjoint(options):
        return None
    return StorageCredentials(options, min((int(expiry) for expiry in expiries if expiry.isdecimal()), default=None))


def unity_credentials(location: str, response: UnityCredentials) -> StorageCredentials | None:
    """Return what Unity Catalog vends for a table at a location; None without a secret."""
    options: dict[str, str] = {}
    if aws := response.get("aws_temp_credentials"):
        options |= {
            "aws_access_key_id": aws["access_key_id"],
            "aws_secret_access_key": aws["secret_access_key"],
            "aws_session_token": aws.get("session_token") or "",
        }
    if azure := response.get("azure_user_delegation_sas"):
        options |= {
            "azure_storage_account_name": azure_account(location),
            "azure_storage_sas_token": azure["sas_token"].lstrip("?"),
        }
    if google := response.get("gcp_oauth_token"):
        options["google_storage_token"] = google["oauth_token"]
    options = {key: value for key, value in options.items() if value}
    if _SECRETS.isdisjoint(options):
        return None
    expiry = response.get("expiration_time")
    return StorageCredentials(options, expiry or None)


def azure_account(location: str) -> str:
    """Return the storage account of an abfss:// location; empty for another one, which does not name it."""
    scheme, _, rest = location.partition("://")
    host = rest.partition("/")[0].partition("@")[2]
    return host.partition(".")[0] if scheme.startswith(("abfs", "wasb")) else ""


def _is_within(location: str, prefix: str) -> bool:
    """Whether a location is a prefix, or lies below it; both may be in Hadoop's words. A scheme has all of its own."""
    inner, outer = (normalized_location(each, is_encoded=False) for each in (location, prefix))
    if outer.isalnum():
        return location.startswith(outer)
    return inner == outer or inner.startswith(f"{outer}/")
