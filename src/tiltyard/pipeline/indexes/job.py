"""Index job: train a model once, build segments of groups of fragments in tasks, merge them, commit the index.

    sample → model → a segment for each group of fragments → one segment → a commit

Rows that are added meanwhile are not in it: `optimize` adds them. Segments of fragments that others replaced meanwhile
are built again, and no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import msgspec
from lance.schema import LanceSchema
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.model.columns.index_types import (
    GRANULARITY,
    LIST_ELEMENT,
    IndexType,
    check_parameter_names,
    check_parameters,
    parse_index_type,
)
from tiltyard.model.spec import models
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.indexes.segments import (
    MIN_ROWS_PER_SEGMENT,
    ROWS_PER_MERGE,
    IndexCheckpoint,
    build_segments,
    commit_empty_index,
    commit_segments,
    create_whole_index,
    try_commit,
)
from tiltyard.pipeline.indexes.tasks import IndexSpec, block_size
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.table_location import CatalogConnection

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from pyspark.sql import SparkSession

    Build = Callable[[lance.LanceDataset, IndexSpec, str], object]
    """What builds an index by itself, of this UUID, and commits it."""

_LANCE_NAMES = {IndexType.FTS: "INVERTED"}
"""Lance's name of an index type, where the specification has another one."""
_MAX_TRIES = 5
_CHECKPOINT_KEY = "index"


@job("index", lazy=True)
def index(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    table: Annotated[str, "The table."],
    column: Annotated[str, "The column to index; a path (author.name) for a field of a struct."],
    type: Annotated[str, "BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP, BLOOMFILTER, FTS, IVF_PQ, IVF_HNSW_SQ, …"],  # noqa: A002  # the argument's name
    *,
    name: Annotated[str | None, "The index's name [default: the column's name with _idx]."] = None,
    replace: Annotated[bool, "Replace an existing index of this name."] = False,
    metric: Annotated[str | None, "The metric of a vector index: l2, cosine, dot or hamming."] = None,
    parameters: Annotated[dict[str, str], "A parameter of CreateTableIndex: num_partitions=256, …"] = {},  # noqa: B006  # the registry copies it
    branch: Annotated[str | None, "A branch of the table."] = None,
    rows_per_segment: Annotated[
        int | None, "Most rows of a segment, which servers that share out tables search apart [default: 268,435,456]."
    ] = None,
) -> Mapping[str, object]:
    """Build an index of a column, on the whole cluster.

    \b
    Examples:
      tiltyard job index --uri http://127.0.0.1:2333 films id BTREE
      tiltyard job index --uri http://127.0.0.1:2333 films vector IVF_PQ --metric cosine --parameters num_partitions=256
    """
    values = {key: parse_parameter(text) for key, text in parameters.items()}
    spec = make_spec(column, type, name, with_metric(values, metric))
    target = catalog_client.table(catalog, table)
    dataset = target.dataset(branch=branch, block_size=block_size(spec.kind))
    spec = validate_spec(spec, dataset.schema)
    is_distributed = parse_index_type(spec.kind).is_distributed
    if rows_per_segment is not None:
        _check_rows_per_segment(rows_per_segment, spec)
    if (figures := _find_built(run, dataset, spec)) is not None:
        return figures
    if not replace and any(existing.name == spec.name for existing in dataset.describe_indices()):
        raise InvalidInputError(f"{table} has an index '{spec.name}': name another one, or say --replace.")
    for _ in range(_MAX_TRIES):
        location = target.location()
        if not is_distributed or not dataset.get_fragments():
            build = commit_empty_index if is_distributed else create_whole_index
            if _build_here(run, dataset, spec, build) and (figures := _find_built(run, dataset, spec)) is not None:
                return figures
            dataset = target.dataset(branch=branch, block_size=block_size(spec.kind))
            continue
        checkpoint = IndexCheckpoint.of(run, location, dataset, column)
        segments = build_segments(
            *(run, spark, location, dataset, branch, spec, checkpoint),
            rows_per_segment=rows_per_segment or ROWS_PER_MERGE,
        )
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps(sorted(str(segment.uuid) for segment in segments)))
        run.check()
        if commit_segments(dataset, spec, segments) and (figures := _find_built(run, dataset, spec)) is not None:
            checkpoint.delete_model(location)
            return figures
        dataset = target.dataset(branch=branch, block_size=block_size(spec.kind))
    raise ConcurrentModificationError(
        f"Concurrent commits replaced fragments of {table} {_MAX_TRIES} times meanwhile: build when no compaction runs."
    )


