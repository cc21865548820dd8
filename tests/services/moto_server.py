"""What moto's server does better in tests: conditional puts exclude each other, and services are looked up once."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any


@cache
def prepare_moto() -> None:
    """Let conditional puts exclude each other, and look for the names of moto's services once; do so once a process.

    moto looks whether an object is there, and then puts it: of two conditional puts at once both succeeded. And it
    lists its own folder twice for each request, which took a third of the processor's time of each.
    """
    from moto import backends
    from moto.s3.responses import S3Response

    put, lock, services = S3Response._key_response_put, threading.Lock(), tuple(backends.list_of_moto_modules())

    def put_alone(self: Any, *arguments: Any, **options: Any) -> Any:
        with lock:
            return put(self, *arguments, **options)

    S3Response._key_response_put = put_alone  # type: ignore[method-assign]  # moto's own is not safe
    backends.list_of_moto_modules = lambda: services
