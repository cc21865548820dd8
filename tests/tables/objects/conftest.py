"""Contexts whose storage is an object store: an S3 that runs in this process, behind a proxy that counts requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import boto3
import lance
import pytest
from bench.s3_proxy import S3Proxy
from moto.server import ThreadedMotoServer
from tests.services.moto_server import prepare_moto

from tiltyard.bootstrap import open_services
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.storage.manifests.next_manifest import NextManifest
from tiltyard.tables.commits import process_state


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    prepare_moto()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket="bucket")
    yield {"aws_endpoint": endpoint, "allow_http": "true", "region": "us-east-1", "client_max_retries": "2"} | keys
    server.stop()


@pytest.fixture
def ctx(options: dict[str, str], tmp_path: Any) -> Iterator[Context]:
    settings = Settings(
        root=f"s3://bucket/{tmp_path.name}/root/", db=f"sqlite:///{tmp_path}/catalog.db", storage_options=options
    )
    services = open_services(settings)
    yield Context(services)
    services.close()


@pytest.fixture(scope="module")
def proxy(options: dict[str, str]) -> Iterator[S3Proxy]:
    with S3Proxy(options["aws_endpoint"]) as running:
        yield running


@pytest.fixture
def counted(
    options: dict[str, str], proxy: S3Proxy, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Context]:
    """A context whose storage is behind the proxy, and which marks versions as final only when it is told to."""
    monkeypatch.setattr(process_state, "FLUSH_SECONDS", 3600)
    settings = Settings(
        root=f"s3://bucket/{tmp_path.name}/counted",
        db=f"sqlite:///{tmp_path}/counted.db",
        storage_options=options | {"aws_endpoint": proxy.url},
    )
    services = open_services(settings)
    yield Context(services)
    services.close()


@pytest.fixture
def other_machine(counted: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """Another server of the same catalog, whose machine has locks of its own."""
    services = open_services(counted.settings)
    monkeypatch.setattr(services.storage.locks, "hold", lambda *_: nullcontext())
    yield Context(services)
    services.close()


@pytest.fixture
def may_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While this is not set, no version that was just committed can be opened."""
    event, open_version = threading.Event(), NextManifest.open
    event.set()

    def wait_and_open(*arguments: Any) -> lance.LanceDataset:
        assert event.wait(30)
        return open_version(*arguments)

    monkeypatch.setattr(NextManifest, "open", wait_and_open)
    yield event
    event.set()
