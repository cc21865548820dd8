"""The protocol of PyTorch's DataLoader: workers are processes that get a pickled dataset, and prefetch batches.

Batches come in the order of their numbers, one of each worker in turn; a map-style dataset is read by `__getitems__`,
an iterable one by `__iter__` in each worker, which asks `get_worker_info` for its share.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)
_CHECK_SECONDS = 0.5
"""How often a trainer that waits for a batch looks whether its worker is alive."""


class Dataset(Generic[T_co]):
    """A dataset, by index."""


class IterableDataset(Dataset[T_co]):
    """A dataset that is iterated over."""


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker knows of itself."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_worker: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return what this worker is; None in the process of the trainer."""
    return _worker


def default_collate(samples: Sequence[Any]) -> Any:
    """Make one batch of samples: of rows as dicts, a dict of lists."""
    if samples and isinstance(samples[0], dict):
        return {name: [sample[name] for sample in samples] for name in samples[0]}
    return list(samples)


class _Fetcher:
    """Fetches the batches of a dataset, as far as they are of one process."""

    def __init__(self, dataset: Any, batch_size: int | None, collate: Callable[[Any], Any]) -> None:
        self.dataset, self.batch_size, self.collate = dataset, batch_size, collate
        self.dataset_iter = iter(dataset) if isinstance(dataset, IterableDataset) else None

    def fetch(self, indices: list[int]) -> Any:
        """Fetch the next batch, or that of some indices. Raises StopIteration at the end."""
        if self.dataset_iter is not None and self.batch_size is None:  # a sample is a batch
            return next(self.dataset_iter)
        if self.dataset_iter is not None:
            samples = list(islice(self.dataset_iter, self.batch_size))
            if not samples:
                raise StopIteration
        elif hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[index] for index in indices]
        return self.collate(samples)


def _next_order(orders: Any) -> Any:
    """Return the next order; None once the trainer is gone."""
    trainer = multiprocessing.parent_process()
    while True:
        try:
            return orders.get(timeout=_CHECK_SECONDS)
        except Empty:
            if trainer is None or not trainer.is_alive():
                return None


def _work(info: WorkerInfo, batch_size: int | None, collate: Callable[[Any], Any], orders: Any, results: Any) -> None:
    """Be a worker: fetch a batch for each order, until None comes, or the trainer is gone."""
    global _worker  # noqa: PLW0603  # torch keeps it so, for each process
    _worker = info
    try:
        fetcher = _Fetcher(info.dataset, batch_size, collate)
        while (indices := _next_order(orders)) is not None:
            try:
                results.put((fetcher.fetch(indices), None))
            except StopIteration:
                results.put((None, "end"))
    except Exception as error:  # noqa: BLE001  # whatever it is, the trainer raises it
        results.put((None, f"{type(error).__name__}: {error}"))


class DataLoader(Generic[T_co]):
    """Loads the batches of a dataset."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        multiprocessing_context: str | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
    ) -> None:
        assert in_order and not persistent_workers, "the stand-in has neither"
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.shuffle, self.sampler, self.num_workers = bool(shuffle), sampler, num_workers
        self.collate_fn = collate_fn or default_collate
        self.context, self.prefetch_factor = multiprocessing_context, prefetch_factor or 2

    def __iter__(self) -> Any:
        return _WorkerBatches(self) if self.num_workers else _Batches(self)

    def indices(self) -> Iterator[list[int]]:
        """Yield the indices of one batch after the other; of an iterable dataset there are none, and no end."""
        if isinstance(self.dataset, IterableDataset):
            while True:
                yield []
        order = list(self.sampler if self.sampler is not None else range(len(self.dataset)))
        if self.shuffle:
            random.shuffle(order)
        for first in range(0, len(order), self.batch_size):
            batch = order[first : first + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


class _Batches:
    """Batches of this process."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset_fetcher = _Fetcher(loader.dataset, loader.batch_size, loader.collate_fn)
        self._indices = loader.indices()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._dataset_fetcher.fetch(next(self._indices))


class _WorkerBatches:
    """Batches of workers, each `prefetch_factor` ahead."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        context = multiprocessing.get_context(loader.context)
        self._indices, count = loader.indices(), loader.num_workers
        self._orders = [context.Queue() for _ in range(count)]
        self._results = [context.Queue() for _ in range(count)]
        self._expected: list[int] = []
        self._ended: set[int] = set()
        self._workers = []
        for number in range(count):
            info = WorkerInfo(number, count, number, loader.dataset)
            pair = self._orders[number], self._results[number]
            given = info, loader.batch_size, loader.collate_fn, *pair
            worker = context.Process(target=_work, args=given, daemon=True)
            worker.start()
            self._workers.append(worker)
        for turn in range(count * loader.prefetch_factor):
            self._order(turn % count)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        while self._expected:
            number = self._expected.pop(0)
            batch, fault = self._result(number)
            if fault == "end":
                self._ended.add(number)
                continue
            if fault is not None:
                self._shutdown_workers()
                raise RuntimeError(f"Caught in DataLoader worker {number}: {fault}")
            self._order(number)
            return batch
        self._shutdown_workers()
        raise StopIteration

    def _order(self, number: int) -> None:
        if number not in self._ended and (indices := next(self._indices, None)) is not None:
            self._orders[number].put(indices)
            self._expected.append(number)

    def _result(self, number: int) -> Any:
        if number in self._ended:
            return None, "end"
        while True:
            is_alive = self._workers[number].is_alive()
            try:
                return self._results[number].get(timeout=_CHECK_SECONDS)
            except Empty:
                if not is_alive:
                    return None, f"exited unexpectedly (pid {self._workers[number].pid})"

    def _shutdown_workers(self) -> None:
        for orders, worker in zip(self._orders, self._workers, strict=True):
            if worker.is_alive():
                orders.put(None)
        for worker in self._workers:
            worker.join(5)
            if worker.is_alive():
                worker.terminate()
                worker.join()

    def __del__(self) -> None:
        self._shutdown_workers()
