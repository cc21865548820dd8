"""Policies for one folder, and credentials that callers share."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import ServiceUnavailableError

from tests.services.guarded_s3 import ROLE, allows
from tiltyard.storage.vending import CredentialCache, Folder, VendedCredentials, refresh_offset
from tiltyard.storage.vending.session_policies import (
    azure_permissions,
    gcs_condition,
    gcs_permissions,
    s3_literal,
    s3_policy,
)

HOUR = 3600 * 1000
NAMES = st.text(st.sampled_from("ab*?${}\"'\\/t.2é"), min_size=1, max_size=12).filter(lambda name: name.strip("/"))
FOLDER = Folder.of("s3://lake/tables/t")


@given(NAMES, NAMES)
def test_cve_2026_42810_s3_policy_of_any_name_opens_that_folder_alone(own_name: str, other_name: str) -> None:
    folder = Folder("lake", own_name.strip("/"))
    policy = s3_policy(folder, ROLE, writable=True)
    arn = "arn:aws:s3:::lake"
    assert allows(policy, "s3:PutObject", f"{arn}/{folder.path}/x", None)
    assert allows(policy, "s3:ListBucket", arn, f"{folder.path}/")
    for name in (other_name, f"{folder.path}2", folder.path):
        if not name.startswith(folder.prefix):
            assert not allows(policy, "s3:GetObject", f"{arn}/{name}", None)
            assert not allows(policy, "s3:ListBucket", arn, name)
    assert not allows(policy, "s3:GetObject", f"arn:aws:s3:::lake2/{folder.path}/x", None)


def test_s3_policy_of_readers_and_writers() -> None:
    reading, writing = (
        json.loads(s3_policy(FOLDER, ROLE, writable=writable))["Statement"] for writable in (False, True)
    )
    assert reading[0] == {
        "Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::lake/tables/t/*"
    }  # fmt: skip
    assert reading[1]["Resource"] == "arn:aws:s3:::lake"
    assert reading[1]["Condition"] == {"StringLike": {"s3:prefix": ["tables/t/*"]}}
    assert set(writing[0]["Action"]) - {"s3:GetObject"} == {
        "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"
    }  # fmt: skip
    assert writing[1] == reading[1] and len(reading) == len(writing) == 2


def test_s3_policy_follows_the_partition_and_the_key_of_the_bucket() -> None:
    key = "arn:aws-cn:kms:cn-north-1:1:key/k"
    policy = json.loads(s3_policy(FOLDER, "arn:aws-cn:iam::1:role/r", writable=False, kms_key=key))["Statement"]
    assert policy[0]["Resource"].startswith("arn:aws-cn:s3:::lake/")
    assert policy[2] == {"Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": key}
    other = json.loads(s3_policy(FOLDER, "arn:minio:iam:::role/r", writable=True))["Statement"]
    assert other[0]["Resource"].startswith("arn:aws:s3:::lake/")


def test_s3_literal_escapes_wildcards_and_variables() -> None:
    assert s3_literal("a*b?c${aws:username}") == "a${*}b${?}c${$}{aws:username}"


def test_gcs_condition_quotes_names_and_has_a_trailing_slash() -> None:
    assert gcs_condition(FOLDER) == (
        'resource.name.startsWith("projects/_/buckets/lake/objects/tables/t/") || '
        'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("tables/t/")'
    )
    condition = gcs_condition(Folder("lake", 'it\'s" || true || "é\\'))
    assert 'startsWith("it\'s\\" || true || \\"é\\\\/")' in condition
    assert gcs_permissions(writable=False) == ["inRole:roles/storage.objectViewer"]
    assert gcs_permissions(writable=True) == ["inRole:roles/storage.objectUser"]


def test_azure_permissions_of_readers_hold_no_writing() -> None:
    assert set(azure_permissions(writable=False)) == set("rl")
    assert set(azure_permissions(writable=True)) == set("racwdlm")


@pytest.mark.parametrize("location", ["s3://lake", "s3://lake/", "s3://"])
def test_folder_of_a_whole_bucket_is_refused(location: str) -> None:
    with pytest.raises(ValueError, match="no folder"):
        Folder.of(location)


def test_folder_of_azure_leaves_the_host_out() -> None:
    assert Folder.of("abfss://lake@a.dfs.core.windows.net/x/t") == Folder("lake", "x/t")


class Provider:
    """A vendor that counts its calls, blocks while `go` is unset, and fails while `down`."""

    def __init__(self) -> None:
        self.now = 0
        self.calls: list[tuple[Folder, bool]] = []
        self.called = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.down = False
        self.cache = CredentialCache(self, lambda: self.now)

    def vend(self, folder: Folder, *, writable: bool) -> VendedCredentials:
        self.calls.append((folder, writable))
        self.called.release()
        assert self.go.wait(30)
        if self.down:
            raise ServiceUnavailableError("down")
        return VendedCredentials({"key": f"k{len(self.calls)}"}, self.now, self.now + HOUR)

    def key(self, writable: bool = False) -> str:
        return self.cache.vend(FOLDER, writable=writable).options["key"]


def test_credential_cache_concurrent_callers_are_one_call() -> None:
    provider = Provider()
    provider.go.clear()
    with ThreadPoolExecutor(32) as pool:
        waiting = [pool.submit(provider.key) for _ in range(32)]
        assert provider.called.acquire(timeout=30)
        provider.go.set()
        assert {future.result(30) for future in waiting} == {"k1"}
    assert provider.calls == [(FOLDER, False)]


def test_credential_cache_separates_reading_writing_and_folders() -> None:
    provider = Provider()
    provider.cache.vend(Folder("lake", "tables/t2"), writable=False)
    assert (provider.key(), provider.key(writable=True), provider.key(), len(provider.calls)) == ("k2", "k3", "k2", 3)


def test_credential_cache_renews_five_minutes_before_expiry_while_others_use_the_cached() -> None:
    provider = Provider()
    assert provider.key() == "k1"
    provider.now = HOUR - 5 * 60_000 - 1
    assert provider.key() == "k1"
    provider.now += 1
    provider.go.clear()
    assert provider.called.acquire(timeout=30)  # that of the first
    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(provider.key)
        assert provider.called.acquire(timeout=30)
        assert provider.key() == "k1"  # still good, and nobody waits
        provider.go.set()
        assert renewing.result(30) == "k2" == provider.key()
    assert len(provider.calls) == 2


def test_credential_cache_of_a_provider_that_is_down_uses_valid_ones_and_then_fails_all_callers() -> None:
    provider = Provider()
    provider.key()
    provider.now, provider.down = HOUR - 4 * 60_000, True
    assert provider.key() == "k1"
    provider.now = HOUR - 30_000  # less than clients want
    with pytest.raises(ServiceUnavailableError):
        provider.key()
    provider.go.clear()
    for _ in provider.calls:
        assert provider.called.acquire(timeout=30)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(provider.key) for _ in range(8)]
        assert provider.called.acquire(timeout=30)
        provider.go.set()
        assert {type(future.exception(30)) for future in waiting} == {ServiceUnavailableError}
    provider.down = False
    assert provider.key().startswith("k")


def test_refresh_offset_is_lances_own_and_less_for_short_lives() -> None:
    assert refresh_offset(VendedCredentials({}, 0, HOUR)) == 60_000
    assert refresh_offset(VendedCredentials({}, 1000, 5000)) == 1000


def test_credentials_show_no_secret() -> None:
    assert "hidden" not in repr(VendedCredentials({"aws_secret_access_key": "hidden"}, 0, 1))