def _check_rows_per_segment(rows: int, spec: IndexSpec) -> None:
    """Check that an index has segments, of so many rows. Raises InvalidInputError."""
    if not parse_index_type(spec.kind).is_distributed:
        raise InvalidInputError(f"An index of type {spec.kind} is built as one segment: leave rows_per_segment out.")
    if not MIN_ROWS_PER_SEGMENT <= rows <= ROWS_PER_MERGE:
        raise InvalidInputError(
            f"Set rows_per_segment to {MIN_ROWS_PER_SEGMENT:,} to {ROWS_PER_MERGE:,}, not {rows:,}."
        )


def with_metric(parameters: Mapping[str, Any], metric: str | None) -> Mapping[str, Any]:
    """Return parameters with the metric, which CreateTableIndex calls `distance_type`. Raises InvalidInputError."""
    if metric is None:
        return parameters
    if "distance_type" in parameters:
        raise InvalidInputError("metric and the parameter distance_type are the same: leave one out.")
    return {**parameters, "distance_type": metric}


def make_spec(column: str, type: str, name: str | None, parameters: Mapping[str, Any]) -> IndexSpec:  # noqa: A002  # as the job's argument
    """Describe the index to build. Raises InvalidInputError for an unknown type."""
    kind = parse_index_type(type)
    return IndexSpec(column, _LANCE_NAMES.get(kind, kind.value), name or f"{column}_idx", parameters)


def validate_spec(spec: IndexSpec, schema: pa.Schema) -> IndexSpec:
    """Check an index against the table's schema and the rules of CreateTableIndex; return it with its parameters.

    Raises InvalidInputError.
    """
    check_parameter_names(spec.kind, spec.parameters)
    field = find_field(schema, spec.column)
    kind = parse_index_type(spec.kind)
    if str(spec.parameters.get(GRANULARITY, "")).lower() == LIST_ELEMENT:
        raise InvalidInputError(f"The server builds an index of {GRANULARITY} '{LIST_ELEMENT}': use CreateTableIndex.")
    values = {**spec.parameters, "column": spec.column, "index_type": kind.value}
    try:
        request = msgspec.convert(values, models.CreateTableIndexRequest)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The parameters of the index '{spec.name}' cannot be: {error}.") from error
    return replace(spec, parameters=check_parameters(kind, field, request))


def find_field(schema: pa.Schema, path: str) -> pa.Field:
    """Return the field at a path (`a`, `a.b`, "`a.b`.c"). Raises InvalidInputError."""
    if path in schema.names:
        return schema.field(path)
    field: Any = LanceSchema.from_pyarrow(schema).field(path)  # pylance's stubs lack it
    if field is None:
        raise InvalidInputError(f"The table has no column '{path}'; it has {', '.join(schema.names)}.")
    return field.to_arrow()


def _build_here(run: Run, dataset: lance.LanceDataset, spec: IndexSpec, build: Build) -> bool:
    """Build and commit an index without tasks; False if that collides with another commit."""
    uuid = str(uuid4())
    run.save_checkpoint(_CHECKPOINT_KEY, json.dumps([uuid]))
    run.check()
    return try_commit(lambda: build(dataset, spec, uuid))


def _find_built(run: Run, dataset: lance.LanceDataset, spec: IndexSpec) -> Mapping[str, object] | None:
    """Return the figures if the table has the index that this run has built."""
    built = set(json.loads(run.checkpoints().get(_CHECKPOINT_KEY, "[]")))
    for description in dataset.describe_indices():
        segments = {str(segment.uuid) for segment in description.segments}
        if description.name == spec.name and built and built <= segments:
            return {
                "version": int(dataset.version),
                "index": spec.name,
                "rows": description.num_rows_indexed,
                "segments": len(segments),
            }
    return None


def parse_parameter(text: str) -> Any:
    """Parse a parameter of an option: numbers, true and lists are JSON, all else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
