"""An object store that speaks S3's protocol: moto's server, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3

from tests.services.ports import reserve_port

HOME = Path(__file__).resolve().parents[2]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}

PROGRAM = """
import sys
from moto.server import main
from tests.services.moto_server import prepare_moto

prepare_moto()
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""


@dataclass(frozen=True)
class S3Server:
    """The address of the server; `new_bucket` makes an empty bucket."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """Options with which Lance and obstore reach it."""
        return {
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
        }

    @cached_property
    def client(self) -> Any:
        """A client of it."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name="us-east-1",
        )

    def new_bucket(self, name: str) -> str:
        """The URI of a new bucket."""
        self.client.create_bucket(Bucket=name)
        return f"s3://{name}"

    def list_keys(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys of a bucket's objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def copy_bucket(self, source: str, target: str) -> None:
        """Make the objects of a bucket those of another one."""
        for key in self.list_keys(target):
            self.client.delete_object(Bucket=target, Key=key)
        for key in self.list_keys(source):
            self.client.copy_object(Bucket=target, Key=key, CopySource={"Bucket": source, "Key": key})


@contextmanager
def s3_server(patch: str = "") -> Iterator[S3Server]:
    """Run a server on a free port; `patch` is a program that changes what else moto serves."""
    port, reserved = reserve_port()
    command = [sys.executable, "-c", patch + PROGRAM, str(port)]
    process = subprocess.Popen(command, cwd=HOME, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = S3Server(f"http://127.0.0.1:{port}")
        wait_for_s3(server.endpoint, process)
        yield server
    finally:
        process.terminate()
        process.wait(30)
        reserved.close()


def wait_for_s3(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers. Raises RuntimeError if it does not start."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/data.json", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("moto's server did not start")
