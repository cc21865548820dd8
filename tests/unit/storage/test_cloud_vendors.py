"""Credentials of Azure and Google: the requests of their real libraries, and that Lance sends the credentials.

Enforcement is not tested here: Azurite accepts signatures for containers and blobs but none for directories, and
emulators of Google's storage require no token.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote

import lance
import pytest
from azure.core.credentials import AccessToken
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from lance_namespace.errors import ServiceUnavailableError

from tests.services.clouds import Clouds, clouds
from tiltyard.model.settings.storages import NamedStorage, StorageSecrets
from tiltyard.storage.vending import Folder
from tiltyard.storage.vending.azure import AzureVendor
from tiltyard.storage.vending.google import GoogleVendor

FOLDER = Folder("lake", 'tables/it\'s "t"')
NOW = int(time.time()) * 1000


@pytest.fixture
def cloud() -> Iterator[Clouds]:
    with clouds() as running:
        yield running


class Host:
    """An identity of Azure's."""

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken("of the host", NOW // 1000 + 3600)


def azure(cloud: Clouds, **fields: object) -> AzureVendor:
    storage = NamedStorage("az://lake", account="account", vend=True, **fields)  # type: ignore[arg-type]  # its own
    return AzureVendor(storage, StorageSecrets({}), lambda: NOW, Host(), transport=cloud.of_azure())


@pytest.mark.parametrize(("writable", "permissions"), [(False, "rl"), (True, "racwdlm")])
def test_azure_signature_is_for_one_directory_and_a_while(cloud: Clouds, writable: bool, permissions: str) -> None:
    credentials = azure(cloud, lifetime=900).vend(FOLDER, writable=writable)
    [request] = cloud.requests
    assert (request.method, request.host) == ("POST", "account.blob.core.windows.net")
    assert request.query == {"restype": "service", "comp": "userdelegationkey"}
    assert request.headers["authorization"] == "Bearer of the host"
    token = {name: values[0] for name, values in parse_qs(credentials.options["azure_storage_sas_token"]).items()}
    assert (token["sr"], token["sdd"], token["sp"], token["spr"]) == ("d", "2", permissions, "https")
    assert (token["skoid"], token["sktid"]) == ("the-server", "the-tenant")
    assert credentials.expires_at == NOW + 900_000 and token["se"] == token["ske"]
    assert token["se"] == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(credentials.expires_at // 1000))


def test_azure_signature_of_another_folder_is_another(cloud: Clouds) -> None:
    vendor = azure(cloud)
    folders = [Folder("lake", "a/t"), Folder("lake", "a/t2"), Folder("lake", "b/t"), Folder("lake2", "a/t")]
    credentials = [vendor.vend(folder, writable=False).options["azure_storage_sas_token"] for folder in folders]
    assert len({parse_qs(token)["sig"][0] for token in credentials}) == len(folders)


def key() -> str:
    """A service account's key, as Google's console hands it out."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "client_email": "server@project.iam.gserviceaccount.com",
            "private_key": private.decode(),
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


KEY = key()


def google(cloud: Clouds, role: str = "", lifetime: int = 3600) -> GoogleVendor:
    storage = NamedStorage("gs://lake", vend=True, role=role, lifetime=lifetime)
    return GoogleVendor(storage, StorageSecrets({"google_service_account_key": KEY}), lambda: NOW, cloud.of_google())


@pytest.mark.parametrize(("writable", "permission"), [(False, "objectViewer"), (True, "objectUser")])
def test_google_token_is_narrowed_to_the_folder(cloud: Clouds, writable: bool, permission: str) -> None:
    credentials = google(cloud).vend(FOLDER, writable=writable)
    source, exchange = cloud.requests
    assert (source.host, exchange.host) == ("oauth2.googleapis.com", "sts.googleapis.com")
    assert exchange.form["subject_token"] == "wide"
    assert exchange.form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
    [rule] = json.loads(unquote(exchange.form["options"]))["accessBoundary"]["accessBoundaryRules"]
    assert rule["availableResource"] == "//storage.googleapis.com/projects/_/buckets/lake"
    assert rule["availablePermissions"] == [f"inRole:roles/storage.{permission}"]
    expression = rule["availabilityCondition"]["expression"]
    assert 'startsWith("projects/_/buckets/lake/objects/tables/it\'s \\"t\\"/")' in expression
    assert credentials.options == {"google_storage_token": "narrowed"}
    now = time.time() * 1000  # by which Google's library reckons
    assert now + 3_500_000 < credentials.expires_at <= now + 3_700_000


def test_google_role_is_taken_on_first_for_the_lifetime(cloud: Clouds) -> None:
    google(cloud, role="tables@project.iam.gserviceaccount.com", lifetime=900).vend(FOLDER, writable=False)
    token_request = next(request for request in cloud.requests if request.path.endswith(":generateAccessToken"))
    assert "tables@project.iam.gserviceaccount.com" in token_request.path
    assert json.loads(token_request.body)["lifetime"] == "900s"
    assert cloud.requests[-1].form["subject_token"] == "taken on"


def test_providers_that_refuse_are_503_without_what_they_said(cloud: Clouds) -> None:
    cloud.down = True
    for vendor in (azure(cloud), google(cloud)):
        with pytest.raises(ServiceUnavailableError, match="no credentials now") as refused:
            vendor.vend(FOLDER, writable=False)
        assert "not today" not in str(refused.value)


def test_lance_sends_the_signature_to_azure(cloud: Clouds) -> None:
    credentials = azure(cloud).vend(Folder("lake", "t"), writable=False)
    place = {"azure_storage_endpoint": cloud.url, "azure_storage_account_name": "account", "allow_http": "true"}
    with pytest.raises(ValueError, match="404 Not Found"):
        lance.dataset("az://lake/t", storage_options={**place, **credentials.options})
    requests = [request for request in cloud.requests if request.method == "GET"]
    signature = {name: values[0] for name, values in parse_qs(credentials.options["azure_storage_sas_token"]).items()}
    assert requests and all(request.query.items() >= signature.items() for request in requests)


def test_lance_sends_the_token_to_google(cloud: Clouds) -> None:
    credentials = google(cloud).vend(Folder("lake", "t"), writable=False)
    place = {"google_base_url": cloud.url, "allow_http": "true"}
    with pytest.raises(ValueError, match="404 Not Found"):
        lance.dataset("gs://lake/t", storage_options={**place, **credentials.options})
    requests = [request for request in cloud.requests if request.method == "GET"]
    assert requests and all(request.headers["authorization"] == "Bearer narrowed" for request in requests)
