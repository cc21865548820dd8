"""The thread that returns memory: it outlives a time without descriptors."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

from tiltyard.runtime.pool import attempt
from tiltyard.server import memory

if TYPE_CHECKING:
    import pytest


def test_thread_that_cannot_look_for_a_while_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = threading.Event()
    sizes = iter([OSError(errno.EMFILE, "Too many open files"), 1 << 40, 1 << 30])

    def resident_bytes() -> int:
        size = next(sizes)
        if isinstance(size, OSError):
            raise size
        return size

    def release_freed_memory() -> bool:
        looked.set()
        release.is_useless = True
        return True

    monkeypatch.setattr(memory, "release_freed_memory", release_freed_memory)
    monkeypatch.setattr(memory, "TRIM_SECONDS", 0.01)
    monkeypatch.setattr(memory, "IDLE_SHARE", 1e9)
    release = memory.IdleRelease()
    monkeypatch.setattr(memory, "resident_bytes", resident_bytes)
    thread = threading.Thread(target=memory._release_when_idle, args=(release,), daemon=True)
    thread.start()
    assert looked.wait(10)
    thread.join(10)
    assert "Too many open files" in caplog.text


def test_attempt_logs_what_a_step_raises_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert attempt(lambda: None)
    assert not attempt(lambda: int("none"))
    assert "which goes on" in caplog.text
