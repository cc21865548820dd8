"""Keys and roles of AWS that mounts use, and the signatures of their requests, checked as AWS documents them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError

from tests.services.ports import reserve_port
from tests.services.s3 import s3_server
from tests.services.stub_catalog import Answer, StubCatalog, StubRequest, stub_catalog
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.mounts.backends.glue import GlueCatalog, GlueSettings
from tiltyard.mounts.backends.iceberg import IcebergCatalog, IcebergSettings

KEYS = {"access_key_id": "AKIAMOUNT", "secret_access_key": "hunter2"}
ROLE = "arn:aws:iam::123456789012:role/lake"
SERVICE, REGION = "glue", "eu-north-1"


def signature(request: StubRequest, secret: str) -> str:
    """Return the signature that a request should have, by the steps of AWS's documentation."""
    scope, signed = authorization(request)["Credential"].split("/", 1)[1], authorization(request)["SignedHeaders"]
    parts = urlsplit(request.path)
    query = "&".join(sorted(parts.query.split("&"))) if parts.query else ""
    headers = "".join(f"{name}:{request.headers[name]}\n" for name in signed.split(";"))
    path = quote(parts.path, safe="/~")
    body = hashlib.sha256(request.body).hexdigest()
    canonical = f"{request.method}\n{path}\n{query}\n{headers}\n{signed}\n{body}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, digest))
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def authorization(request: StubRequest) -> dict[str, str]:
    """Return the parts of the header."""
    scheme, _, parts = request.headers["authorization"].partition(" ")
    assert scheme == "AWS4-HMAC-SHA256"
    return dict(part.strip().split("=", 1) for part in parts.split(","))


def roles_that_last(seconds: float) -> Iterator[Answer]:
    """Yield answers of STS, each with other keys."""
    for number in range(100):
        expiry = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield (
            200,
            (
                '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
                f"<AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>hunter{number}</SecretAccessKey>"
                f"<SessionToken>session{number}</SessionToken><Expiration>{expiry}</Expiration>"
                "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
            ).encode(),
        )


def signed_iceberg(stub: StubCatalog, **more: Any) -> IcebergCatalog:
    return IcebergCatalog(
        IcebergSettings(uri=stub.url, warehouse="1 2", signing_name=SERVICE, signing_region=REGION, **more)
    )


def empty(_: StubRequest) -> Answer:
    return 200, {"namespaces": []}


def test_requests_to_iceberg_are_signed() -> None:
    with stub_catalog(empty) as stub:
        catalog = signed_iceberg(stub, **KEYS)
        catalog.list_namespaces(Id(("a b", "ü")), 2, '["x y",0]')
        catalog.create_namespace(Id(("ns",)), {"a": "b"})
    assert len(stub.requests) == 4
    for request in stub.requests:
        parts = authorization(request)
        assert parts["Credential"].startswith("AKIAMOUNT/")
        assert parts["Credential"].endswith(f"/{REGION}/{SERVICE}/aws4_request")
        assert parts["Signature"] == signature(request, "hunter2")
        assert "x-amz-security-token" not in request.headers


def test_a_role_is_assumed_once_for_as_long_as_its_keys_last() -> None:
    answers = roles_that_last(3600)
    with stub_catalog(lambda _: next(answers)) as sts, stub_catalog(empty) as stub:
        catalog = signed_iceberg(
            stub, **KEYS, role_arn=ROLE, role_external_id="agreed", role_session_name="us", sts_endpoint=sts.url
        )
        for _ in range(2):
            catalog.list_namespaces(Id())
    assert len(sts.requests) == 1
    form = {key: values[0] for key, values in parse_qs(sts.requests[0].body.decode()).items()}
    assert (form["Action"], form["RoleArn"], form["ExternalId"]) == ("AssumeRole", ROLE, "agreed")
    assert form["RoleSessionName"] == "us"
    assert authorization(sts.requests[0])["Credential"].startswith("AKIAMOUNT/")
    for request in stub.requests:
        assert request.headers["x-amz-security-token"] == "session0"
        assert authorization(request)["Signature"] == signature(request, "hunter0")


