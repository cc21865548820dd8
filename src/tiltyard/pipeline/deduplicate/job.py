"""Deduplicate job: fill a column with the key of the row that each row is a duplicate of, in one commit.

    signatures (a column, kept) → groups of the rows of one version, by Spark → the column, where it changes

Signatures are hashed of new and changed rows alone, as a backfill computes a column; they are committed as they are
ready. Groups are found from all signatures each time, so they are those of the rows that there are: rows that were
deleted or changed link nothing any more.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import lance
import pyarrow as pa
from lance import LanceOperation
from lance_namespace.errors import (
    InvalidInputError,
    TableColumnNotFoundError,
)

from tiltyard.change_feed.table_history import field_ids, fragments_by_id
from tiltyard.column_refresh.freshness import ComputedColumn, with_column_files
from tiltyard.column_refresh.refresh import ColumnRefresh
from tiltyard.model.columns.duplicate_columns import PROPERTY, SIGNATURE_SUFFIX
from tiltyard.model.columns.lineage import function_origins
from tiltyard.model.columns.primary_keys import PROPERTY as KEY_PROPERTY
from tiltyard.model.columns.primary_keys import is_key_type
from tiltyard.model.lineage import digest_code
from tiltyard.model.schemas.column_names import check_column_name
from tiltyard.model.schemas.nested_types import is_text
from tiltyard.model.text.sql_text import quote_identifier
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.backfill.job import SparkHost
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn
from tiltyard.pipeline.deduplicate.signatures import (
    CloseVectors,
    Comparison,
    EqualValues,
    Metric,
    SimilarTexts,
)
from tiltyard.pipeline.deduplicate.tasks import ComparedRows, GroupOrder, WriteValues, WrittenValues
from tiltyard.pipeline.functions.user_functions import PickledFunction
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.lineage import own_rows_lineage
from tiltyard.pipeline.runs import ColumnRun
from tiltyard.pipeline.session import LazySession, started
from tiltyard.pipeline.sources.filesystem import delete_files
from tiltyard.pipeline.spark_tasks import run_partitions
from tiltyard.pipeline.table_changes import declared_key
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.version_diff import has_only_appends
from tiltyard.pipeline.writing.commit import JobTable
from tiltyard.pipeline.writing.key_checks import MAX_KEYS_IN_DRIVER, count_duplicate_keys
from tiltyard.view_refresh.near_duplicates import check_vectors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.catalog_client import Table

Method = Literal["exact", "minhash", "vector"]

DEFAULT_COLUMN = "duplicate_of"
DEFAULT_SIMILARITY = 0.8
MIN_SIMILARITY = 0.3
"""Below it, most pairs of texts would have to be compared."""
DEFAULT_DISTANCE = 0.05
MAX_COSINE_DISTANCE = 0.3
"""Beyond it, most pairs of vectors would have to be compared."""
DEFAULT_SHINGLE = 5
MAX_SHINGLE = 64
MAX_ORDER_COLUMNS = 8

_SINCE_KEY, _FIGURES_KEY = "since", "deduplicated"


@job("deduplicate", lazy=True)
def deduplicate(
    run: ColumnRun,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    table: Annotated[str, "The table."],
    *,
    on: Annotated[str, "The column that is compared: texts, vectors, or for exact any values."],
    method: Annotated[
        Method, "exact: equal values; minhash: texts that are similar; vector: vectors that are close."
    ] = "minhash",
    threshold: Annotated[
        float | None,
        "minhash: the least Jaccard similarity, 0.3 to 1 [default: 0.8]; vector: the largest distance, of cosine up to "
        "0.3 [default: 0.05].",
    ] = None,
    into: Annotated[str, "The column that gets the id of the row of which a row is a duplicate."] = DEFAULT_COLUMN,
    id: Annotated[str | None, "The column that names rows [default: the table's primary key]."] = None,  # noqa: A002  # the option's name
    order_by: Annotated[
        list[str],
        "Which row stands for a group, the first: by a, or a:desc for the largest, and then by the id.",
    ] = [],  # noqa: B006  # the registry copies it
    shingle: Annotated[int | None, "minhash: texts are compared by runs of so many characters [default: 5]."] = None,
    metric: Annotated[Metric | None, "vector: the distance, l2 being squared [default: cosine]."] = None,
) -> Mapping[str, object]:
    """Find duplicates, and fill a column with the id of the row that each one is a duplicate of.

    It is null for the first row of a group, and for rows without duplicates. A run again hashes new and changed rows
    alone.

    \b
    Examples:
      tiltyard job deduplicate --uri http://127.0.0.1:2333 films --on title --id id
      tiltyard job deduplicate --uri http://127.0.0.1:2333 films --on vector --method vector --threshold 0.03 --id id
    """
    target = catalog_client.table(catalog, table)
    job_table = JobTable(target)
    dataset = job_table.latest()
    comparison = _find_comparison(dataset.schema, on, method, threshold, shingle, metric)
    named = _find_key(target, dataset, id)
    order = parse_order(dataset.schema, named, order_by)
    _check_columns(dataset.schema, into, on, order)
    _check_keys(spark, target, dataset, named)
    if _SINCE_KEY not in run.checkpoints():
        run.save_checkpoint(_SINCE_KEY, str(dataset.version))
    since = int(run.checkpoints()[_SINCE_KEY])
    code = digest_code(json.dumps([comparison.identity, threshold, on, named, order_by]))
    made = function_origins(dataset.schema.names, [on, named], [(into, code)])
    job_table.lineage = own_rows_lineage("deduplicate", target, since, None, code, made)
    _add_columns(job_table, into, on, named)
    plan = _GroupsPlan(run, spark, job_table, on, into, comparison, order, dataset)
    version = job_table.commit_plan(run, since, plan)
    return {**json.loads(run.checkpoints().get(_FIGURES_KEY, "{}")), "version": version}


def _find_comparison(
    schema: pa.Schema, on: str, method: Method, threshold: float | None, shingle: int | None, metric: Metric | None
) -> Comparison:
    """Return how values are compared.

    Raises TableColumnNotFoundError, InvalidInputError for a column of another type, or an argument that is out of its
    bounds or not one of the method's.
    """
    unused = {
        "threshold": threshold if method == "exact" else None,
        "shingle": shingle if method != "minhash" else None,
        "metric": metric if method != "vector" else None,
    }
    if given := [name for name, value in unused.items() if value is not None]:
        raise InvalidInputError(f"{given[0]} is nothing that the method {method} uses: leave it out.")
    if on not in schema.names:
        raise TableColumnNotFoundError(f"on: the table has no column '{on}'; it has {', '.join(schema.names)}.")
    kind = schema.field(on).type
    if method == "exact":
        if not is_key_type(kind):
            raise InvalidInputError(f"on: '{on}' is {kind}, which exact cannot compare: it takes texts, bytes, whole "
                                    "numbers, decimals, dates, times and booleans.")  # fmt: skip
        return EqualValues()
    if method == "minhash":
        if not is_text(kind):
            raise InvalidInputError(f"on: '{on}' is {kind}, and minhash compares texts.")
        similarity = DEFAULT_SIMILARITY if threshold is None else threshold
        _check_within("threshold", similarity, MIN_SIMILARITY, 1)
        size = DEFAULT_SHINGLE if shingle is None else shingle
        _check_within("shingle", size, 1, MAX_SHINGLE)
        return SimilarTexts(similarity, size)
    check_vectors(schema, on)
    if not pa.types.is_floating(kind.value_type):
        raise InvalidInputError(f"on: '{on}' has vectors of {kind.value_type}, and vectors of floats are compared.")
    if metric == "l2" and threshold is None:
        raise InvalidInputError("threshold: give one for l2, whose distances depend on the vectors.")
    distance = DEFAULT_DISTANCE if threshold is None else threshold
    _check_within("threshold", distance, 0, MAX_COSINE_DISTANCE if metric != "l2" else 1e30)
    if distance == 0:
        raise InvalidInputError("threshold is 0: the distance is larger, since it is rounded.")
    return CloseVectors(distance, metric or "cosine", kind.list_size)


def _check_within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidInputError(f"{name} is {value}: it is {low} to {high} here.")


def _find_key(table: Table, dataset: lance.LanceDataset, key: str | None) -> str:
    """Return the column that names rows. Raises TableColumnNotFoundError, InvalidInputError."""
    if key is None:
        names = declared_key(table, dataset)
        if len(names) != 1:
            how = f"has {len(names)} columns" if names else "has none"
            raise InvalidInputError(f"id: name the column by which rows are known, for the primary key {how}.")
        (key,) = names
    if key not in dataset.schema.names:
        raise TableColumnNotFoundError(f"id: the table has no column '{key}'.")
    kind = dataset.schema.field(key).type
    if not (pa.types.is_integer(kind) or is_text(kind)):
        raise InvalidInputError(f"id: '{key}' is {kind}, and ids are whole numbers or texts.")
    return key


def parse_order(schema: pa.Schema, key: str, texts: Sequence[str]) -> GroupOrder:
    """Return which row comes first. Raises TableColumnNotFoundError, InvalidInputError."""
    if len(texts) > MAX_ORDER_COLUMNS:
        raise InvalidInputError(f"order_by: {MAX_ORDER_COLUMNS} columns at most say which row is the first.")
    by = []
    for text in texts:
        name, _, direction = text.rpartition(":")
        if direction not in ("asc", "desc") or not name:
            name, direction = text, "asc"
        if name not in schema.names:
            raise TableColumnNotFoundError(f"order_by: the table has no column '{name}'.")
        kind = schema.field(name).type
        if not (is_key_type(kind) or pa.types.is_floating(kind)):
            raise InvalidInputError(f"order_by: '{name}' is {kind}, which has no order.")
        by.append((name, direction == "desc"))
    return GroupOrder(key, tuple(by))


def _check_columns(schema: pa.Schema, into: str, on: str, order: GroupOrder) -> None:
    """Raise InvalidInputError unless both columns are new, or this job's own for the same columns."""
    if into in (on, order.key, *(name for name, _ in order.by)):
        raise InvalidInputError(f"into: '{into}' is one of the columns that are read: name another.")
    for name, kind in ((into, schema.field(order.key).type), (into + SIGNATURE_SUFFIX, pa.binary())):
        check_column_name(name)
        if name not in schema.names:
            continue
        there = schema.field(name)
        made_for = (there.metadata or {}).get(PROPERTY.encode())
        if made_for is None or there.type != kind:
            raise InvalidInputError(f"into: the table has a column '{name}' of its own: name another.")
        if made_for.decode() != _made_for(on, order.key):
            raise InvalidInputError(f"into: '{into}' has the duplicates of other columns: name another, or drop it.")


