"""Build one index, in this process or in a child process.

    python -m tiltyard.runtime.lazy_imports tiltyard.tables.indexes.builder

The child reads from standard input, a line of JSON each: a `BuildRequest`, then the responses to its calls. It writes
to standard output its calls to the catalog, to commit (`{"call": …, "request": …}`), and in the end `{"done": true}` or
`{"error": …}`. It ends when standard input does, so it does not outlive its parent.
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

_MIN_VECTORS = 1
_LANCE_NAMES = {"distance_type": "metric", "max_iterations": "max_iters"}


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """The index to build: a transaction's payload.

    `branch` has its name in Lance, None for main. `replaces`: an index had that name when the build was queued.
    """

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
class BuildRequest:
    """The request that the child gets.

    `index` has the fields of an `IndexSpec`. `uuid` is that of the new index, `version` the one of its branch to read.
    `table_id` is the table's id in the parent's commit calls, None for a table whose commits go straight to storage.
    """

    index: dict[str, Any]
    uuid: str
    version: int
    storage_options: dict[str, str]
    table_id: list[str] | None


def build(dataset: lance.LanceDataset, spec: IndexSpec, uuid: str) -> None:
    """Train an index, write and commit it. Raises TableColumnNotFoundError, and Lance's errors translated.

    Lance gets no `progress_callback`: with one, pylance 14 stalls now and then while it trains an IVF model on a busy
    machine, for minutes and with all its threads waiting.
    """
    column = arrow_field(dataset, spec.column)
    common: dict[str, Any] = {"name": spec.name, "replace": True, "index_uuid": uuid}
    with lance_errors(dataset):
        if spec.kind.is_vector:
            options = {_LANCE_NAMES.get(name, name): value for name, value in spec.parameters.items()}
            few = _train_exact_model(dataset, spec, VectorColumn.for_index(column))
            dataset.create_index(spec.column, spec.index_type, **{**options, **few, **common})
        else:
            kind: Any = spec.index_type
            if spec.kind is IndexType.FTS:
                kind = IndexConfig(index_type="INVERTED", parameters=spec.parameters)
            dataset.create_scalar_index(spec.column, kind, **common)


def _train_exact_model(dataset: lance.LanceDataset, spec: IndexSpec, column: VectorColumn) -> dict[str, Any]:
    """Return a model made here, if the table has fewer vectors than Lance needs to train one, and any."""
    quantized = spec.kind.quantizer == "PQ"
    needed = 1 << spec.parameters.get("num_bits", 8) if quantized else _MIN_VECTORS
    path = f"`{spec.column}`" if spec.column in dataset.schema.names else spec.column
    sample = dataset.to_table(columns=[spec.column], filter=f"{path} IS NOT NULL", limit=needed)
    if sample.num_rows >= needed or dataset.count_rows() == 0:
        return {}
    return train_exact_model(column, column.matrix(sample.column(0)), spec.parameters)


class _Response(dict[str, Any]):
    """A response as pylance reads it."""

    def model_dump(self) -> dict[str, Any]:
        """Return all fields by name."""
        return dict(self)


class _RemoteCommits:
    """The methods of a `LanceNamespace` that commits need; each calls the parent process."""

    def __init__(self, output: TextIO, responses: SimpleQueue[Mapping[str, Any]]) -> None:
        self._output, self._responses = output, responses
        self._lock = threading.Lock()

    def namespace_id(self) -> str:
        """Return what tells this namespace from others."""
        return f"tiltyard-index-{os.getpid()}"

    def __getattr__(self, name: str) -> Callable[[Any], _Response]:
        if name not in COMMIT_CALLS:
            raise AttributeError(name)
        return lambda request: self._call(name, request)

    def _call(self, name: str, request: Any) -> _Response:
        fields = request.model_dump() if hasattr(request, "model_dump") else dict(request)
        with self._lock:
            print(json.dumps({"call": name, "request": fields}, default=str), file=self._output)
            message = self._responses.get()
        if "error" in message:
            raise from_error_code(**message["error"])
        return _Response(message["response"])


COMMIT_CALLS = frozenset({"describe_table", "list_table_versions", "describe_table_version", "create_table_version"})
"""What the child may call."""


def _read_responses(lines: Iterable[str], responses: SimpleQueue[Mapping[str, Any]]) -> None:
    """Queue incoming responses, and end the process with its input: Lance cannot be interrupted."""
    for line in lines:
        responses.put(json.loads(line))
    os._exit(1)


def _open(request: BuildRequest, spec: IndexSpec, commits: _RemoteCommits) -> lance.LanceDataset:
    with lance_errors():
        if request.table_id is None:
            dataset = lance.dataset(spec.location, storage_options=request.storage_options)
        else:
            dataset = lance.LanceDataset(
                spec.location,
                storage_options=request.storage_options,
                namespace_client=commits,
                table_id=request.table_id,
                namespace_client_managed_versioning=True,
            )
        return dataset.checkout_version((spec.branch, request.version))


def main() -> None:
    """Build the index that the first line of standard input specifies."""
    lines, output = sys.stdin, os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes to standard error
    request = BuildRequest(**json.loads(lines.readline()))
    responses: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
    threading.Thread(target=_read_responses, args=(lines, responses), daemon=True).start()
    spec = IndexSpec(**request.index)
    result: dict[str, Any] = {"done": True}
    try:
        build(_open(request, spec, _RemoteCommits(output, responses)), spec, request.uuid)
    except LanceNamespaceError as error:
        result = {"error": {"code": int(error.code), "message": str(error)}}
    print(json.dumps(result), file=output)
    output.close()
    os._exit(0)  # Lance's threads, and the one that reads, are not waited for


if __name__ == "__main__":
    main()