def test_keys_of_a_role_that_expire_are_renewed_before() -> None:
    answers = roles_that_last(60)
    with stub_catalog(lambda _: next(answers)) as sts, stub_catalog(empty) as stub:
        catalog = signed_iceberg(stub, **KEYS, role_arn=ROLE, sts_endpoint=sts.url)
        for _ in range(2):
            catalog.list_namespaces(Id())
    assert len(sts.requests) > 1
    assert stub.requests[-1].headers["x-amz-security-token"] == f"session{len(sts.requests) - 1}"


def test_glue_is_asked_with_the_keys_of_the_role() -> None:
    answers = roles_that_last(3600)
    with stub_catalog(lambda _: next(answers)) as sts, stub_catalog(lambda _: (200, {"DatabaseList": []})) as stub:
        settings = GlueSettings(region=REGION, endpoint=stub.url, **KEYS, role_arn=ROLE, sts_endpoint=sts.url)
        assert GlueCatalog(settings).list_namespaces(Id()).names == ()
    assert stub.requests[0].headers["x-amz-security-token"] == "session0"
    assert authorization(stub.requests[0])["Signature"] == signature(stub.requests[0], "hunter0")


def test_a_role_that_is_refused_is_unauthenticated_and_one_that_is_not_answered_unavailable() -> None:
    refused = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>hunter2</Message></Error></ErrorResponse>"
    port, reserved = reserve_port()
    with reserved, stub_catalog(lambda _: (403, refused)) as sts, stub_catalog(empty) as stub:
        for endpoint, error in (
            (sts.url, UnauthenticatedError),
            (f"http://127.0.0.1:{port}", ServiceUnavailableError),
        ):
            with pytest.raises(error) as caught:
                signed_iceberg(stub, **KEYS, role_arn=ROLE, sts_endpoint=endpoint).list_namespaces(Id())
            assert "hunter2" not in str(caught.value)
    assert stub.requests == []


def test_keys_of_a_profile_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[lake]\naws_access_key_id = AKIALAKE\naws_secret_access_key = hunter3\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with stub_catalog(empty) as stub:
        signed_iceberg(stub, profile="lake").list_namespaces(Id())
    assert authorization(stub.requests[0])["Signature"] == signature(stub.requests[0], "hunter3")


def test_a_host_without_keys_is_unauthenticated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with stub_catalog(empty) as stub:
        with pytest.raises(UnauthenticatedError):
            signed_iceberg(stub).list_namespaces(Id())
        with pytest.raises(UnauthenticatedError):
            GlueCatalog(GlueSettings(region=REGION, endpoint=stub.url)).list_namespaces(Id())


@pytest.mark.parametrize(
    "wrong",
    [
        {"signing_name": "glue"},
        {"signing_name": "glue", "signing_region": REGION, "token": "env:MOUNTS_TEST_KEY"},
        {"access_key_id": "env:MOUNTS_TEST_KEY"},
        {"role_arn": "lake"},
        {"signing_name": "glue", "signing_region": REGION, "profile": "no such profile"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    wrong: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOUNTS_TEST_KEY", "hunter2")
    with pytest.raises(InvalidInputError) as caught:
        open_catalog("iceberg", {"uri": "http://localhost", **wrong})
    assert "hunter2" not in str(caught.value)


@pytest.mark.extended
def test_a_role_of_moto_mounts_its_glue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOUNTS_TEST_KEY", "testing")
    with s3_server() as server:
        catalog = open_catalog(
            "glue",
            {
                "region": "us-east-1", "endpoint": server.endpoint, "sts_endpoint": server.endpoint,
                "access_key_id": "env:MOUNTS_TEST_KEY", "secret_access_key": "env:MOUNTS_TEST_KEY", "role_arn": ROLE,
            },
        )  # fmt: skip
        catalog.create_namespace(Id(("db",)), {})
        assert catalog.list_namespaces(Id()).names == ("db",)
