"""Memory that is given back: by a thread that outlives a time without descriptors; and the bound of vectors."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tiltyard.config import Settings
from tiltyard.runtime.pool import attempt
from tiltyard.runtime.system_memory import SystemMemory
from tiltyard.server import memory
from tiltyard.storage import Storage
from tiltyard.storage.vector_cache.cache import VectorCache

if TYPE_CHECKING:
    from pathlib import Path


def test_thread_that_cannot_look_for_a_while_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = []
    sizes = iter([OSError(errno.EMFILE, "Too many open files"), 1 << 40, 1 << 30])

    def resident_bytes() -> int:
        size = next(sizes)
        if isinstance(size, OSError):
            raise size
        return size

    def release_freed_memory() -> bool:
        released.append(True)
        return True

    monkeypatch.setattr(memory, "release_freed_memory", release_freed_memory)
    monkeypatch.setattr(memory, "IDLE_SHARE", 1e9)
    release = memory.IdleRelease()
    monkeypatch.setattr(memory, "resident_bytes", resident_bytes)
    vectors = VectorCache(0)
    memory.look_at_memory(vectors, release)
    assert "Too many open files" in caplog.text and not released
    memory.look_at_memory(vectors, release)
    assert released


@pytest.mark.parametrize(
    ("grown_mib", "releases"),
    [((100, 500, 511), 0), ((100, 513), 1), ((600, 620, 1100, 1140), 2), ((400, -200, 250), 0), ((400, -200, 350), 1)],
)
def test_busy_process_gives_memory_back_whenever_it_has_grown(
    monkeypatch: pytest.MonkeyPatch, grown_mib: tuple[int, ...], releases: int
) -> None:
    size, released = 1 << 30, []
    monkeypatch.setattr(memory, "resident_bytes", lambda: size)
    monkeypatch.setattr(memory, "release_freed_memory", lambda: released.append(size) or True)
    monkeypatch.setattr(memory, "IDLE_SHARE", -1)
    release = memory.IdleRelease()
    for grown in grown_mib:
        size = (1 << 30) + (grown << 20)
        release.step()
    assert len(released) == releases


@pytest.mark.parametrize(
    ("figure", "machine", "workers", "bound"),
    [
        ("auto", SystemMemory(8000, 8000), 1, 2000),
        ("auto", SystemMemory(8000, 8000), 3, 666),
        ("auto", None, 1, 0),
        (900, SystemMemory(8000, 8000), 2, 450),
        (0, SystemMemory(8000, 8000), 2, 0),
    ],
)
def test_bound_of_vectors_is_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: int, machine: SystemMemory | None, workers: int, bound: int
) -> None:
    monkeypatch.setattr(memory, "read_system_memory", lambda: machine)
    settings = replace(Settings(root=str(tmp_path)), vector_cache_bytes=figure, workers=workers)
    assert Storage(memory.bound_vectors(settings)).datasets.vector_cache.max_bytes == bound


def test_automatic_bound_is_for_servers_alone(tmp_path: Path) -> None:
    assert Storage(Settings(root=str(tmp_path))).datasets.vector_cache.max_bytes == 0


def test_attempt_logs_what_a_step_raises_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert attempt(lambda: None)
    assert not attempt(lambda: int("none"))
    assert "which goes on" in caplog.text
