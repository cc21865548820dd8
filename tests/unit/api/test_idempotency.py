"""Requests with an idempotency key: which operations take one, and how their leases are renewed."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from tests.services.lossy import wait_for
from tiltyard.api.bodies.uploads import fingerprint_of
from tiltyard.api.idempotency import requests
from tiltyard.api.idempotency.keys import RequestKey
from tiltyard.api.idempotency.requests import IdempotentRequest, IdempotentRequests
from tiltyard.bootstrap import open_services, register_operations
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import models
from tiltyard.store import NewRequest

if TYPE_CHECKING:
    from pathlib import Path

READS = {
    "AnalyzeTableQueryPlan",
    "CheckPrivileges",
    "CompactTableRte",
    "CountTableRows",
    "DescribeNamespace",
    "DescribeTable",
    "DescribeTableIndexStats",
    "DescribeTableVersion",
    "DescribeTransaction",
    "DiffTableBranch",
    "ExplainTableQueryPlan",
    "FetchTableBlobs",
    "FindClassified",
    "FlushTableRte",
    "GetTableRteStats",
    "GetTableRteSpec",
    "GetTableStats",
    "GetTableTagVersion",
    "ListAllTables",
    "ListNamespaces",
    "ListTableBranches",
    "ListTableIndices",
    "ListTableTags",
    "ListTableVersions",
    "ListTables",
    "NamespaceExists",
    "PrewarmTableIndex",
    "PrewarmTablePageCache",
    "QueryJobEvents",
    "QueryTable",
    "ReadTableBlob",
    "TableExists",
    "WhoAmI",
}


def test_changes_is_true_of_all_operations_that_do_not_only_read() -> None:
    register_operations()
    reads = {name for name, (_, handler) in bound_operations().items() if handler and not handler.changes}
    assert reads >= READS
    assert all(name.startswith(("Describe", "Get", "List")) for name in reads - READS)


def insertion(leases: IdempotentRequests, id_: str = "id", *, is_matched_by_body: bool = False) -> IdempotentRequest:
    """Return an insert with a key."""
    register_operations()
    operation, handler = bound_operations()["InsertIntoTable"]
    assert handler is not None
    return IdempotentRequest(leases, RequestKey(id_, "scope", is_matched_by_body), operation, handler)


def test_lease_is_kept_of_a_request_that_had_to_wait_for_a_thread(tmp_path: Path) -> None:
    services = open_services(Settings(root=str(tmp_path), repeat_lease=0.5))
    with (
        closing(services.store),
        ThreadPoolExecutor(1) as busy,
        ThreadPoolExecutor(1) as records,
        closing(IdempotentRequests(services, records)) as leases,
    ):

        def others_get_it(ctx: Context) -> bool:
            time.sleep(1.2)
            return services.store.begin_request(NewRequest("id", "scope", None, "other", 1000, 1000))[1]

        keyed = insertion(leases)
        busy.submit(time.sleep, 1.0)
        request = models.InsertIntoTableRequest(id=["t"])
        assert asyncio.run(keyed.run(Context(services, "test"), request, b"", others_get_it, busy)) is False


def test_lease_is_kept_of_a_lost_request_while_its_commit_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = open_services(Settings(root=str(tmp_path), repeat_lease=0.5))
    with (
        closing(services.store),
        ThreadPoolExecutor(1) as pool,
        ThreadPoolExecutor(1) as records,
        closing(IdempotentRequests(services, records)) as leases,
    ):
        lost = NewRequest("lost", "scope", fingerprint_of(b""), "gone", 0, 60_000)
        services.store.begin_request(lost)
        time.sleep(0.01)

        def others_get_it(*_: object) -> bool:
            time.sleep(1.2)
            return services.store.begin_request(structs.replace(lost, owner="other", lease_ms=1000))[1]

        monkeypatch.setattr(requests, "recover_response", others_get_it)
        keyed = insertion(leases, is_matched_by_body=True)
        request = models.InsertIntoTableRequest(id=["t"])
        response = asyncio.run(keyed.run(Context(services, "test"), request, b"", lambda _: "run anew", pool))
        assert response is False


def test_answer_of_another_that_is_lost_again_on_its_way_is_given_to_the_next(tmp_path: Path) -> None:
    """As if the server was killed before it could send what the first try had made."""
    services = open_services(Settings(root=str(tmp_path), repeat_lease=0.5))
    with closing(services.store), ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as records:
        first = NewRequest("first", "scope", fingerprint_of(b""), "gone", 1000, 60_000)
        claim = services.store.begin_request(first)[0].claim
        services.store.finish_request(claim, 200, '{"version":2,"num_inserted_rows":3}', first.fingerprint, False)

        def answer(id_: str) -> Any:
            time.sleep(0.01)
            with closing(IdempotentRequests(services, records)) as leases:
                keyed = insertion(leases, id_, is_matched_by_body=True)
                request = models.InsertIntoTableRequest(id=["t"])
                return asyncio.run(keyed.run(Context(services, "test"), request, b"", lambda _: "run anew", pool))

        assert answer("second").status == 200
        time.sleep(0.6)
        assert answer("third") == models.InsertIntoTableResponse(version=2, num_inserted_rows=3)


def test_request_that_ends_takes_no_lease_from_its_repeat(tmp_path: Path) -> None:
    services = open_services(Settings(root=str(tmp_path)))
    with closing(services.store), ThreadPoolExecutor(1) as records:
        leases = IdempotentRequests(services, records)
        first, repeat = (insertion(leases) for _ in range(2))
        leases.add("id", first)
        leases.add("id", repeat)
        leases.remove("id", first)
        assert leases.attended() == ["id"]
        leases.remove("id", repeat)
        assert leases.attended() == []


def test_client_that_leaves_is_noted_while_its_request_runs(tmp_path: Path) -> None:
    services, seen = open_services(Settings(root=str(tmp_path))), threading.Event()
    with (
        closing(services.store),
        ThreadPoolExecutor(1) as pool,
        ThreadPoolExecutor(1) as records,
        closing(IdempotentRequests(services, records)) as leases,
    ):

        def heard() -> bool:
            record = services.store.describe_request("id")
            assert record is not None
            return record.acknowledged

        def work(ctx: Context) -> tuple[bool, bool]:
            before = heard()
            seen.set()
            wait_for(lambda: not heard())
            return before, heard()

        async def gone() -> None:
            await asyncio.to_thread(seen.wait)

        async def run() -> tuple[bool, bool]:
            keyed, request = insertion(leases, is_matched_by_body=True), models.InsertIntoTableRequest()
            keyed.watch_client(gone())
            result: tuple[bool, bool] = await keyed.run(Context(services, "test"), request, b"", work, pool)
            return result

        assert asyncio.run(run()) == (True, False)
