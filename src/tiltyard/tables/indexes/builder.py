"""Build one index, in this process or in a child process.

    python -m tiltyard.runtime.lazy_imports tiltyard.tables.indexes.builder

The child's request is a `BuildRequest`; how it talks with its parent is in `tables.commits.child_commits`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance.indices import IndexConfig
from lance.query import DocumentGranularity

from tiltyard.model.columns.index_types import GRANULARITY, IndexType
from tiltyard.model.columns.vector_columns import VectorColumn, train_exact_model
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.commits.child_commits import Parent, RemoteCommits, open_in_child, run_in_child
from tiltyard.tables.schema.field_paths import arrow_field

if TYPE_CHECKING:
    import lance

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
                common[GRANULARITY] = DocumentGranularity(spec.parameters.get(GRANULARITY, DocumentGranularity.ROW))
            elif spec.kind is IndexType.FM:  # pylance's list of names lacks it
                kind = IndexConfig(index_type="FM", parameters={})
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


def _open(request: BuildRequest, spec: IndexSpec, commits: RemoteCommits) -> lance.LanceDataset:
    dataset = open_in_child(spec.location, request.storage_options, request.table_id, commits)
    with lance_errors():
        return dataset.checkout_version((spec.branch, request.version))


def _run(fields: dict[str, Any], parent: Parent) -> None:
    request = BuildRequest(**fields)
    spec = IndexSpec(**request.index)
    build(_open(request, spec, parent.commits), spec, request.uuid)


if __name__ == "__main__":
    run_in_child(_run)
