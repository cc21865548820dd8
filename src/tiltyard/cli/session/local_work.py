"""Queued work of a catalog that this process has opened itself: whoever waits for it does it, or no one might."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tiltyard.model.text.typed_ids import is_server_address

if TYPE_CHECKING:
    import threading

    from tiltyard.calls.caller import Caller
    from tiltyard.context import Context


def is_server(catalog: Caller) -> bool:
    """Return whether a server has the catalog open, and not this process."""
    return is_server_address(catalog.address)


def context_of(catalog: Caller) -> Context:
    """Return a context of a catalog that this process has opened."""
    from tiltyard.calls.in_process_caller import InProcessCaller

    assert isinstance(catalog, InProcessCaller)
    return catalog.context()


@contextmanager
def running_here(catalog: Caller, transactions: Sequence[str]) -> Iterator[None]:
    """Run these transactions in a thread for as long as the block runs, if this process has opened the catalog.

    What a server or a worker runs already is left to it, and so is what takes Spark. At the end of the block what still
    runs is queued again.
    """
    if is_server(catalog) or not transactions:
        yield
        return
    from lance_namespace.errors import LanceNamespaceError

    from tiltyard.runtime.pool import run_in_background
    from tiltyard.worker import Worker

    worker = Worker(context_of(catalog).services, threads=0)

    def run(done: threading.Event) -> None:
        for each in transactions:
            if not done.is_set():
                with suppress(LanceNamespaceError):  # whoever waits meets it, too: the database is away
                    worker.run_transaction(each)

    with run_in_background("queued work", run):
        try:
            yield
        finally:
            worker.stop(0)
