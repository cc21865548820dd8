"""A server that takes functions and has a key for secrets, and stock lancedb clients of its callers."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lancedb
import pytest
from lancedb.remote.errors import HttpError

from tests.services.secured import Secured, secured_server

Connect = Callable[[str], Any]


def status_of(call: Callable[..., Any], *args: Any, **options: Any) -> int:
    """The status of an error by which a call has to fail."""
    with pytest.raises(HttpError) as caught:
        call(*args, **options)
    return int(caught.value.status_code)


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    key_file: Path = tmp_path_factory.mktemp("keys") / "secrets.key"
    key_file.write_text(new_key() + "\n")
    environ = {"TILTYARD_SECRET_KEYS": f'["file:{key_file}"]', "TILTYARD_UDFS": "true"}
    with secured_server(tmp_path_factory.mktemp("root"), environ=environ) as server:
        yield server


@pytest.fixture(scope="module")
def connect(secured: Secured) -> Connect:
    """Connect a stock client with the key of a principal."""
    return lambda name: lancedb.connect("db://tilt", api_key=secured.keys[name], host_override=secured.url)
