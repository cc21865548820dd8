"""Versions are opened whatever shared threads do: appends in these wait for them."""

from __future__ import annotations

from threading import Event
from typing import Any

from tiltyard.runtime.pool import MAX_SHARED_THREADS, submit_shared
from tiltyard.storage.caches.openings import Opening, Openings


def test_version_is_opened_while_all_shared_threads_wait_for_it() -> None:
    openings, may_end = Openings(), Event()
    shared: list[Any] = []

    def open_version() -> Any:
        return None

    opening = Opening(None, 2, open_version, shared.append)

    def wait() -> bool:
        may_end.wait(20)
        return opening._is_done.wait(5)

    waiting = [submit_shared(wait) for _ in range(MAX_SHARED_THREADS)]
    try:
        openings.start("table", opening)
        may_end.set()
        assert all(each.result(20) for each in waiting)
    finally:
        may_end.set()
    assert shared == [None]
    assert openings.get("table") is None
