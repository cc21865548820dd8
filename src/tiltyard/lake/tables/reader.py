"""A table of a lake as its readers have it: its rows, columns, versions, changes and lineage."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import lance_namespace as upstream
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.calls.searches import SearchOptions, find_rows, resolve_version
from tiltyard.lake.display import render_fields
from tiltyard.lake.errors import naming, translate
from tiltyard.lake.lineage import Lineage, read_lineage
from tiltyard.lake.operations.guesses import TABLE_GUESSES, Guess, Guessing
from tiltyard.lake.tables.arguments import Names, check_moment, check_whole_number, list_names
from tiltyard.lake.tables.changes import Changes
from tiltyard.lake.tables.contracts import TableContract, TestResult
from tiltyard.model.lineage import DEFAULT_DEPTH
from tiltyard.model.text.typed_ids import TypedId, format_id
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.table_changes import open_feed

if TYPE_CHECKING:
    import lance
    import pandas as pd
    import polars as pl  # type: ignore[import-not-found]  # not installed with this package
    from pyspark.sql import DataFrame

    from tiltyard.lake.session import LakeSession


ALL_ROWS = 2**63 - 1
SEARCH_ROWS = 10
READ_BY_SERVER = (PermissionDeniedError, catalog_client.NoFilesError)
"""Why rows are not read from files: a policy binds the caller, or the table is a plain view."""


class TableReader(Guessing):
    """What reads a table, or a view; it need not exist yet.

    Rows are read from the table's files. Where a policy binds the caller, who may not read these, and of a plain view,
    which has none, the server returns the rows.
    """

    guesses: ClassVar[Mapping[str, Guess]] = TABLE_GUESSES

    def __init__(self, lake: LakeSession, path: tuple[str, ...]) -> None:
        self._lake = lake
        self.path = path

    @property
    def name(self) -> str:
        """Return the table's id (`films`, `shop.orders`)."""
        return format_id(self.path)

    def exists(self) -> bool:
        """Return whether the table exists, also one that is only declared."""
        try:
            self._table.client.table_exists(upstream.TableExistsRequest(id=list(self.path)))
        except TableNotFoundError:
            return False
        return True

    def dataset(
        self, *, version: int | None = None, tag: str | None = None, branch: str | None = None
    ) -> lance.LanceDataset:
        """Open the table with pylance; commits go through the catalog.

        Raises TableNotFoundError, InvalidTableStateError (it is only declared), TableVersionNotFoundError,
        TableTagNotFoundError, TableBranchNotFoundError.
        """
        if version is not None and tag is not None:
            raise InvalidInputError("version and tag both name what to read: leave one out.")
        return self._table.dataset(version if version is not None else tag, branch)

    @property
    def contract(self) -> TableContract | None:
        """Return the contract, with the latest results of its checks; None without one. Raises TableNotFoundError."""
        described = self._lake.calls.call("DescribeTableContract", id=list(self.path))
        return TableContract.of(described) if described["checks"] else None

    def test(self, *, version: int | None = None, branch: str | None = None) -> TestResult:
        """Test the rows by all checks of the contract; the result is false if one fails that does not only warn.

        Raises InvalidInputError (no contract), TableNotFoundError, TableVersionNotFoundError.
        """
        fields: dict[str, Any] = {"version": version, "branch": branch}
        tested = self._lake.calls.call("TestTable", id=list(self.path), **fields)
        return TestResult(tested["passed"], tested["version"], tuple(tested["results"]))

    @property
    def schema(self) -> pa.Schema:
        """Return the columns. Raises as `dataset` does."""
        try:
            return self.dataset().schema
        except READ_BY_SERVER:
            return self._lake.calls.readable_schema(self.path)

    @property
    def version(self) -> int:
        """Return the number of the newest version; 0 for a table that is only declared. Raises TableNotFoundError."""
        return self._table.latest_version()

    def count(
        self,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
    ) -> int:
        """Count the rows, or those that meet an SQL condition. Raises InvalidInputError, and as `dataset` does."""
        try:
            dataset = self.dataset(version=version, tag=tag, branch=branch)
        except READ_BY_SERVER:
            request = self._request(version=version, tag=tag, branch=branch)
            return int(self._lake.calls.call("CountTableRows", predicate=filter, **request))
        with naming("filter"):
            return dataset.count_rows(filter)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True  # without rows, too

    def to_batches(
        self,
        columns: Names | None = None,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        limit: int | None = None,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
    ) -> pa.RecordBatchReader:
        """Return rows as they are read, batch by batch. Raises InvalidInputError, and as `dataset` does."""
        names = list_names(columns, "columns")
        try:
            dataset = self.dataset(version=version, tag=tag, branch=branch)
        except READ_BY_SERVER:
            request = self._request(version=version, tag=tag, branch=branch)
            chosen = {} if names is None else {"columns": {"column_names": names}}
            limit = ALL_ROWS if limit is None else limit
            return self._lake.calls.read("QueryTable", k=limit, vector={}, filter=filter, **chosen, **request)
        with naming("columns or filter"):
            return dataset.scanner(columns=names, filter=filter, limit=limit).to_reader()

    def to_arrow(
        self,
        columns: Names | None = None,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        limit: int | None = None,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
    ) -> pa.Table:
        """Read rows into memory. Raises InvalidInputError, and as `dataset` does."""
        reader = self.to_batches(columns, filter, limit=limit, version=version, tag=tag, branch=branch)
        with naming("columns or filter"):
            return reader.read_all()

    def to_pandas(self, columns: Names | None = None, filter: str | None = None, **options: Any) -> pd.DataFrame:  # noqa: A002  # Lance's own name
        """Read rows into a frame of pandas; arguments and errors are those of `to_arrow`."""
        return self.to_arrow(columns, filter, **options).to_pandas()

    def to_polars(self, columns: Names | None = None, filter: str | None = None, **options: Any) -> pl.DataFrame:  # noqa: A002  # Lance's own name
        """Read rows into a frame of polars; arguments and errors are those of `to_arrow`."""
        rows = self.to_batches(columns, filter, **options)
        import polars as pl  # noqa: PLC0415  # not installed with this package

        return pl.DataFrame(rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows as Arrow's interface has them: pa.table, polars and DuckDB take the table itself."""
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def head(self, rows: int = 5) -> pa.Table:
        """Read the first rows. Raises as `dataset` does."""
        return self.to_arrow(limit=rows)

    def sample(self, rows: int = 5, *, columns: Names | None = None, seed: int | None = None) -> pa.Table:
        """Read rows that are chosen at random, each once, all of a smaller table; with a `seed` the same each time.

        Where the server returns the rows, all of them are read. Raises InvalidInputError, and as `dataset` does.
        """
        check_whole_number(rows, "rows")
        total = self.count()
        chosen = sorted(random.Random(seed).sample(range(total), max(0, min(rows, total))))  # noqa: S311  # no secret
        names = list_names(columns, "columns")
        if not chosen:
            return self.to_arrow(columns, limit=0)
        try:
            dataset = self.dataset()
        except READ_BY_SERVER:
            return _take(self.to_batches(columns), chosen)
        with naming("columns"):
            return dataset.take(chosen, names)

    def search(
        self,
        query: str | Sequence[float],
        k: int = SEARCH_ROWS,
        *,
        where: str | None = None,
        columns: Names | None = None,
        text: str | None = None,
        text_columns: Names | None = None,
        vector_column: str | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
    ) -> pa.Table:
        """Return the `k` rows nearest to a vector, best first, or those in which a text stands, by a full-text index.

        A vector with a `text` finds by both, joined by their ranks. `where` selects rows before the search. `metric`,
        `nprobes`, `refine_factor` and `ef` are of the search by vector. Rows have `_distance`, `_score` or
        `_relevance_score`. Raises InvalidInputError, TableNotFoundError, TableTagNotFoundError.
        """
        is_text = isinstance(query, str)
        tuning = {"distance_type": metric, "nprobes": nprobes, "refine_factor": refine_factor, "ef": ef}
        given = {name: value for name, value in tuning.items() if value is not None}
        if is_text and (text is not None or given or vector_column is not None):
            raise InvalidInputError("query is a text: text, vector_column, metric, nprobes, … are of a vector.")
        if text_columns is not None and not is_text and text is None:
            raise InvalidInputError("text_columns are of a text, and there is none: leave them out.")
        request = self._request(version=version, tag=tag, branch=branch)
        number = request["version"]
        sought = SearchOptions(
            text=query if isinstance(query, str) else text,
            vector=None if isinstance(query, str) else _vector(query),
            vector_column=vector_column,
            text_columns=list_names(text_columns, "text_columns") or (),
            limit=k,
            columns=list_names(columns, "columns") or (),
            with_vectors=True,
            where=where,
            version=None if number is None else str(number),
            branch=branch,
            tuning=given,
        )
        return find_rows(self._lake.calls, TypedId(self.path), sought).read_all()

    def list_indices(self) -> list[dict[str, Any]]:
        """Return the indexes, as ListTableIndices describes them. Raises TableNotFoundError."""
        return list(self._lake.calls.entries("ListTableIndices", "indexes", **self._request()))

    def versions(self, limit: int | None = None, *, branch: str | None = None) -> list[dict[str, Any]]:
        """Return the versions, newest first: `version`, `timestamp`, and in `metadata` what each did to the rows.

        Raises TableNotFoundError, TableBranchNotFoundError.
        """
        check_whole_number(limit, "limit")
        return list(islice(self._list_versions(branch, load_changes=True), limit))

    def _list_versions(self, branch: str | None = None, **options: Any) -> Iterator[dict[str, Any]]:
        request = {**self._request(branch=branch), "version": None, "descending": True, "limit": 1000, **options}
        for entry in self._lake.calls.entries("ListTableVersions", "versions", **request):
            yield {
                "version": entry["version"],
                "timestamp": datetime.fromtimestamp(entry["timestamp_millis"] / 1000, UTC),
                "metadata": entry.get("metadata") or {},
            }

    def _version_at(self, moment: int | str | datetime) -> int:
        """Return the version of a number, of a tag, or that was the newest at a moment. Raises as `Table.at` does."""
        if isinstance(moment, str):
            return int(resolve_version(self._lake.calls, self.path, moment) or 0)
        if not isinstance(moment, datetime):
            if moment is None:
                raise InvalidInputError("moment is None: give a version, a tag, or a time.")
            check_whole_number(moment, "moment")
            return moment
        check_moment(moment, "moment")
        newer = None
        for entry in self._list_versions():
            version = int(entry["version"])
            if entry["timestamp"] <= moment:
                if newer not in (None, version + 1):
                    raise TableVersionNotFoundError(f"The version of {self.name} of {moment.isoformat()} was removed.")
                return version
            newer = version
        raise TableVersionNotFoundError(f"{self.name} has no version as old as {moment.isoformat()}.")

    def _request(
        self, *, version: int | None = None, tag: str | None = None, branch: str | None = None
    ) -> dict[str, Any]:
        """Return what names the table and its version in a request. Raises InvalidInputError, TableTagNotFoundError."""
        if version is not None and tag is not None:
            raise InvalidInputError("version and tag both name what to read: leave one out.")
        number = version if tag is None else resolve_version(self._lake.calls, self.path, tag)
        return {"id": list(self.path), "version": number, "branch": branch}

    def to_spark(
        self,
        columns: Names | None = None,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        limit: int | None = None,
        partitions: int | None = None,
        batch_rows: int | None = None,
    ) -> DataFrame:
        """Return the rows as a DataFrame of Spark, of the version that the table has now.

        Columns and filter are applied where the files are read, by statistics and indexes. Raises InvalidInputError,
        SparkMissingError, and as `dataset` does.
        """
        dataset = self.dataset(version=version, tag=tag, branch=branch)  # an error of Spark would be a page of Java
        names = list_names(columns, "columns")
        with naming("columns or filter"):
            dataset.scanner(columns=names, filter=filter, limit=limit).projected_schema  # noqa: B018  # it is checked
        values = {
            "filter": filter, "version": version, "tag": tag, "branch": branch, "limit": limit,
            "partitions": partitions, "batch_rows": batch_rows,
        }  # fmt: skip
        options = {name: str(value) for name, value in values.items() if value is not None}
        return self._read_frame(options if names is None else {**options, "columns": json.dumps(names)})

    def changes(
        self,
        since: int | str,
        until: int | str | None = None,
        *,
        columns: Names | None = None,
        on: Names | None = None,
        branch: str | None = None,
    ) -> Changes:
        """Return the rows that were inserted, updated and deleted after a version or tag, up to another one.

        `until` is the newest version by default; `since=0` begins with the first rows. `on` are columns that identify
        a row, by default the primary key. Without a key, a table with stable row ids tells which rows an update
        changed; any other has deletions and insertions instead. Raises InvalidInputError, TableVersionNotFoundError
        (it was removed), TableTagNotFoundError, and as `dataset` does.
        """
        with translate():
            names, keys = list_names(columns, "columns"), list_names(on, "on")
            feed = open_feed(self._table, since, until, columns=names, on=keys, branch=branch)
        return Changes(self.name, feed, self._read_frame)

    def lineage(
        self,
        direction: Literal["upstream", "downstream"] = "upstream",
        *,
        depth: int = DEFAULT_DEPTH,
        column: str | None = None,
        version: int | None = None,
        branch: str | None = None,
    ) -> Lineage:
        """Return what the table was made from, or with `downstream` what was made from it, up to `depth` steps away.

        Of a `column`: what that was made from, or what was made from it; the edges have the columns of each step. Of a
        `version`: what that one was made from, or what was made from it and later ones. Raises InvalidInputError,
        TableNotFoundError, TableColumnNotFoundError.
        """
        return read_lineage(
            self._lake, id=list(self.path), direction=direction, depth=depth, version=version, branch=branch,
            column=column,
        )  # fmt: skip

    def _read_frame(self, options: Mapping[str, str]) -> DataFrame:
        """Return a DataFrame of the data source, with options besides the catalog's."""
        catalog = self._table.connection
        properties = dict(catalog.properties)
        named = {
            "uri": properties.pop("uri", None) or properties.pop("root"),
            "table": str(self._table),
            **{f"property.{name}": text for name, text in properties.items()},
            **{f"storage.{name}": text for name, text in catalog.storage},
        }
        return self._lake.spark.read.format("tiltyard").options(**named, **options).load()

    def __repr__(self) -> str:
        return f"<table {self.name} of {self._lake.location}>"

    def _repr_html_(self) -> str:
        if not self.exists():
            return render_fields(f"{self.name}: there is no such table yet", ())
        if not self.version:
            return render_fields(f"{self.name}: declared, without columns", ())
        dataset = self.dataset()
        title = f"{self.name}, version {dataset.version}: {dataset.count_rows()} rows"
        return render_fields(title, [(field.name, str(field.type)) for field in dataset.schema])

    @property
    def _table(self) -> catalog_client.Table:
        return catalog_client.table(self._lake.catalog, self.path)


def _take(reader: pa.RecordBatchReader, positions: Sequence[int]) -> pa.Table:
    """Return the rows at some positions, in ascending order, of all that are read."""
    taken, start, left = [], 0, list(positions)
    for batch in reader:
        here = [position - start for position in left if position < start + batch.num_rows]
        taken.append(batch.take(pa.array(here, pa.int64())))
        left, start = left[len(here) :], start + batch.num_rows
        if not left:
            break
    return pa.Table.from_batches(taken, reader.schema)


def _vector(values: Sequence[float]) -> list[float]:
    """Return a vector as requests have it. Raises InvalidInputError for what is none."""
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise InvalidInputError("query is a text, or a vector: a list or an array of numbers.") from error
