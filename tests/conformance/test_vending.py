"""Vended credentials: pylance renews them before they expire, and they open only one table's folder."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
import lance
import lance_namespace
import lancedb
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

import tiltyard
from tests.services.guarded_s3 import SECRETS, GuardedS3, guarded_s3
from tests.services.server import ServerProcess
from tests.services.wire import stream

SECONDS = 6
"""Lifetime of the credentials of `hasty`: clients renew them two seconds before expiry, and no step takes longer."""
ROWS = pa.table({"n": [1, 2, 3]})


@dataclass(frozen=True)
class Lake:
    """A server whose storage vends credentials."""

    objects: GuardedS3
    server: ServerProcess
    http: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def options(self, table: str, **body: Any) -> dict[str, str]:
        response = self.post(f"/v1/table/{table}/describe", **body)
        assert response.status_code == 200, response.text
        options: dict[str, str] = response.json()["storage_options"]
        return options

    def new_table(self, name: str) -> str:
        """Write a table with vended credentials; return its location."""
        lance.write_dataset(ROWS, namespace_client=self.namespace(), table_id=[name])
        location: str = self.post(f"/v1/table/{name}/describe").json()["location"]
        return location

    def namespace(self) -> Any:
        return lance_namespace.connect("rest", {"uri": self.server.url})

    def own_client(self) -> Any:
        return self.client({"aws_access_key_id": "testing", "aws_secret_access_key": "testing"})

    def client(self, options: dict[str, str]) -> Any:
        """Create a plain S3 client with these credentials."""
        keys = {name: options[name] for name in options if name.startswith("aws_") and "key" in name}
        token = options.get("aws_session_token")
        return boto3.client(
            "s3", endpoint_url=self.objects.endpoint, region_name="us-east-1", aws_session_token=token, **keys
        )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake whose credentials outlive the tests."""
    yield from standing(tmp_path_factory.mktemp("lake"), 0)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake whose credentials expire during the tests."""
    yield from standing(tmp_path_factory.mktemp("hasty"), SECONDS)


def standing(folder: Path, seconds: int) -> Iterator[Lake]:
    """Run a lake whose credentials have this lifetime; 0 is the server's own."""
    with guarded_s3(seconds) as objects, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # clients have only vended credentials
        bucket = objects.new_bucket("lake")
        environ = {"TILTYARD_STORAGE": json.dumps({"lake": objects.storage(bucket)}), **SECRETS}
        flags = "--db", f"sqlite:///{folder}/catalog.db", "--log-level", "debug"
        server = ServerProcess(f"{bucket}/tables", *flags, environ=environ)
        with httpx.Client(base_url=server.url, timeout=60) as http:
            yield Lake(objects, server, http)
        server.stop()


def test_describe_table_pylance_reads_and_appends_through_the_expiry_of_its_credentials(hasty: Lake) -> None:
    hasty.new_table("lasting")
    dataset = lance.dataset(namespace_client=hasty.namespace(), table_id=["lasting"])
    before, until = len(hasty.objects.log()), time.monotonic() + 1.5 * SECONDS
    rounds = 0
    while time.monotonic() < until:
        dataset = lance.write_dataset(ROWS, namespace_client=hasty.namespace(), table_id=["lasting"], mode="append")
        assert dataset.count_rows(filter="n = 2") == 2 + rounds
        rounds += 1
        time.sleep(0.3)
    log = [entry for entry in hasty.objects.log()[before:] if "key" in entry]
    assert all(entry["allowed"] for entry in log)
    assert len({entry["key"] for entry in log}) >= 3


@pytest.mark.extended
def test_describe_table_pylance_keeps_one_handle_through_the_expiry_of_its_credentials(hasty: Lake) -> None:
    hasty.new_table("held")
    dataset = lance.dataset(namespace_client=hasty.namespace(), table_id=["held"])
    before, until = len(hasty.objects.log()), time.monotonic() + 1.5 * SECONDS
    while time.monotonic() < until:
        assert dataset.checkout_version(1).take([0, 2], columns=["n"]).column("n").to_pylist() == [1, 3]
        dataset.versions()  # a request to the storage each time
        time.sleep(0.5)
    dataset.insert(ROWS)
    log = [entry for entry in hasty.objects.log()[before:] if "key" in entry]
    assert all(entry["allowed"] for entry in log)
    assert len({entry["key"] for entry in log}) >= 2
    assert lance.dataset(namespace_client=hasty.namespace(), table_id=["held"]).count_rows() == 6


