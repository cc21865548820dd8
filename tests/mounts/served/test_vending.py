"""Credentials that the other catalog vends: the server opens its tables by them, and hands them on, never wider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import lance
import lance_namespace
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from tests.services.guarded_s3 import SECRETS, GuardedS3, guarded_s3
from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream

pytestmark = pytest.mark.extended
ROWS = pa.table({"id": [1, 2, 3]})


@dataclass
class Served:
    """`theirs` has the storage's keys; `ours` mounts it, and has none."""

    objects: GuardedS3
    theirs: ServerProcess
    ours: Secured


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vending")
    with guarded_s3(0) as objects, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        bucket = objects.new_bucket("lake")
        environ = {"TILTYARD_STORAGE": json.dumps({"lake": objects.storage(bucket)}), **SECRETS}
        theirs = ServerProcess(f"{bucket}/tables", "--db", f"sqlite:///{folder}/theirs.db", environ=environ)
        mount = {"kind": "lance", "uri": theirs.url, "allowed_locations": [bucket], "vends_credentials": True}
        reach = {"aws_endpoint": objects.endpoint, "allow_http": "true", "aws_region": "us-east-1"}
        mounting = {"TILTYARD_MOUNTS": json.dumps({"m": mount}), "TILTYARD_STORAGE_OPTIONS": json.dumps(reach)}
        flags = "--retention-days", "0"
        with secured_server(folder / "ours", *flags, environ=mounting, names=("ann",)) as ours:
            yield Served(objects, theirs, ours)
        theirs.stop()


def s3_client(served: Served, options: dict[str, str]) -> boto3.client:
    return boto3.client(
        "s3",
        endpoint_url=served.objects.endpoint,
        region_name="us-east-1",
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
        aws_session_token=options["aws_session_token"],
    )


def test_server_without_keys_of_its_own_reads_and_writes_by_what_is_vended(served: Served) -> None:
    wire = served.ours.wire("administrator")
    assert wire.call("table", ["m", "t"], "create", stream(ROWS)).status_code == 200
    assert wire.call("table", ["m", "t"], "insert", stream(ROWS)).status_code == 200
    assert wire.call("table", ["m", "t"], "count_rows").json() == 6
    with Wire(served.theirs.url) as theirs:
        assert theirs.call("table", ["t"], "count_rows").json() == 6
    dropped = wire.call("table", ["m", "t"], "drop")
    assert dropped.status_code == 200, dropped.text
    assert served.objects.log()


def test_client_gets_credentials_of_the_one_table(served: Served) -> None:
    wire = served.ours.wire("administrator")
    for name in ("one", "two"):
        wire.call("table", ["m", name], "create", stream(ROWS))
    described = wire.call("table", ["m", "one"], "describe", {"vend_credentials": True}).json()
    client = s3_client(served, described["storage_options"])
    bucket, _, prefix = described["location"].removeprefix("s3://").partition("/")
    assert client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["KeyCount"] > 0
    other = wire.call("table", ["m", "two"], "describe").json()["location"].removeprefix("s3://").partition("/")[2]
    with pytest.raises(ClientError, match="AccessDenied"):
        client.list_objects_v2(Bucket=bucket, Prefix=f"{other}/")
    namespace = lance_namespace.connect(
        "rest", {"uri": served.ours.url, "header.x-api-key": served.ours.keys["administrator"]}
    )
    assert lance.dataset(namespace_client=namespace, table_id=["m", "one"]).count_rows() == 3


def test_reader_gets_none_where_the_other_catalog_cannot_narrow_them(served: Served) -> None:
    owner, ann = served.ours.wire("administrator"), served.ours.wire("ann")
    owner.call("table", ["m", "read"], "create", stream(ROWS))
    grant = {"object_kind": "table", "id": ["m", "read"], "grantee": "ann", "privileges": ["read"]}
    assert owner.http.post("/tiltyard/v1/grant/add", json=grant).status_code == 200
    assert ann.call("table", ["m", "read"], "count_rows").json() == 3
    options = ann.call("table", ["m", "read"], "describe").json()["storage_options"]
    assert not any("key" in name or "token" in name for name in options)
    refused = ann.call("table", ["m", "read"], "describe", {"vend_credentials": True})
    assert check_error(refused) == 15
    assert "reading alone" in refused.json()["error"]


def test_mount_that_hands_nothing_on_gives_no_credentials(served: Served, tmp_path: Path) -> None:
    bucket = served.objects.new_bucket("closed")
    mount = {"kind": "lance", "uri": served.theirs.url, "allowed_locations": [bucket]}
    server = ServerProcess(tmp_path, environ={"TILTYARD_MOUNTS": json.dumps({"m": mount})})
    try:
        with Wire(served.theirs.url) as theirs, Wire(server.url) as wire:
            theirs.call("table", ["plain"], "create", stream(ROWS))
            refused = wire.call("table", ["m", "plain"], "describe", {"vend_credentials": True})
            assert check_error(refused) == 15
    finally:
        server.stop()
