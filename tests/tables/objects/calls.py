"""Calls of operations on the table `t`, and what they ask of the object store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import lance
from bench.s3_proxy import S3Proxy
from tests.tables.bodies import rows, small

from tiltyard.context import Context
from tiltyard.model.spec import models
from tiltyard.tables.query.query import count_table_rows
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table


def requests_of(ctx: Context, proxy: S3Proxy, work: Callable[[], object]) -> Counter[str]:
    """Count the requests of one operation, long after the commits before it."""
    ctx.services.commit_log.flush()
    ctx.storage.datasets.openings.wait()
    proxy.drain()
    work()
    ctx.storage.datasets.openings.wait()
    return Counter(f"{request.method} {request.kind}" for request in proxy.drain())


def create(ctx: Context, name: str = "t", **fields: Any) -> str:
    location = create_table(ctx, models.CreateTableRequest(id=[name], **fields), small(rows(3))).location
    assert location is not None
    return location


def count(ctx: Context, location: str) -> int:
    return lance.dataset(location, storage_options=ctx.storage.options(location)).count_rows()


def names_of_versions(ctx: Context, location: str) -> list[str]:
    return sorted(ctx.storage.files(location).list_names(f"{location}/_versions"))


def insert(ctx: Context, key: int) -> int | None:
    return insert_into_table(ctx, models.InsertIntoTableRequest(id=["t"]), small(rows(1, key))).version


def count_served(ctx: Context) -> int:
    return count_table_rows(ctx, models.CountTableRowsRequest(id=["t"]))
