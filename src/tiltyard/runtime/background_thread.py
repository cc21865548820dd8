"""Run a function in a background thread while a block runs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
