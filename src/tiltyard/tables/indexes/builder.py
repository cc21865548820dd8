"""Build one index, here or in a process of its own.

    python -m tiltyard.runtime.lazy_imports tiltyard.tables.indexes.builder

The process reads from standard input, a line of JSON each: an order (`ProcessOrder`), then answers to what it asks. It
writes to standard output what it asks of the catalog to commit (`{"call": …, "request": …}`), and in the end
`{"done": true}` or `{"error": …}`. It ends when standard input does, so it does not outlive who started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO

import lance
from lance.indices import IndexConfig
from lance_namespace.errors import LanceNamespaceError, from_error_code

from tiltyard.model.index_types import IndexType
from tiltyard.model.vector_columns import VectorColumn, train_exact_model
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.schema.field_paths import arrow_field

if TYPE_CHECKING:
    from collections.abc import Iterable

_FEWEST = 1
_LANCE_NAMES = {"distance_type": "metric", "max_iterations": "max_iters"}


@dataclass(frozen=True, slots=True)
class IndexOrder:
    """What a transaction's payload says. `replaces` is whether an index had that name when it was ordered."""

    location: str
    branch: str | None
    column: str
    name: str
    index_type: str
    parameters: dict[str, Any] = field(default_factory=dict)
    replaces: bool = False

    @property
    def kind(self) -> IndexType:
        return IndexType(self.index_type)


@dataclass(frozen=True, slots=True)
class ProcessOrder:
    """What a process is told to build.

    `uuid` is that of the new index, `version` the one of its branch that is read. `table_id` is the table's name for
    who answers about commits, None for a table whose commits go straight to storage.
    """

    index: dict[str, Any]
    uuid: str
    version: int
    storage_options: dict[str, str]
    table_id: list[str] | None


def build(dataset: lance.LanceDataset, order: IndexOrder, uuid: str) -> None:
    """Train an index, write and commit it. Raises TableColumnNotFoundError, and what Lance raises as ours.

    Lance is given no `progress_callback`: with one, pylance 14 stands still now and then while it trains an IVF model
    on a busy machine, for minutes and with all its threads waiting.
    """
    column = arrow_field(dataset, order.column)
    common: dict[str, Any] = {"name": order.name, "replace": True, "index_uuid": uuid}
    with lance_errors(dataset):
        if order.kind.is_vector:
            options = {_LANCE_NAMES.get(name, name): value for name, value in order.parameters.items()}
            few = _train_exact_model(dataset, order, VectorColumn.for_index(column))
            dataset.create_index(order.column, order.index_type, **{**options, **few, **common})
        else:
            kind: Any = order.index_type
            if order.kind is IndexType.FTS:
                kind = IndexConfig(index_type="INVERTED", parameters=order.parameters)
            dataset.create_scalar_index(order.column, kind, **common)


def _train_exact_model(dataset: lance.LanceDataset, order: IndexOrder, column: VectorColumn) -> dict[str, Any]:
    """A model made here, if the table has fewer vectors than Lance needs to train one; empty tables need none."""
    quantized = order.kind.quantizer == "PQ"
    needed = 1 << order.parameters.get("num_bits", 8) if quantized else _FEWEST
    path = f"`{order.column}`" if order.column in dataset.schema.names else order.column
    sample = dataset.to_table(columns=[order.column], filter=f"{path} IS NOT NULL", limit=needed)
    if sample.num_rows >= needed or dataset.count_rows() == 0:
        return {}
    return train_exact_model(column, column.matrix(sample.column(0)), order.parameters)


class _Response(dict[str, Any]):
    """A response as pylance reads it."""

    def model_dump(self) -> dict[str, Any]:
        """Return all fields by name."""
        return dict(self)


class _RemoteCommits:
    """The methods of a `LanceNamespace` that commits need; each asks who started this process."""

    def __init__(self, output: TextIO, answers: SimpleQueue[Mapping[str, Any]]) -> None:
        self._output, self._answers = output, answers
        self._one_at_a_time = threading.Lock()

    def namespace_id(self) -> str:
        """What tells this namespace from others."""
        return f"tiltyard-index-{os.getpid()}"

    def __getattr__(self, name: str) -> Callable[[Any], _Response]:
        if name not in COMMIT_CALLS:
            raise AttributeError(name)
        return lambda request: self._call(name, request)

    def _call(self, name: str, request: Any) -> _Response:
        fields = request.model_dump() if hasattr(request, "model_dump") else dict(request)
        with self._one_at_a_time:
            print(json.dumps({"call": name, "request": fields}, default=str), file=self._output)
            answer = self._answers.get()
        if "error" in answer:
            raise from_error_code(**answer["error"])
        return _Response(answer["response"])


COMMIT_CALLS = frozenset({"describe_table", "list_table_versions", "describe_table_version", "create_table_version"})
"""What a process may ask."""


def _read_answers(lines: Iterable[str], answers: SimpleQueue[Mapping[str, Any]]) -> None:
    """Hand on what comes in, and end the process with its input: Lance cannot be interrupted."""
    for line in lines:
        answers.put(json.loads(line))
    os._exit(1)


def _open(order: ProcessOrder, index: IndexOrder, commits: _RemoteCommits) -> lance.LanceDataset:
    with lance_errors():
        if order.table_id is None:
            dataset = lance.dataset(index.location, storage_options=order.storage_options)
        else:
            dataset = lance.LanceDataset(
                index.location,
                storage_options=order.storage_options,
                namespace_client=commits,
                table_id=order.table_id,
                namespace_client_managed_versioning=True,
            )
        return dataset.checkout_version((index.branch, order.version))


def main() -> None:
    """Build what the first line of standard input says."""
    lines, output = sys.stdin, os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints, answers alone go to standard output
    order = ProcessOrder(**json.loads(lines.readline()))
    answers: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
    threading.Thread(target=_read_answers, args=(lines, answers), daemon=True).start()
    index = IndexOrder(**order.index)
    ended: dict[str, Any] = {"done": True}
    try:
        build(_open(order, index, _RemoteCommits(output, answers)), index, order.uuid)
    except LanceNamespaceError as error:
        ended = {"error": {"code": int(error.code), "message": str(error)}}
    print(json.dumps(ended), file=output)
    output.close()
    os._exit(0)  # Lance's threads, and the one that reads, are not waited for


if __name__ == "__main__":
    main()