def _made_for(on: str, key: str) -> str:
    return json.dumps({"on": on, "key": key})


def _check_keys(spark: SparkSession | LazySession, table: Table, dataset: lance.LanceDataset, key: str) -> None:
    """Raise InvalidInputError for keys that are null, or there twice; those of an enforced primary key are not."""
    text = (table.describe().properties or {}).get(KEY_PROPERTY)
    if text is not None and json.loads(text) == [key]:
        return
    condition = f"{quote_identifier(key)} IS NULL"
    if nulls := dataset.scanner(columns=[], filter=condition, with_row_id=True).count_rows():
        raise InvalidInputError(f"id: '{key}' is null in {nulls} rows: duplicates are named by it.")
    session = started(spark) if dataset.count_rows() > MAX_KEYS_IN_DRIVER else None
    if count := count_duplicate_keys(session, table.location(), [key], [], int(dataset.version)):
        raise InvalidInputError(f"id: '{key}' has {count} values more than once: duplicates are named by it.")


def _add_columns(job_table: JobTable, into: str, on: str, key: str) -> None:
    """Add the columns that the table lacks, without values. Raises ConcurrentModificationError, what Lance raises."""
    metadata = {PROPERTY: _made_for(on, key)}

    def plan(dataset: lance.LanceDataset) -> Callable[[], object] | None:
        fields = [
            pa.field(into, dataset.schema.field(key).type, metadata=metadata),
            pa.field(into + SIGNATURE_SUFFIX, pa.binary(), metadata=metadata),
        ]
        missing = [field for field in fields if field.name not in dataset.schema.names]
        return partial(dataset.add_columns, pa.schema(missing)) if missing else None

    job_table.change_latest(plan)


