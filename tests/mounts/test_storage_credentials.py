"""Iceberg's vended storage credentials in Lance's words, for each cloud."""

from __future__ import annotations

import pytest

from tiltyard.mounts.storage_credentials import azure_account, iceberg_credentials

AZURE = "abfss://container@account.dfs.core.windows.net/warehouse/t"
OTHER = "other.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("location", "config", "options", "expires_at"),
    [
        (
            "s3a://bucket/t",
            {
                "s3.access-key-id": "A", "s3.secret-access-key": "S", "s3.session-token": "T", "client.region": "eu-1",
                "s3.endpoint": "http://127.0.0.1:9000", "s3.path-style-access": "true",
                "s3.session-token-expires-at-ms": "17",
            },
            {
                "aws_access_key_id": "A", "aws_secret_access_key": "S", "aws_session_token": "T",
                "aws_region": "eu-1", "aws_endpoint": "http://127.0.0.1:9000",
                "aws_virtual_hosted_style_request": "false", "allow_http": "true",
            },
            17,
        ),
        (
            AZURE,
            {
                "adls.sas-token.account.dfs.core.windows.net": "?sv=1", f"adls.sas-token.{OTHER}": "sv=2",
                "adls.sas-token-expires-at-ms.account.dfs.core.windows.net": "17",
                f"adls.sas-token-expires-at-ms.{OTHER}": "3",
            },
            {"azure_storage_account_name": "account", "azure_storage_sas_token": "sv=1"},
            17,
        ),
        (
            AZURE,
            {"adls.sas-token.account": "sv=1"},
            {"azure_storage_account_name": "account", "azure_storage_sas_token": "sv=1"},
            None,
        ),
        (
            AZURE,
            {"adls.auth.shared-key.account.name": "account", "adls.auth.shared-key.account.key": "K"},
            {"azure_storage_account_name": "account", "azure_storage_account_key": "K"},
            None,
        ),
        (
            "gs://bucket/t",
            {"gcs.oauth2.token": "T", "gcs.oauth2.token-expires-at": "17"},
            {"google_storage_token": "T"},
            17,
        ),
    ],
    ids=["s3", "adls", "adls by account", "adls shared key", "gcs"],
)  # fmt: skip
def test_credentials_of_a_cloud_are_lances_options(
    location: str, config: dict[str, str], options: dict[str, str], expires_at: int | None
) -> None:
    for credentials in (
        iceberg_credentials(location, config, []),
        iceberg_credentials(location, {}, [{"prefix": location, "config": config}]),
    ):
        assert credentials is not None
        assert (credentials.options, credentials.expires_at) == (options, expires_at)


@pytest.mark.parametrize(
    ("prefix", "is_used"),
    [
        ("s3://bucket/t", True),
        ("s3a://bucket/t/", True),
        ("s3://bucket", True),
        ("s3", True),
        ("s3://bucket/table", False),
        ("s3://bucket/t/deeper", False),
        ("gs", False),
    ],
)
def test_credentials_count_below_their_prefix_alone(prefix: str, is_used: bool) -> None:  # a parameter
    vended = [{"prefix": prefix, "config": {"s3.access-key-id": "A", "s3.secret-access-key": "S"}}]
    assert (iceberg_credentials("s3://bucket/t", {}, vended) is not None) == is_used


def test_a_configuration_without_a_secret_is_none() -> None:
    assert iceberg_credentials("s3://bucket/t", {"client.region": "eu-1", "s3.access-key-id": "A"}, []) is None


def test_the_account_of_a_location_is_in_its_host() -> None:
    assert azure_account(AZURE) == "account"
    assert azure_account("az://container/t") == azure_account("s3://account@x/t") == ""
