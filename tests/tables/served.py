"""A server without sockets: a real catalog and a real storage."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import lance
import msgspec
from lance_namespace.errors import LanceNamespaceError
from tests.services.catalogs import prepare_catalog

from tiltyard.bootstrap import open_services
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.jobs import JOBS, Job, JobCanceledError
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import pyarrow as pa


class Server:
    """A context, and functions to create tables in its catalog."""

    def __init__(self, root: Path, **settings: Any) -> None:
        known_settings = Settings(root=str(root), **settings)
        prepare_catalog(known_settings.database_url)
        self.services = open_services(known_settings)
        self.ctx = Context(self.services, "test")

    def create(self, name: str, data: pa.Table, **options: Any) -> lance.LanceDataset:
        """Create a table with data."""
        location = self.services.storage.new_location(Id((name,)))
        dataset = lance.write_dataset(data, location, **options)
        self.services.store.insert_table((name,), location, {})
        return dataset

    def declare(self, name: str, *, managed: bool = False) -> None:
        """Declare a table without data."""
        location = self.services.storage.new_location(Id((name,)))
        self.services.store.insert_table((name,), location, {}, declared=True, managed=managed)

    def open(self, name: str) -> lance.LanceDataset:
        """Open a table directly, without the server."""
        return lance.dataset(self.services.store.describe_table((name,)).location)

    def run_jobs(self) -> list[str]:
        """Run all queued jobs, as the worker does; return the final status of each."""
        store, ended = self.services.store, []
        while (record := store.claim_transaction("test", 60_000)) is not None:

            def report(properties: Mapping[str, str], key: str = record.id) -> bool:
                seen = store.describe_transaction(key)
                return seen.status is TransactionStatus.RUNNING

            try:
                JOBS[record.kind](self.ctx, Job(record.id, record.kind, record.table_id, record.payload, report))
                status = TransactionStatus.SUCCEEDED
            except JobCanceledError:
                ended.append("Canceled")
                continue
            store.finish_transaction(record.id, "test", status)
            ended.append(status.value)
        return ended


def ask(kind: Any, **fields: Any) -> Any:
    """Return a request from its fields as in JSON; `id` may be a single name."""
    if isinstance(fields.get("id"), str):
        fields["id"] = [fields["id"]]
    return msgspec.convert(fields, kind)


def run_concurrently(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run each call in a thread of its own; return what each returned, or the error it raised."""
    results: list[Any] = []

    def run(call: Callable[[], Any]) -> None:
        try:
            results.append(call())
        except LanceNamespaceError as error:
            results.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


__all__ = ["Server", "ask", "models", "run_concurrently"]
