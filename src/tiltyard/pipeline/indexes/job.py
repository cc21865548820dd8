"""Index: trained once, built by groups of fragments in tasks, merged, committed.

    sample → model → a segment for each group of fragments → one segment → a commit

Rows that come in meanwhile are not in it: `optimize` brings them in. What was built of fragments that others replaced
meanwhile is built again, and nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import msgspec
from lance.schema import LanceSchema
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.model.index_types import IndexType, index_type
from tiltyard.model.index_types import parameters as checked_parameters
from tiltyard.model.spec import models
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.indexes.checkpoint import Finished
from tiltyard.pipeline.indexes.tasks import Order, block_size, built_segments, commit_empty_index
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.table_location import Connection

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from pyspark.sql import SparkSession

_LANCES = {IndexType.FTS: "INVERTED"}
"""What Lance calls an index, where the specification calls it otherwise."""
_TRIES = 5
_BUILT = "index"


@job("index")
def index(
    run: Run,
    catalog: Connection,
    spark: SparkSession,
    table: Annotated[str, "The table."],
    column: Annotated[str, "The column to index; one within a struct by its path (author.name)."],
    type: Annotated[str, "BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP, BLOOMFILTER, FTS, IVF_PQ, IVF_HNSW_SQ, …"],  # noqa: A002  # the argument's name
    *,
    name: Annotated[str | None, "The index's name; else the column's with _idx."] = None,
    replace: Annotated[bool, "Replace an index of that name."] = False,
    parameters: Annotated[dict[str, str], "As of CreateTableIndex: num_partitions=256, distance_type=cosine, …"] = {},  # noqa: B006  # the registry copies it
    branch: Annotated[str | None, "A branch of the table."] = None,
) -> Mapping[str, object]:
    """Build an index of a column, on all of the cluster.

    \b
    Examples:
      tiltyard job index --uri http://127.0.0.1:2333 films id BTREE
      tiltyard job index --uri http://127.0.0.1:2333 films vector IVF_PQ --parameters num_partitions=256
    """
    order = find_order(column, type, name, {key: _value(text) for key, text in parameters.items()})
    found = catalog_client.table(catalog, table)
    dataset = found.dataset(branch=branch, block_size=block_size(order.kind))
    order = fitted(order, dataset.schema)
    if (done := _done(run, dataset, order)) is not None:
        return done
    if not replace and any(one.name == order.name for one in dataset.describe_indices()):
        raise InvalidInputError(f"{table} has an index '{order.name}': name another one, or say --replace.")
    for _ in range(_TRIES):
        place = found.place()
        if not dataset.get_fragments():
            if _commit_empty(run, dataset, order) and (done := _done(run, dataset, order)) is not None:
                return done
            dataset = found.dataset(branch=branch, block_size=block_size(order.kind))
            continue
        finished = Finished.of(run, place, dataset, column)
        segments = built_segments(run, spark, place, dataset, branch, order, finished)
        run.keep(_BUILT, json.dumps(sorted(str(one.uuid) for one in segments)))
        run.check()
        if _commit(dataset, order, segments) and (done := _done(run, dataset, order)) is not None:
            finished.forget_model(place)
            return done
        dataset = found.dataset(branch=branch, block_size=block_size(order.kind))
    raise ConcurrentModificationError(
        f"Others replaced fragments of {table} {_TRIES} times meanwhile: build when no compaction runs."
    )


def find_order(column: str, type: str, name: str | None, parameters: Mapping[str, Any]) -> Order:  # noqa: A002  # as the job's argument
    """What is built. Raises InvalidInputError for a type that there is not."""
    kind = index_type(type)
    return Order(column, _LANCES.get(kind, kind.value), name or f"{column}_idx", parameters)


def fitted(order: Order, schema: pa.Schema) -> Order:
    """The same index, of a column of a table that it fits, with parameters that CreateTableIndex would take.

    Raises InvalidInputError.
    """
    field = find_field(schema, order.column)
    fields = models.CreateTableIndexRequest.__struct_fields__
    if unknown := [key for key in order.parameters if key not in fields]:
        raise InvalidInputError(f"An index has no parameter '{unknown[0]}': they are those of CreateTableIndex.")
    kind = index_type(order.kind)
    told = {**order.parameters, "column": order.column, "index_type": kind.value}
    try:
        request = msgspec.convert(told, models.CreateTableIndexRequest)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The parameters of the index '{order.name}' cannot be: {error}.") from error
    return replace(order, parameters=checked_parameters(kind, field, request))


def find_field(schema: pa.Schema, path: str) -> pa.Field:
    """Return the field at a path (`a`, `a.b`, "`a.b`.c"). Raises InvalidInputError."""
    if path in schema.names:
        return schema.field(path)
    found: Any = LanceSchema.from_pyarrow(schema).field(path)  # pylance's stubs lack it
    if found is None:
        raise InvalidInputError(f"The table has no column '{path}'; it has {', '.join(schema.names)}.")
    return found.to_arrow()


def _commit_empty(run: Run, dataset: lance.LanceDataset, order: Order) -> bool:
    """Publish the index of a table without rows; False if somebody else changed the table meanwhile."""
    uuid = str(uuid4())
    run.keep(_BUILT, json.dumps([uuid]))
    run.check()
    return _committed(lambda: commit_empty_index(dataset, order, uuid))


def _commit(dataset: lance.LanceDataset, order: Order, segments: Sequence[Any]) -> bool:
    """Publish the segments, and have the dataset be of that version; False if fragments of theirs were replaced."""
    return _committed(lambda: dataset.commit_existing_index_segments(order.name, order.column, list(segments)))


def _committed(commit: Callable[[], object]) -> bool:
    """Commit; False if that collides with another's commit. Raises what Lance raises."""
    try:
        commit()
    except (OSError, RuntimeError, ValueError) as error:
        if "conflict" not in str(error).lower():
            raise
        return False
    return True


def _done(run: Run, dataset: lance.LanceDataset, order: Order) -> Mapping[str, object] | None:
    """The figures, if what this run has built is in the table."""
    built = set(json.loads(run.kept().get(_BUILT, "[]")))
    for one in dataset.describe_indices():
        there = {str(segment.uuid) for segment in one.segments}
        if one.name == order.name and built and built <= there:
            return {
                "version": int(dataset.version),
                "index": order.name,
                "rows": one.num_rows_indexed,
                "segments": len(there),
            }
    return None


def _value(text: str) -> Any:
    """A parameter from an option: numbers, true and lists are JSON, all else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