@dataclass(slots=True)
class _GroupsPlan:
    """The commit that fills the column of the version `dataset`, whose groups are found when it is first asked for."""

    run: ColumnRun
    spark: SparkSession | LazySession
    job_table: JobTable
    on: str
    into: str
    comparison: Comparison
    order: GroupOrder
    dataset: lance.LanceDataset
    written: Sequence[WrittenValues] | None = field(init=False, default=None)

    @property
    def signature(self) -> str:
        """Return the column of signatures."""
        return self.into + SIGNATURE_SUFFIX

    def operation(self) -> LanceOperation.Update | None:
        """Return the commit's operation; None where the column is as it should be."""
        if self.written is None:
            hashed = self._hash_rows()
            self.dataset = self.job_table.latest()
            self.written = self._write_column(hashed)
        fields = field_ids(self.dataset, self.into)
        fragments = fragments_by_id(self.dataset)
        files = {values.fragment_id: values.file for values in self.written if values.file is not None}
        if not files:
            return None
        self.run.progress(stage="commit")
        return LanceOperation.Update(
            updated_fragments=[with_column_files(fragments[number], [file], fields) for number, file in files.items()],
            fields_modified=sorted(fields),
            update_mode="rewrite_columns",
        )

    def can_commit_after(self, newer: lance.LanceDataset) -> bool:
        """Return whether rows were only added: they are left to a later run."""
        return has_only_appends(self.dataset, newer)

    def rebase(self, newer: lance.LanceDataset) -> None:
        """Plan on a newer version: what is written stays if rows were only added or deleted; else it is found anew."""
        before, after = fragments_by_id(self.dataset), fragments_by_id(newer)
        is_kept = self.dataset.schema == newer.schema and all(
            number in after and after[number].files == fragment.files for number, fragment in before.items()
        )
        if not is_kept:
            self._discard()
        self.dataset = newer

    def _discard(self) -> None:
        location = self.job_table.table.location()
        names = [values.file.path for values in self.written or () if values.file is not None]
        delete_files([f"{location.data_folder(None)}/{name}" for name in names], location.options)
        self.written = None

    def _hash_rows(self) -> int:
        """Compute the signatures of new and changed rows, committed as a backfill's; return of how many rows."""
        dataset = self.job_table.latest()
        code = PickledFunction(base64.b64encode(pickle.dumps(self.comparison)).decode())
        output = FilledColumn(pa.field(self.signature, pa.binary()))
        function = ColumnFunction((output,), (self.on,), code)
        column = ComputedColumn.of(dataset, self.signature, [self.on], digest_code(self.comparison.identity))
        self.run.progress(stage="signatures")
        host = SparkHost(self.run, self.spark, self.job_table, function, "", None, HASHED_ROWS, 1 << 20)
        figures = ColumnRefresh(host, str(self.job_table.table), (column,), None).run()
        rows = figures["rows"]
        assert isinstance(rows, int)
        return rows

    def _write_column(self, hashed: int) -> list[WrittenValues]:
        """Find the groups, and write the column of the fragments where it changes. Raises RunCanceledError."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415  # an extra

        from tiltyard.pipeline.deduplicate.groups import find_groups  # noqa: PLC0415  # an extra: PySpark

        spark = started(self.spark)
        location, version = self.job_table.table.location(), int(self.dataset.version)
        fragments = fragments_by_id(self.dataset)
        if not fragments:
            return []
        groups = find_groups(
            spark, self.run, ComparedRows(location, version, self.on, self.signature, self.comparison), self.order
        )
        found = groups.rows.select(
            F.shiftright("row", 32).alias("fragment"), F.expr("row & 4294967295").alias("place"), "is_first", "key"
        )
        each = spark.createDataFrame([(number,) for number in fragments], "fragment bigint")
        frame = each.unionByName(found, allowMissingColumns=True).select("fragment", "place", "is_first", "key")
        self.run.progress(stage="write")
        work = WriteValues(location, version, self.dataset.schema.field(self.into))
        parts = frame.repartition(min(len(fragments), MAX_WRITE_TASKS), "fragment")
        results = run_partitions(spark, self.run, parts, work.__call__, name="deduplicate: write", reports_tasks=True)
        written = [values for part in results for values in part]
        figures: dict[str, Any] = {
            "rows": sum(fragment.num_rows for fragment in fragments.values()),
            "hashed": hashed,
            "compared": groups.compared,
            "alike": groups.alike,
            "groups": sum(values.groups for values in written),
            "duplicates": sum(values.duplicates for values in written),
        }
        self.run.save_checkpoint(_FIGURES_KEY, json.dumps(figures))
        return written


HASHED_ROWS = 8192
"""How many values are hashed at once."""
MAX_WRITE_TASKS = 4096
"""Tasks that write the column; each has some fragments."""