def test_describe_table_options_are_in_the_keys_of_lance(lake: Lake) -> None:
    location = lake.new_table("keys")
    options = lake.options("keys", vend_credentials=True)
    assert set(options) == {
        "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_endpoint", "aws_region", "allow_http",
        "expires_at_millis", "refresh_offset_millis",
    }  # fmt: skip
    assert lance.dataset(location, storage_options=options).count_rows() == 3
    without = lake.options("keys", vend_credentials=False)
    assert set(without) == {"aws_endpoint", "aws_region", "allow_http"}


def test_describe_table_options_have_their_expiry(hasty: Lake) -> None:
    hasty.new_table("ends")
    before = time.time() * 1000
    options = hasty.options("ends", vend_credentials=True)
    after = time.time() * 1000
    assert before < int(options["expires_at_millis"]) <= after + SECONDS * 1000 + 1000
    assert 0 < int(options["refresh_offset_millis"]) <= SECONDS * 1000 / 3


@pytest.mark.parametrize("key", ["{path}2/data/x", "{path}-evil/x", "{parent}/other.lance/x", "catalog", "{path}"])
def test_vended_credentials_prefix_siblings_and_others_stay_closed(lake: Lake, key: str) -> None:
    name = f"closed{len(lake.objects.log())}"
    path = lake.new_table(name).removeprefix("s3://lake/")
    key = key.format(path=path, parent=path.rpartition("/")[0])
    lake.own_client().put_object(Bucket="lake", Key=key, Body=b"secret")
    client = lake.client(lake.options(name))
    for call in (
        lambda: client.get_object(Bucket="lake", Key=key),
        lambda: client.put_object(Bucket="lake", Key=key, Body=b"mine"),
        lambda: client.delete_object(Bucket="lake", Key=key),
        lambda: client.copy_object(Bucket="lake", Key=f"{path}/copy", CopySource={"Bucket": "lake", "Key": key}),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            call()
    client.put_object(Bucket="lake", Key=f"{path}/data/mine", Body=b"mine")
    assert client.get_object(Bucket="lake", Key=f"{path}/data/mine")["Body"].read() == b"mine"


@pytest.mark.parametrize("prefix", ["", "tables", "tables/", "{path}", "{path}2", "{path}-evil/"])
def test_vended_credentials_list_nothing_outside_the_folder(lake: Lake, prefix: str) -> None:
    name = f"listed{len(lake.objects.log())}"
    path = lake.new_table(name).removeprefix("s3://lake/")
    client = lake.client(lake.options(name))
    with pytest.raises(ClientError, match="AccessDenied"):
        client.list_objects_v2(Bucket="lake", Prefix=prefix.format(path=path))
    assert client.list_objects_v2(Bucket="lake", Prefix=f"{path}/data/")["KeyCount"] == 1


@pytest.mark.parametrize(
    "location",
    ["s3://other/tables/t", "s3://lake2/t", "s3://lake/", "s3://lake/tables", "s3://lake/a/../../other/t", "/etc/t"],
)
def test_cve_2026_42809_location_outside_is_refused_before_anything_is_vended(lake: Lake, location: str) -> None:
    before = len(lake.objects.log())
    for route in ("declare", "create-empty"):
        body = {"location": location, "vend_credentials": True}
        assert lake.post(f"/v1/table/outside/{route}", **body).status_code == 400
    assert lake.post("/v1/table/outside/register", location=location).status_code == 400
    assert lake.objects.log()[before:] == []


@pytest.mark.parametrize("folder", ["a*b", "a?b", "${aws:username}", "a${*}b", 'it\'s "q"'])
def test_cve_2026_42810_wildcards_in_a_folder_open_only_that_folder(lake: Lake, folder: str) -> None:
    name = f"wild{len(lake.objects.log())}"
    path = f"imports/{name}/{folder}"
    declared = lake.post(f"/v1/table/{name}/declare", location=f"s3://lake/{path}", vend_credentials=True)
    if "?" in folder:
        assert declared.status_code == 400  # the start of a query
        return
    assert declared.status_code == 200, declared.text
    client, unrestricted = lake.client(declared.json()["storage_options"]), lake.own_client()
    client.put_object(Bucket="lake", Key=f"{path}/data/x", Body=b"mine")
    assert client.list_objects_v2(Bucket="lake", Prefix=f"{path}/")["KeyCount"] == 1
    for other_folder in ("a-secret-b", "axb", "a/b", "tables", "a*b*"):
        key = f"imports/{name}/{other_folder}/data/x"
        unrestricted.put_object(Bucket="lake", Key=key, Body=b"secret")
        with pytest.raises(ClientError, match="AccessDenied"):
            client.get_object(Bucket="lake", Key=key)


def test_cve_2026_42812_properties_move_no_table_past_the_check(lake: Lake) -> None:
    elsewhere = "s3://other/secret"
    keys = (
        "location",
        "path",
        "table_uri",
        "base_location",
        "write.data.path",
        "write.metadata.path",
        "data_base",
    )
    assert lake.post("/v1/namespace/moved/create", properties=dict.fromkeys(keys, elsewhere)).status_code == 200
    declared = lake.post("/v1/table/moved$t/declare", properties=dict.fromkeys(keys, elsewhere)).json()
    assert declared["location"].startswith("s3://lake/tables/t-")
    session = json.loads(lake.objects.sessions()[-1]["policy"])
    path = declared["location"].removeprefix("s3://lake/")
    assert session["Statement"][0]["Resource"] == f"arn:aws:s3:::lake/{path}/*"
    assert elsewhere not in lake.post("/v1/table/moved$t/describe").json()["location"]


def test_describe_table_many_at_once_fetch_one_session(lake: Lake) -> None:
    lake.post("/v1/table/crowd/declare", vend_credentials=False)
    before, responses = len(lake.objects.sessions()), []
    threads = [threading.Thread(target=lambda: responses.append(lake.options("crowd"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({options["aws_session_token"] for options in responses}) == 1
    assert len(lake.objects.sessions()) == before + 1


def test_declare_table_with_a_key_remembers_no_secret(lake: Lake) -> None:
    body = {"vend_credentials": True}
    for _ in range(2):
        response = lake.http.post("/v1/table/remembered/declare", json=body, headers={"idempotency-key": "once"})
        assert set(response.json()["storage_options"]) == {"aws_endpoint", "aws_region", "allow_http"}
    assert response.headers["idempotent-replayed"] == "true"
    assert "aws_session_token" in lake.options("remembered")


def test_open_table_through_the_remote_protocol_fetches_no_credentials(lake: Lake) -> None:
    response = lake.http.post("/v1/table/remote/create", content=stream(ROWS))  # by the server, with its own key
    assert response.status_code == 200, response.text
    before = len(lake.objects.sessions())
    table = lancedb.connect("db://lake", api_key="none", host_override=lake.server.url).open_table("remote")
    assert table.count_rows() == 3
    assert len(lake.objects.sessions()) == before


def test_vended_secrets_and_own_ones_are_in_no_log(lake: Lake) -> None:
    lake.new_table("quiet")
    options = lake.options("quiet")
    log = "".join(lake.server.log)
    assert options["aws_secret_access_key"] not in log and options["aws_session_token"] not in log
    assert lake.post("/v1/table/quiet/describe", vend_credentials=False).text.count("testing") == 0


def test_publish_new_and_old_tables_with_vended_credentials(lake: Lake) -> None:
    lake.new_table("published_old")
    with tiltyard.publish(lake.namespace()) as tables:
        for name, mode in (("published_old", "append"), ("published_new", "create")):
            lance.write_dataset(ROWS, namespace_client=tables, table_id=[name], mode=mode)
    with suppress(ZeroDivisionError), tiltyard.publish(lake.namespace()) as tables:
        location = lance.write_dataset(ROWS, namespace_client=tables, table_id=["published_not"]).uri
        raise ZeroDivisionError
    counts = [
        lance.dataset(namespace_client=lake.namespace(), table_id=[f"published_{name}"]).count_rows()
        for name in ("old", "new")
    ]
    assert counts == [6, 3]
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    assert "Contents" not in lake.own_client().list_objects_v2(Bucket=bucket, Prefix=prefix)


@pytest.mark.extended
def test_publish_outlasts_the_credentials_of_a_new_table(hasty: Lake) -> None:
    with tiltyard.publish(hasty.namespace()) as tables:
        location = lance.write_dataset(ROWS, namespace_client=tables, table_id=["lasting_new"]).uri
        for _ in range(2):
            time.sleep(SECONDS + 1)
            lance.write_dataset(ROWS, namespace_client=tables, table_id=["lasting_new"], mode="append")
    dataset = lance.dataset(namespace_client=hasty.namespace(), table_id=["lasting_new"])
    assert (dataset.uri, dataset.count_rows()) == (location, 9)


@pytest.mark.extended
@pytest.mark.parametrize("fails", [False, True])
def test_publish_outlasts_the_credentials_of_the_tables_that_are_there(hasty: Lake, fails: bool) -> None:
    name = f"outlasting_{fails}".lower()
    location = hasty.new_table(name)
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    listed = hasty.own_client().list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    before = [entry["Key"] for entry in listed if ".manifest-" not in entry["Key"]]  # a staged one is about to go
    time.sleep(1.1)  # object stores have modification times in seconds: the block's files are newer
    with suppress(ZeroDivisionError), tiltyard.publish(hasty.namespace()) as tables:
        lance.write_dataset(ROWS, namespace_client=tables, table_id=[name], mode="append")
        time.sleep(SECONDS + 1)
        lance.write_dataset(ROWS, namespace_client=tables, table_id=[name], mode="append")
        time.sleep(SECONDS + 1)
        if fails:
            raise ZeroDivisionError
    assert lance.dataset(namespace_client=hasty.namespace(), table_id=[name]).count_rows() == (3 if fails else 9)
    after = hasty.own_client().list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    assert not any("_publishing" in entry["Key"] for entry in after)
    assert not fails or [entry["Key"] for entry in after] == before


def test_publish_that_fails_outlasts_the_credentials_of_a_new_table(hasty: Lake) -> None:
    with suppress(ZeroDivisionError), tiltyard.publish(hasty.namespace()) as tables:
        location = lance.write_dataset(ROWS, namespace_client=tables, table_id=["lasting_not"]).uri
        time.sleep(SECONDS + 1)
        raise ZeroDivisionError
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    assert "Contents" not in hasty.own_client().list_objects_v2(Bucket=bucket, Prefix=prefix)


@pytest.mark.extended
@pytest.mark.parametrize("change", ["taken", "renamed", "replaced"])
def test_publish_whose_credentials_end_on_a_table_that_others_changed_names_it(hasty: Lake, change: str) -> None:
    name = f"long_{change}"
    if change != "taken":
        hasty.new_table(name)
    mode = "create" if change == "taken" else "append"
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(hasty.namespace()) as tables:  # noqa: PT012
        dataset = lance.write_dataset(ROWS, namespace_client=tables, table_id=[name], mode=mode)
        if change != "taken":
            hasty.post(f"/v1/table/{name}/rename", new_table_name=f"{name}_away")
        if change != "renamed":
            hasty.new_table(name)
        time.sleep(SECONDS + 1)
        dataset.insert(ROWS)
    assert conflict.value.tables == ((name,),)


def test_publish_writes_a_table_that_was_described_without_credentials(lake: Lake) -> None:
    lake.new_table("described")
    with tiltyard.publish(lake.namespace()) as tables:
        tables.describe_table(lance_namespace.DescribeTableRequest(id=["described"], vend_credentials=False))
        lance.write_dataset(ROWS, namespace_client=tables, table_id=["described"], mode="append")
    assert lance.dataset(namespace_client=lake.namespace(), table_id=["described"]).count_rows() == 6
