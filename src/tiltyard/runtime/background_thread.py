"""Background threads: one that runs while a block does, and the steps of one that lives as long as the process."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


log = logging.getLogger("tiltyard")


def attempt(step: Callable[[], None]) -> bool:
    """Run a step of a thread that must not end by it; what it raises is logged. Return whether it raised nothing.

    Whatever a step does may fail for a while: where a process has no descriptors left, even to read /proc.
    """
    try:
        step()
    except Exception:
        log.exception("a step of the thread '%s' failed, which goes on", threading.current_thread().name)
        return False
    return True


@contextmanager
def run_in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work(done)` in a thread during the block; at its end set the event `done`, and join the thread."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
