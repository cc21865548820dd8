"""Read a split in batches: shuffled, by ranks and workers, ahead of the trainer, and from where a state says.

Rows are read a round of `epoch_order` at a time, the next one while the batches of one are consumed. So in memory are
up to three rounds (`buffer_bytes` each; one that has been read is copied into one piece), the batches that are ahead
(`prefetch`), and what the order itself has.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.lake.tables.arguments import Names, check_whole_number, list_names
from tiltyard.lake.training.definition import check_seed
from tiltyard.lake.training.epoch_order import MAX_BUFFER_ROWS, EpochOrder, OrderSpec
from tiltyard.lake.training.row_reader import OpenSplit, RowReader
from tiltyard.model.refusals import RefusedError
from tiltyard.runtime.pool import Started, start_soon

MAX_BATCH_ROWS = 1 << 20
"""Rows of a batch."""
MAX_PREFETCH = 64
"""Batches that are made ahead of the trainer."""
BUFFER_BYTES = 64 << 20
"""Bytes of rows that are mixed with each other, and read at once."""
MAX_BUFFER_BYTES = 16 << 30
"""Bytes that such a buffer may be given."""
_TORCH = "torch.utils.data"


class LoaderOptions(TypedDict, total=False):
    """What `TrainingSet.loader` takes.

    `batch_size` rows are a batch, `drop_last` leaves the one out that has fewer, and the batches of a step that not
    all ranks have. `shuffle` is a seed, None keeps the order of the source; `epochs` is how many an iteration has
    (the first those from 0 on, the next those behind them), None for ever. `rank` of `world_size` takes its share.
    `columns` are those of the set by default, `decode` maps columns to functions of their values, `format` is
    "arrow", "numpy" or "torch". `prefetch` batches are made ahead, 0 makes each when it is asked for.
    `buffer_bytes` of rows are mixed with each other.
    """

    batch_size: int
    shuffle: int | None
    epochs: int | None
    rank: int
    world_size: int
    columns: Names | None
    format: str
    prefetch: int
    drop_last: bool
    decode: Mapping[str, Decoder] | None
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a run is: in an epoch, whose batches from `start` on the ranks share, behind `passed` of its own."""

    epoch: int = 0
    start: int = 0
    passed: int = 0


