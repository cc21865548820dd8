"""A mount that is removed, or altered, while requests are under way below it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, cast

import pytest

from tiltyard.model.ids import Id
from tiltyard.mounts.mounted_catalog import NamePage
from tiltyard.mounts.registry import mount as mount_module
from tiltyard.mounts.registry.mount import THREADS, Mount
from tiltyard.store import MountRecord

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tiltyard.store import Store

WAIT = 30
RECORD = MountRecord(1, ("lake",), "slow", {}, (), 0, managed=False, vends_credentials=False, origin="api",
                     created_at=0, updated_at=0)  # fmt: skip


class SlowCatalog:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.closed = 0

    def list_tables(self, namespace: Id, limit: int | None, token: str | None) -> NamePage:
        self.began.release()
        assert self.may_answer.wait(WAIT)
        assert not self.closed
        return NamePage(("films",))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[SlowCatalog]:
    """The backends that were opened."""
    backends: list[SlowCatalog] = []

    def open_catalog(kind: str, settings: Any) -> Any:
        backends.append(SlowCatalog())
        return backends[-1]

    monkeypatch.setattr(mount_module, "open_catalog", open_catalog)
    return backends


@pytest.fixture
def mount(opened: list[SlowCatalog]) -> Mount:
    return Mount(RECORD, cast("Store", None), lambda location: None)


def ask(mount: Mount, requests: int) -> list[Future[NamePage]]:
    return [mount.pool.submit(mount.list_tables, Id(), 10, None) for _ in range(requests)]


def wait_for(opened: list[SlowCatalog], calls: int, number: int = 1) -> SlowCatalog:
    """Wait until so many calls run in a backend, by default the first one that was opened."""
    until = time.monotonic() + WAIT
    while len(opened) < number:
        assert time.monotonic() < until
    backend = opened[number - 1]
    for _ in range(calls):
        assert backend.began.acquire(timeout=WAIT)
    return backend


def test_requests_that_wait_or_run_as_a_mount_is_removed_are_answered(mount: Mount, opened: list[SlowCatalog]) -> None:
    asked = ask(mount, 2 * THREADS)
    backend = wait_for(opened, THREADS)
    mount.retire()
    assert backend.closed == 0
    backend.may_answer.set()
    assert [future.result(WAIT).names for future in asked] == [("films",)] * (2 * THREADS)
    assert [each.closed for each in opened] == [1] * len(opened)


def test_request_that_comes_to_a_removed_mount_is_answered(mount: Mount, opened: list[SlowCatalog]) -> None:
    (first,) = ask(mount, 1)
    wait_for(opened, 1).may_answer.set()
    assert first.result(WAIT).names == ("films",)
    mount.retire()
    assert opened[0].closed == 1

    (late,) = ask(mount, 1)
    wait_for(opened, 1, number=2).may_answer.set()
    assert late.result(WAIT).names == ("films",)
    assert opened[1].closed == 1


def test_backend_of_a_removed_mount_is_closed_at_once_if_nothing_calls_it(
    mount: Mount, opened: list[SlowCatalog]
) -> None:
    mount.retire()
    assert opened == []


def test_threads_of_a_removed_mount_end_with_its_last_use(opened: list[SlowCatalog]) -> None:
    gc.disable()  # it must not take the collector, which may come late
    try:
        mount = Mount(RECORD, cast("Store", None), lambda location: None)
        (asked,) = ask(mount, 1)
        wait_for(opened, 1).may_answer.set()
        asked.result(WAIT)
        threads = list(mount.pool._threads)
        mount.retire()
        gone = weakref.ref(mount)
        del mount
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert gone() is None
    finally:
        gc.enable()


def test_requests_that_wait_as_the_server_stops_never_run(mount: Mount, opened: list[SlowCatalog]) -> None:
    asked = ask(mount, 2 * THREADS)
    backend = wait_for(opened, THREADS)
    mount.close()
    backend.may_answer.set()
    assert sum(future.cancelled() for future in asked) == THREADS
