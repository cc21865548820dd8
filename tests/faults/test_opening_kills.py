"""A server killed when it has committed to an object store, before it has opened the version behind the response."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from tests.faults.conftest import BUCKETS, Installation, wait_until
from tests.services.s3 import S3Server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream


def rows(*ids: int) -> bytes:
    return stream(pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {number}" for number in ids]}))


@dataclass(frozen=True)
class Change:
    """A request that commits; `counts` are fields of its response, `left` the ids that the table then has."""

    path: str
    options: Mapping[str, Any]
    counts: Mapping[str, int]
    left: list[int]


CHANGES = [
    Change("insert", {"content": rows(10)}, {}, [0, 1, 2, 10]),
    Change(
        "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true",
        {"content": rows(2, 10)},
        {"num_updated_rows": 1, "num_inserted_rows": 1, "num_deleted_rows": 0},
        [0, 1, 2, 10],
    ),
    Change("update", {"json": {"predicate": "id = 2", "updates": [["id", "10"]]}}, {"updated_rows": 1}, [0, 1, 10]),
    Change("delete", {"json": {"predicate": "id > 0"}}, {"num_deleted_rows": 2}, [0]),
]


@pytest.fixture
def lake(objects: S3Server, tmp_path: Path) -> Iterator[Installation]:
    """An object store with SQLite."""
    root = f"{objects.new_bucket(f'opening-{next(BUCKETS)}')}/tables"
    installation = Installation(root, f"sqlite:///{tmp_path / 'catalog.db'}", objects.options)
    yield installation
    installation.close()


@pytest.mark.parametrize(
    ("change", "is_acknowledged"),
    [
        pytest.param(
            change,
            is_acknowledged,
            id=f"{change.path.partition('?')[0]}-{'acknowledged' if is_acknowledged else 'unknown'}",
            # Merges, updates and deletes are committed in one way (`tables/rows/row_changes`): a merge stands for them.
            marks=()
            if change is CHANGES[0] or (change is CHANGES[1] and not is_acknowledged)
            else pytest.mark.extended,
        )
        for change in CHANGES
        for is_acknowledged in (True, False)
    ],
)
def test_server_killed_before_it_opens_a_version_has_committed_it_once(
    lake: Installation, talk: Callable[[ServerProcess], Wire], tmp_path: Path, change: Change, is_acknowledged: bool
) -> None:
    """Whether the client got the response before or not: a retry by the same key gets that of the commit."""
    hold = tmp_path / "hold"
    faults = [f"before_opening=hold@{hold}"]
    if not is_acknowledged:
        faults.append(f"before_answer=hold@{hold}")  # else the response would be there before the kill
    server = lake.start(TILTYARD_FAULT=",".join(faults))
    wire = talk(server)
    wire.good(wire.table(["t"], "create", rows(0, 1, 2)))
    wire.good(wire.table(["t"], "delete", {"predicate": "false"}))  # from here on the catalog knows the latest version
    wait_until(lambda: wire.table(["t"], "count_rows").text == "3", "the version is open")
    headers = {"Idempotency-Key": str(uuid4())}

    def request() -> httpx.Response:
        return httpx.post(f"{server.url}/v1/table/t/{change.path}", headers=headers, timeout=120, **change.options)

    hold.touch()
    reached = hold.with_name(f"{hold.name}.reached")
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(request)
        if is_acknowledged:
            assert response.result().status_code == 200
        wait_until(reached.exists, "the version is about to be opened")
        wait_until(lambda: lake.dataset("t").version == 3, "the manifest is in the store")
        server.kill()
        hold.unlink()
        if not is_acknowledged:
            assert isinstance(response.exception(), httpx.TransportError)
    server.start()
    retried = request()
    assert retried.status_code == 200, retried.text
    body = retried.json()
    assert body["version"] == 3 and {name: body[name] for name in change.counts} == change.counts
    if is_acknowledged:
        assert response.result().json() == body
    dataset = lake.dataset("t")
    assert dataset.version == 3
    assert sorted(dataset.to_table()["id"].to_pylist()) == change.left
    assert talk(server).table(["t"], "count_rows").text == str(len(change.left))
