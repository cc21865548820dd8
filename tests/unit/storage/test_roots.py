"""Named storages: their settings and options, and that secrets do not leak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tiltyard.config import ConfigError, Settings, load_settings
from tiltyard.model.settings.storages import NamedStorage
from tiltyard.storage import Storage, StorageError

ROLE = "arn:aws:iam::1:role/r"


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "tiltyard.toml"
    file.write_text(text)
    return load_settings({}, file, environ={})


def test_load_settings_storages_from_a_file_and_a_variable(tmp_path: Path) -> None:
    settings = load(tmp_path, '[storage.lake]\nuri = "s3://lake"\ncredentials = { aws_access_key_id = "env:KEY" }\n')
    assert settings.storage["lake"].credentials == {"aws_access_key_id": "env:KEY"}
    text = msgspec.json.encode({"lake": settings.storage["lake"]}).decode()
    assert load_settings({}, environ={"TILTYARD_STORAGE": text}) == settings
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings  # how workers get them


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"credentials": {"aws_secret_access_key": "hunter2"}}, "plain text"),
        ({"options": {"aws_secret_access_key": "hunter2"}}, "by reference"),
        ({"options": {"azure_storage_sas_token": "hunter2"}}, "by reference"),
        ({"options": {"account_key": "hunter2"}}, "by reference"),
        ({"options": {"AWS_ACCESS_KEY_ID": "hunter2"}}, "by reference"),
        ({"uri": ""}, "uri"),
        ({"vend": True}, "role"),
        ({"role": ROLE}, "vend"),
        ({"vend": True, "role": ROLE, "lifetime": 10}, "900"),
        ({"uri": "az://lake", "vend": True}, "account"),
        ({"uri": "/data", "vend": True}, "not an object store"),
        ({"color": "red", "credentials": {"aws_secret_access_key": "hunter2"}}, "color"),
    ],
)
def test_load_settings_storage_that_cannot_be_is_refused_without_its_secret(
    fields: dict[str, Any], message: str
) -> None:
    text = msgspec.json.encode({"lake": {"uri": "s3://lake", **fields}}).decode()
    with pytest.raises(ConfigError, match=message) as refused:
        load_settings({}, environ={"TILTYARD_STORAGE": text})
    assert "hunter2" not in str(refused.value)


def test_load_settings_options_that_are_no_secrets_are_taken() -> None:
    options = {"aws_sse_kms_key_id": "k", "aws_skip_signature": "true", "client_max_retries": "2"}
    text = msgspec.json.encode({"lake": {"uri": "s3://lake", "options": options}}).decode()
    assert load_settings({}, environ={"TILTYARD_STORAGE": text}).storage["lake"].options == options


def test_load_settings_two_storages_with_one_uri_or_a_bad_name_are_refused() -> None:
    for storages in ({"a": {"uri": "s3://lake"}, "b": {"uri": "s3://lake/"}}, {"a b": {"uri": "s3://lake"}}):
        with pytest.raises(ConfigError):
            load_settings({}, environ={"TILTYARD_STORAGE": msgspec.json.encode(storages).decode()})


def settings(root: str, **storages: NamedStorage) -> Settings:
    return Settings(root=root, db="sqlite:///x", storage=storages, storage_options={"region": "plain"})


def test_storage_secrets_are_read_from_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_KEY", "from-env")
    (tmp_path / "secret").write_text("from-file\n")
    references = {"aws_access_key_id": "env:LAKE_KEY", "aws_secret_access_key": f"file:{tmp_path}/secret"}
    lake = NamedStorage("s3://lake", endpoint="http://there", region="eu", credentials=references)
    storage = Storage(settings("s3://lake/tables", lake=lake))
    assert storage.options("s3://lake/tables/t") == {
        "client_retry_timeout": "20", "aws_endpoint": "http://there", "allow_http": "true", "aws_region": "eu",
        "aws_access_key_id": "from-env", "aws_secret_access_key": "from-file",
    }  # fmt: skip
    assert storage.roots.public_options("s3://lake/tables/t") == {
        "aws_endpoint": "http://there", "allow_http": "true", "aws_region": "eu"
    }  # fmt: skip
    assert "from-" not in repr(storage.roots.root_of("s3://lake/x"))


@pytest.mark.parametrize("reference", ["env:NOT_THERE", "file:/not/there"])
def test_storage_secret_that_is_missing_is_one_sentence(reference: str) -> None:
    lake = NamedStorage("s3://lake", credentials={"aws_access_key_id": reference})
    with pytest.raises(StorageError, match=f"lake needs the .*{reference.partition(':')[2]}"):
        Storage(settings("s3://lake/tables", lake=lake))


def test_storage_innermost_name_counts_and_others_keep_the_plain_options() -> None:
    lake, inner = NamedStorage("s3://lake", region="lake"), NamedStorage("s3://lake/tables/inner", region="inner")
    storage = Storage(settings("s3://plain/tables", lake=lake, inner=inner))
    regions = {
        location: storage.options(location).get("aws_region", storage.options(location).get("region"))
        for location in ("s3://plain/tables/t", "s3://lake/t", "s3://lake/tables/inner/t", "s3://lake/tables/inner2/t")
    }
    assert list(regions.values()) == ["plain", "lake", "inner", "lake"]
    assert storage.root == "s3://plain/tables"


def test_storage_without_the_packages_of_its_provider_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    monkeypatch.delitem(sys.modules, "tiltyard.storage.vending.aws", raising=False)
    lake = NamedStorage("s3://lake", vend=True, role=ROLE)
    with pytest.raises(StorageError, match=r'pip install "tiltyard\[aws\]"'):
        Storage(settings("s3://lake/tables", lake=lake))


@pytest.mark.parametrize(
    "storage",
    [
        NamedStorage("gs://lake", vend=True, credentials={"google_service_account_key": "env:BAD"}),
        NamedStorage("gs://lake", vend=True),
        NamedStorage("s3://lake", vend=True, role=ROLE, sts_endpoint="no url"),
        NamedStorage("s3://lake", vend=True, role=ROLE),
    ],
    ids=["a key that is none", "a host without an account", "an endpoint that is none", "a profile that is not there"],
)
def test_storage_that_cannot_ask_its_provider_is_one_sentence_without_secrets(
    storage: NamedStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BAD", '{"type": "service_account", "private_key": "hunter2"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    if not storage.sts_endpoint:
        monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match="malformed, or this host has none") as refused:
        Storage(settings(f"{storage.uri}/tables", lake=storage))
    assert "hunter2" not in str(refused.value)
