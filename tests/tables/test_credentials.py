"""Credentials for a table's files: vended as the grants allow, and to no principal that a rule or policy restricts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError, ServiceUnavailableError
from tests.services.guarded_s3 import SECRETS, GuardedS3, guarded_s3
from tests.services.wire import stream

import tiltyard
from tiltyard.model.principals import EVERYBODY, Principal, parse_privileges
from tiltyard.store.access.grants import SERVER
from tiltyard.tables import credentials
from tiltyard.tables.credentials import FileAccess

ROWS = pa.table({"n": [1, 2, 3]})
ANN = Principal("ann", (), "test")


@pytest.fixture(scope="module")
def objects() -> Iterator[GuardedS3]:
    with guarded_s3() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        running.new_bucket("lake")
        yield running


class Lake:
    """A catalog over that, with the table `t`; `as_` calls as a principal with some privileges on the server."""

    def __init__(self, objects: GuardedS3, folder: Path, **fields: Any) -> None:
        self.objects = objects
        self.uri = f"s3://lake/{folder.name}"
        self._settings: dict[str, Any] = {
            "root": self.uri,
            "db": f"sqlite:///{folder}/catalog.db",
            "jobs": 0,
            "storage": {"lake": objects.storage("s3://lake", **fields)},
        }
        self._open: list[tiltyard.Namespace] = []
        self.owner = self.as_(EVERYBODY)
        self.owner.create_table({"id": ["t"]}, stream(ROWS))

    def as_(self, principal: Principal, privileges: str = "") -> tiltyard.Namespace:
        if privileges:
            grant = self.owner._services.store.grant
            grant(f"principal:{principal.name}", SERVER, 0, parse_privileges(privileges.split(",")), "test")
        self._open.append(tiltyard.Namespace(**self._settings, principal=principal))
        return self._open[-1]

    def close(self) -> None:
        for namespace in self._open:
            namespace.close()


@pytest.fixture
def lake(objects: GuardedS3, tmp_path: Path) -> Iterator[Lake]:
    new_lake = Lake(objects, tmp_path)
    yield new_lake
    new_lake.close()


def options(namespace: tiltyard.Namespace, name: str = "t", **fields: Any) -> dict[str, str]:
    return dict(namespace.describe_table({"id": [name], **fields}).storage_options or {})


def test_describe_table_reader_gets_credentials_that_read_and_cannot_write(lake: Lake) -> None:
    reader = lake.as_(ANN, "read")
    location = reader.describe_table({"id": ["t"]}).location
    vended = options(reader)
    assert lance.dataset(location, storage_options=vended).count_rows() == 3
    with pytest.raises(OSError, match=r"AccessDenied|403|Forbidden"):
        lance.write_dataset(ROWS, location, mode="append", storage_options=vended)
    assert json.loads(lake.objects.sessions()[-1]["policy"])["Statement"][0]["Action"] == ["s3:GetObject"]
    assert lance.dataset(location, storage_options=vended).count_rows() == 3


def test_describe_table_writer_gets_credentials_that_write(lake: Lake) -> None:
    writer = lake.as_(ANN, "read,write")
    location = writer.describe_table({"id": ["t"]}).location
    lance.write_dataset(ROWS, location, mode="append", storage_options=options(writer))
    assert lake.owner.count_table_rows({"id": ["t"]}).count == 6


def test_describe_table_credentials_of_a_table_that_is_held_or_read_only_cannot_write(lake: Lake) -> None:
    table = {"object_kind": "table", "id": ["t"]}
    for kind in ("hold", "read_only"):
        lake.owner.call("SetProtection", {**table, "kind": kind, "reason": "case 1"})
        vended = options(lake.owner)
        assert json.loads(lake.objects.sessions()[-1]["policy"])["Statement"][0]["Action"] == ["s3:GetObject"]
        location = lake.owner.describe_table({"id": ["t"]}).location
        with pytest.raises(OSError, match=r"AccessDenied|403|Forbidden"):
            lance.write_dataset(ROWS, location, mode="append", storage_options=vended)
        lake.owner.call("LiftProtection", {**table, "kind": kind})
    assert "s3:DeleteObject" in json.loads(_policy_of_writer(lake))["Statement"][0]["Action"]


def _policy_of_writer(lake: Lake) -> str:
    assert options(lake.owner)
    policy: str = lake.objects.sessions()[-1]["policy"]
    return policy


def test_describe_table_credentials_are_in_no_log_at_any_level(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    vended = options(lake.owner)
    assert vended["aws_secret_access_key"] not in caplog.text
    assert vended["aws_session_token"] not in caplog.text


@pytest.mark.parametrize("privileges", ["use", "write", "use,alter,drop"])
def test_describe_table_without_the_right_to_read_gets_none_and_asking_for_some_is_refused(
    lake: Lake, privileges: str
) -> None:
    before = len(lake.objects.sessions())
    seeing = lake.as_(ANN, privileges)
    assert set(options(seeing)) == set(options(seeing, vend_credentials=False)) == {
        "aws_endpoint", "aws_region", "allow_http"
    }  # fmt: skip
    with pytest.raises(PermissionDeniedError):
        options(seeing, vend_credentials=True)
    assert len(lake.objects.sessions()) == before


def test_describe_table_narrowed_by_a_rule_gives_nobody_credentials(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_rules", [*credentials._rules])
    credentials.file_access_rule(lambda ctx, record: FileAccess.NOTHING if record.name == "t" else FileAccess.WRITE)
    lake.owner.create_table({"id": ["other"]}, stream(ROWS))
    with pytest.raises(PermissionDeniedError, match="query it through the server"):
        options(lake.owner, vend_credentials=True)
    assert "aws_session_token" not in options(lake.owner)
    assert "aws_session_token" in options(lake.owner, "other", vend_credentials=True)


def test_cve_2026_42809_record_outside_the_roots_is_neither_vended_nor_read(lake: Lake) -> None:
    before = len(lake.objects.log())
    for number, location in enumerate(("s3://other/t", "s3://lake2/t", "/etc/t")):
        lake.owner._services.store.insert_table((f"out{number}",), location, {})
        for call in (
            lambda name=f"out{number}": options(lake.owner, name, vend_credentials=True),
            lambda name=f"out{number}": options(lake.owner, name),
            lambda name=f"out{number}": lake.owner.count_table_rows({"id": [name]}),
        ):
            with pytest.raises(PermissionDeniedError, match="not below"):
                call()
    assert lake.objects.log()[before:] == []


def test_vended_location_that_is_not_canonical_or_a_root_is_refused(lake: Lake) -> None:
    roots = lake.owner._services.storage.roots
    for location in (f"{lake.uri}/a/../../b", f"{lake.uri}//b", f"{lake.uri}/b%2f", "s3://lake", lake.uri):
        with pytest.raises(InvalidInputError):
            roots.vend_credentials(location, writable=False)


@pytest.mark.parametrize("is_kept", [True, False])
def test_declare_table_in_a_batch_answers_credentials_to_its_maker(
    lake: Lake, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    creator = lake.as_(ANN, "create")

    def declare(name: str, vend: bool | None) -> Any:
        operations: list[dict[str, Any]] = [{"declare_table": {"id": [name], "vend_credentials": vend}}]
        if not is_kept:
            operations.append({"deregister_table": {"id": [name]}})
        return creator.batch_commit_tables({"operations": operations}).results[0].declare_table

    declared = declare("u", True)
    assert lance.write_dataset(ROWS, declared.location, storage_options=declared.storage_options).count_rows() == 3
    for vend in (None, False):
        assert set(declare(f"v{vend}", vend).storage_options) == {"aws_endpoint", "aws_region", "allow_http"}
    monkeypatch.setattr(credentials, "_rules", [*credentials._rules])
    credentials.file_access_rule(lambda ctx, record: FileAccess.NOTHING)
    assert set(declare("w", True).storage_options) == {"aws_endpoint", "aws_region", "allow_http"}


def test_describe_table_provider_that_does_not_answer_is_503(objects: GuardedS3, tmp_path: Path) -> None:
    lake = Lake(objects, tmp_path, sts_endpoint="http://127.0.0.1:9")
    try:
        with pytest.raises(ServiceUnavailableError, match="no credentials now"):
            options(lake.owner)
        assert "aws_endpoint" in options(lake.owner, vend_credentials=False)
    finally:
        lake.close()


def test_describe_table_storage_that_hands_out_none_answers_options_without_secrets(
    objects: GuardedS3, tmp_path: Path
) -> None:
    lake = Lake(objects, tmp_path, vend=False, role="")
    try:
        for vend in (None, True, False):
            vended = options(lake.owner, vend_credentials=vend)
            assert set(vended) == {"aws_endpoint", "aws_region", "allow_http"}
    finally:
        lake.close()


def test_describe_table_on_a_local_disk_needs_no_options(tmp_path: Path) -> None:
    with tiltyard.Namespace(str(tmp_path), jobs=0) as namespace:
        namespace.create_table({"id": ["t"]}, stream(ROWS))
        for vend in (None, True, False):
            assert options(namespace, vend_credentials=vend) == {}