@dataclass(slots=True)
class Loader:
    """Batches of a split. An iteration begins where the state says; behind a whole one, the next has later epochs."""

    reader: RowReader
    order: OrderSpec
    digest: str
    split: str
    columns: tuple[str, ...]
    decoders: Mapping[str, Decoder]
    format: str
    epochs: int | None
    rank: int
    world_size: int
    prefetch: int
    drop_last: bool
    _origin: _Position = field(init=False, default_factory=_Position)
    _position: _Position = field(init=False, default_factory=_Position)
    _opened: tuple[int, OpenSplit] | None = field(init=False, default=None)
    """The open files, and the process that has opened them: no other one can use them."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker gets: all but open files."""
        return {each.name: None if each.name == "_opened" else getattr(self, each.name) for each in fields(self)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __len__(self) -> int:
        """Return how many batches this rank has of a whole epoch."""
        return self._left(_Position())

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of `epochs` epochs, in a worker of PyTorch its share of them.

        Workers take the batches of the iteration in turn, over the ends of epochs too, as a DataLoader asks for them.
        """
        worker, workers = _find_worker()
        split, position = self._open(), self._origin
        self._position = position
        last = None if self.epochs is None else (position.epoch // self.epochs + 1) * self.epochs
        read = 0
        while last is None or position.epoch < last:
            for passed, batch in self._read_epoch(split, position, (worker - read) % workers, workers):
                self._position = _Position(position.epoch, position.start, passed)
                yield batch
            read += self._left(position)
            position = self._position = _Position(position.epoch + 1)
        self._origin = position

    def _open(self) -> OpenSplit:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self.reader.open(self.columns)
        return self._opened[1]

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with an epoch, counted from 0. Raises InvalidInputError."""
        self._origin = self._position = _Position(_check_number("epoch", epoch, 0, 2**53))

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return where the run is: behind the last batch that was taken.

        Where workers read the batches, the trainer counts them: `batches` is how many it has taken since the iteration
        began. Raises InvalidInputError, also in a worker, which does not know what was taken.
        """
        if _find_worker()[1] > 1:
            raise InvalidInputError("A worker does not know which batches were taken: call state_dict in the trainer.")
        position = self._position
        if batches is not None:
            position, taken = self._origin, _check_number("batches", batches, 0, 2**53)
            while (left := self._left(position)) <= taken and left:
                position, taken = _Position(position.epoch + 1), taken - left
            position = replace(position, passed=position.passed + taken)
        return {**self._identity(), "world_size": self.world_size, **asdict(position)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where a state says; of another number of ranks, one that all were at.

        Raises InvalidInputError for a state of another set, or of another order.
        """
        if not isinstance(state, Mapping):
            raise InvalidInputError("state is a mapping, as state_dict() returns it.")
        for name, own in self._identity().items():
            if state.get(name) != own:
                raise InvalidInputError(
                    f"state is of another run: its {name} is {state.get(name)!r}, and here it is {own!r}."
                )
        numbers = {
            name: _check_number(f"state['{name}']", state.get(name), 0, 2**53) for name in ("epoch", "start", "passed")
        }
        ranks = _check_number("state['world_size']", state.get("world_size"), 1, 2**31)
        position = _Position(**numbers)
        if ranks != self.world_size:
            position = _Position(position.epoch, position.start + position.passed * ranks)
        self._origin = self._position = position

    def _identity(self) -> dict[str, Any]:
        """Return what the order of the rows depends on."""
        order = self.order
        return {
            "digest": self.digest,
            "split": self.split,
            "shuffle": order.seed,
            "batch_size": order.batch_size,
            "buffer_rows": order.buffer_rows,
        }

    def _left(self, position: _Position) -> int:
        """Return how many batches this rank has of an epoch from a position on."""
        first = position.start + position.passed * self.world_size + self.rank
        return len(range(first, self._end(position.start), self.world_size))

    def _end(self, start: int) -> int:
        """Return the number behind the last batch of an epoch, whose batches from `start` on the ranks share."""
        if not self.drop_last:
            return self.order.batches
        whole = self.order.rows // self.order.batch_size
        return whole - max(0, whole - start) % self.world_size

    def _read_epoch(self, split: OpenSplit, position: _Position, turn: int, workers: int) -> Iterator[tuple[int, Any]]:
        """Yield each `workers`-th batch of a rank from a position on, with how many of the rank are passed behind it.

        Batch j of a rank is batch start + j * world_size + rank of the epoch; the first one is the `turn`-th.
        """
        order = EpochOrder(self.order, position.epoch)
        own = position.passed + turn
        first = position.start + own * self.world_size + self.rank
        stride = self.world_size * workers
        groups = order.groups(first, stride, self._end(position.start))
        made = self._ahead(_read_ahead(split, order, groups, is_ahead=self.prefetch > 0))
        for number, batch in enumerate(made):
            yield own + number * workers + 1, batch

    def _ahead(self, batches: Iterator[Callable[[], Any]]) -> Iterator[Any]:
        """Make batches, `prefetch` of them ahead, in threads that are shared; yield them in their order."""
        started: list[Started[Any]] = []
        for make in batches:
            if not self.prefetch:
                yield self._make(make)
                continue
            started.append(start_soon(partial(self._make, make)))
            if len(started) > self.prefetch:
                yield started.pop(0).result()
        while started:
            yield started.pop(0).result()

    def _make(self, take: Callable[[], pa.RecordBatch]) -> Any:
        return FORMATS[self.format](decode(take(), self.decoders))


def _read_ahead(
    split: OpenSplit, order: EpochOrder, groups: Iterator[list[int]], *, is_ahead: bool
) -> Iterator[Callable[[], pa.RecordBatch]]:
    """Yield what makes each batch of groups, whose rows are read at once: those of the next group meanwhile."""

    def read(group: list[int]) -> tuple[pa.Table, list[np.ndarray]]:
        wanted = order.rows_of(group)
        rows = np.concatenate(wanted)
        places = np.empty(len(rows), np.int64)
        by_number = np.argsort(rows, kind="stable")
        places[by_number] = np.arange(len(rows))
        ends = np.cumsum([len(part) for part in wanted])[:-1]
        return split.take(rows[by_number]), np.split(places, ends)

    def start(group: list[int] | None) -> Started[tuple[pa.Table, list[np.ndarray]]] | None:
        return None if group is None else start_soon(partial(read, group))

    following = start(next(groups, None))
    while following is not None:
        table, parts = following.result()
        following = start(next(groups, None)) if is_ahead else None
        for places in parts:
            yield partial(_take_batch, table, places)
        if not is_ahead:
            following = start(next(groups, None))


def _take_batch(table: pa.Table, places: np.ndarray) -> pa.RecordBatch:
    return table.take(pa.array(places)).combine_chunks().to_batches()[0]


def _find_worker() -> tuple[int, int]:
    """Return which worker of a PyTorch DataLoader this process is, and how many there are; (0, 1) in any other one."""
    module = sys.modules.get(_TORCH)
    info = None if module is None else module.get_worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def open_loader(reader: RowReader, split: str, manifest: Mapping[str, Any], options: Mapping[str, Any]) -> Loader:
    """Return a loader, which is an IterableDataset of PyTorch where that is loaded. Raises InvalidInputError.

    Raises TypeError for an option that there is not, ImportError where the format "torch" lacks PyTorch.
    """
    if unknown := options.keys() - LoaderOptions.__annotations__.keys():
        raise TypeError(f"There is no argument '{min(unknown)}'.")
    batch_size = _check_number("batch_size", options.get("batch_size", 1024), 1, MAX_BATCH_ROWS)
    world_size = _check_number("world_size", options.get("world_size", 1), 1, 2**31)
    rank = _check_number("rank", options.get("rank", 0), 0, 2**31)
    if rank >= world_size:
        raise InvalidInputError(f"rank is {rank} and world_size is {world_size}: ranks are 0 to {world_size - 1}.")
    seed = options.get("shuffle")
    if seed is not None:
        check_seed(seed, "shuffle")
    epochs = options.get("epochs", 1)
    if epochs is not None:
        _check_number("epochs", epochs, 1, 2**31)
    form = options.get("format", "numpy")
    if form not in FORMATS:
        raise InvalidInputError(f"format is {form!r}: it is {', '.join(FORMATS)}.")
    decoders: dict[str, Any] = dict(options.get("decode") or {})
    columns = _check_columns(manifest, options.get("columns"), decoders)
    buffer_bytes = _check_number("buffer_bytes", options.get("buffer_bytes", BUFFER_BYTES), 1, MAX_BUFFER_BYTES)
    buffer_rows = min(MAX_BUFFER_ROWS, max(batch_size, buffer_bytes // int(manifest["row_bytes"])))
    prefetch = _check_number("prefetch", options.get("prefetch", 2), 0, MAX_PREFETCH)
    kind = _loader_class(form)
    loader = kind(
        reader, OrderSpec(reader.count, batch_size, buffer_rows, seed), str(manifest["digest"]), split, columns,
        decoders, form, epochs, rank, world_size, prefetch, bool(options.get("drop_last", False)),
    )  # fmt: skip
    if epochs is None and not len(loader):
        raise InvalidInputError("epochs is None, and this rank would wait for ever: an epoch has no batch for it.")
    return loader


def _loader_class(form: str) -> type[Loader]:
    if form == "torch":
        importlib.import_module(_TORCH)
    if _TORCH not in sys.modules:
        return Loader
    from tiltyard.lake.training.torch_loader import TorchLoader  # noqa: PLC0415  # it imports PyTorch

    return TorchLoader


def _check_columns(manifest: Mapping[str, Any], columns: Names | None, decoders: Mapping[str, Any]) -> tuple[str, ...]:
    known = manifest["definition"]["columns"] or list(manifest["schema"])
    chosen = known if columns is None else list_names(columns, "columns") or []
    if not chosen or len(set(chosen)) < len(chosen):
        raise InvalidInputError("columns has to name at least one column, and each once.")
    if missing := [name for name in chosen if name not in known]:
        raise TableColumnNotFoundError(
            f"columns names '{missing[0]}', and the set has no such column: {', '.join(known)}."
        )
    if missing := [name for name in decoders if name not in chosen]:
        raise TableColumnNotFoundError(
            f"decode names '{missing[0]}', which is none of the columns: {', '.join(chosen)}."
        )
    if wrong := [name for name, decoder in decoders.items() if not callable(decoder)]:
        raise InvalidInputError(f"decode['{wrong[0]}'] is no function of a column.")
    return tuple(chosen)


def _check_number(argument: str, value: Any, least: int, most: int) -> int:
    check_whole_number(value, argument)
    if value is None or not least <= value <= most:
        raise InvalidInputError(f"{argument} is {value}: it is a whole number from {least} to {most}.")
    return int(value)


Decoder = Callable[[pa.Array], Any]
"""A function of a column: one of `tiltyard.functions`, or any that returns an array of as many values."""


def decode(rows: pa.RecordBatch, decoders: Mapping[str, Decoder]) -> pa.RecordBatch:
    """Return rows whose columns are what functions make of them.

    Raises InvalidInputError for a value that they refuse.
    """
    for name, decoder in decoders.items():
        position = rows.schema.get_field_index(name)
        try:
            values = decoder(rows.column(position))
        except (RefusedError, ValueError) as error:
            raise InvalidInputError(f"decode['{name}']: {error}") from error
        if not isinstance(values, pa.Array):
            values = pa.array(values)
        if len(values) != rows.num_rows:
            raise InvalidInputError(f"decode['{name}'] has returned {len(values)} values for {rows.num_rows} rows.")
        rows = rows.set_column(position, name, values)
    return rows


def to_numpy(rows: pa.RecordBatch) -> dict[str, np.ndarray]:
    """Return columns as arrays: lists of one length as arrays of more dimensions, text and bytes as objects.

    Raises InvalidInputError for nulls where numpy has no value for them.
    """
    return {name: _array(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)}


def to_torch(rows: pa.RecordBatch) -> dict[str, Any]:
    """Return columns as tensors, those that are no numbers as lists. Raises as `to_numpy`."""
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415  # not installed with this package

    columns: dict[str, Any] = {}
    for name, array in to_numpy(rows).items():
        is_number = array.dtype.kind in "biuf"
        columns[name] = torch.from_numpy(np.array(array)) if is_number else array.tolist()  # a copy, to be written
    return columns


FORMATS: Mapping[str, Callable[[pa.RecordBatch], Any]] = {
    "arrow": lambda rows: rows,
    "numpy": to_numpy,
    "torch": to_torch,
}
"""How a batch is given, by name."""


def _array(name: str, column: pa.Array) -> np.ndarray:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _array(name, column.storage)
    if pa.types.is_fixed_size_list(kind) and not pa.types.is_nested(kind.value_type):
        values = column.flatten()
        if column.null_count or len(values) != len(column) * kind.list_size:
            raise _has_nulls(name, kind)
        return _array(name, values).reshape(len(column), kind.list_size)
    if column.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise _has_nulls(name, kind)
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    return array


def _has_nulls(name: str, kind: pa.DataType) -> InvalidInputError:
    return InvalidInputError(
        f"The column '{name}' has nulls, for which an array of {kind} has no value: leave such rows out by the set's "
        "filter, the column by columns, or take format='arrow'."
    )
