"""A table of a lake: its versions, contract, columns, indexes and files, beside its rows (`reader`, `writer`).

Methods that change a table run a job. They return its run: ended, or with `wait=False` as it goes on. With `submit` a
worker of the server runs the job, else this process does. What is left out has the default that `tiltyard job … --help`
tells of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

import lance_namespace as upstream
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.calls.suggested_classifications import Suggestion, suggest_classifications
from tiltyard.lake.classifications import Classification
from tiltyard.lake.errors import translate
from tiltyard.lake.functions import Function, column_function, function_name, pickled_function
from tiltyard.lake.operations.guesses import Tags
from tiltyard.lake.operations.schedules import Duration, to_seconds
from tiltyard.lake.protections import Protections
from tiltyard.lake.runs import start_run
from tiltyard.lake.tables.arguments import (
    DataType,
    Names,
    call_arguments,
    index_parameters,
    json_type,
    list_names,
    list_texts,
    name_type,
    present,
)
from tiltyard.lake.tables.contracts import Clients, OnFailure, TableContract
from tiltyard.lake.tables.writer import TableWriter
from tiltyard.model.columns.computed_columns import UdfDeclaration
from tiltyard.model.columns.index_types import check_parameter_names
from tiltyard.model.schemas.type_names import parse_type
from tiltyard.model.text.typed_ids import parse_typed_id
from tiltyard.pipeline.backfill.new_column import declare_column
from tiltyard.pipeline.backfill.parked import parked_rows
from tiltyard.pipeline.session import LazySession

if TYPE_CHECKING:
    from datetime import datetime

    import lance
    from pyspark.sql import DataFrame

    from tiltyard.lake.runs import Run
    from tiltyard.lake.session import LakeSession
    from tiltyard.lake.tables.changes import Changes
    from tiltyard.pipeline.functions.call_options import CallOptions
    from tiltyard.pipeline.runs import LocalRun

_VERSION = {"version": "version"}
"""The figure of a run, by the field of a response."""


class Table(TableWriter):
    """A table, or a view. It need not exist yet: `ingest` creates it."""

    def restore(self, version: int | str) -> None:
        """Make a new version with the rows and columns of an older one, by its number or tag.

        Raises TableVersionNotFoundError, TableTagNotFoundError.
        """
        self._check_change("restore")
        self._lake.calls.call("RestoreTable", id=list(self.path), version=self._version_at(version))

    def rename(self, name: str) -> Table:
        """Rename the table within its namespace, or move it to another one by an id (`shop.movies`); return it.

        Raises InvalidInputError, TableAlreadyExistsError, TableNotFoundError, NamespaceNotFoundError.
        """
        self._check_change("rename")
        try:
            names = tuple(parse_typed_id(name))
        except (ValueError, TypeError) as error:
            raise InvalidInputError(f"name: {error}") from error
        if not names:
            raise InvalidInputError("name is empty: name a table.")
        path = names if len(names) > 1 else (*self.path[:-1], *names)
        self._lake.calls.call(
            "RenameTable", id=list(self.path), new_table_name=path[-1], new_namespace_id=list(path[:-1])
        )
        return type(self)(self._lake, path)

    def set_max_age(self, max_age: Duration | None) -> None:
        """Say how old the table may be (seconds, "6h", a timedelta), None for any age: an older one is stale.

        Its age is counted from its last commit, that of a view from its last refresh. Raises InvalidInputError,
        TableNotFoundError.
        """
        self._check_change("set_max_age")
        with translate():
            seconds = to_seconds(max_age)
            self._lake.calls.call("SetTableMaxAge", id=list(self.path), max_age_seconds=seconds)

    def is_stale(self) -> bool:
        """Return whether the table is older than it may be, where that was said. Raises TableNotFoundError."""
        found = self._lake.calls.call("ListTableAges", table="$".join(self.path))["tables"]
        return any(each["stale"] for each in found)

    @property
    def protections(self) -> Protections:
        """Return what protects the table: `protections.set("hold", reason="case 4711")`, `.list()`, `.lift("hold")`."""
        return Protections(self._lake.calls, "table", self.path)

    def drop(self) -> None:
        """Drop the table; `tiltyard undrop` restores it for a while. Raises TableNotFoundError."""
        self._check_change("drop")
        self._table.client.drop_table(upstream.DropTableRequest(id=list(self.path)))

    # Versions

    @property
    def tags(self) -> Tags:
        """Return the tags of the table: `tags.list()`, `tags.create("release", 3)`."""
        return Tags(self._lake.calls, self.path, self._check_change)

    def at(self, moment: int | str | datetime) -> SnapshotTable:
        """Return the table to read as it was: at a version, at a tag, or at a moment, by the version newest then.

        Raises TableTagNotFoundError, TableVersionNotFoundError (none is as old), InvalidInputError.
        """
        return SnapshotTable(self._lake, self.path, self._version_at(moment))

    # Classifications

    def classify(self, key: str, value: str = "", *, column: str | None = None) -> None:
        """Say what the table, or a column of it, holds: `classify("pii", "email", column="mail")`.

        It takes the place of an earlier value of the key. Raises InvalidInputError, TableColumnNotFoundError,
        PermissionDeniedError.
        """
        self._check_change("classify")
        kind = present(object_kind="table" if column is None else "column", column=column)
        self._lake.calls.call("SetClassification", id=list(self.path), key=key, value=value, **kind)

    def unclassify(self, key: str, *, column: str | None = None) -> None:
        """Take back what `classify` has said; what is inherited stays.

        Raises InvalidInputError, PermissionDeniedError.
        """
        self._check_change("unclassify")
        kind = present(object_kind="table" if column is None else "column", column=column)
        self._lake.calls.call("UnsetClassification", id=list(self.path), key=key, **kind)

    def classifications(self) -> list[Classification]:
        """Return what the table and its columns are classified as, inherited values included."""
        listed = self._lake.calls.call("ListClassifications", object_kind="table", id=list(self.path))
        return [Classification.of(each) for each in listed["classifications"]]

    def suggest_classifications(self, rows: int = 1_000) -> list[Suggestion]:
        """Propose classifications of columns, by forms of values in a sample of rows and by names. Nothing is set.

        Raises InvalidInputError, TableNotFoundError.
        """
        return suggest_classifications(self._lake.calls, self.path, rows)

    # Contracts

    def set_contract(
        self, checks: Names, *, on_failure: OnFailure = "fail", clients: Clients = "check"
    ) -> TableContract:
        """Say what rows have to be, in place of an earlier contract: it holds for every write from now on.

        `checks` are `not_null(a)`, `between(a, 0, 1)`, `in_set(a, x, y)`, `matches(a, [A-Z]+)`, `expect(price >= 0)`
        with a condition in SQL, …; `warn: ` or `test: ` before one only counts, or is for tests alone. What fails is
        refused, parked (`reject`) or counted (`warn`). With clients="refuse", commits of clients that write files
        themselves are refused, those of jobs included, and not read. Raises InvalidInputError,
        TableSchemaValidationError (rows that are there fail), UnsupportedOperationError.
        """
        self._check_change("set_contract")
        names = list_texts(checks, "checks")
        fields: dict[str, Any] = {"checks": names, "on_failure": on_failure, "clients": clients}
        return TableContract.of(self._lake.calls.call("SetTableContract", id=list(self.path), **fields))

    def drop_contract(self) -> None:
        """Enforce the contract no longer. Raises InvalidInputError: there is none."""
        self._check_change("drop_contract")
        self._lake.calls.call("DropTableContract", id=list(self.path))

    # Columns, indexes, files

    def drop_columns(self, columns: Names, *, branch: str | None = None, allow_breaking: bool = False) -> Run:
        """Drop columns; earlier versions keep them. Raises TableColumnNotFoundError, InvalidInputError.

        Columns that policies, views or contracts of other tables read are not dropped, unless you `allow_breaking`.
        """
        fields = {"columns": list_names(columns, "columns"), "allow_breaking": allow_breaking or None}
        return self._change("drop_columns", "AlterTableDropColumns", _VERSION, branch=branch, **fields)

    def alter(
        self,
        column: str,
        *,
        rename: str | None = None,
        type: DataType | None = None,  # noqa: A002  # as of `add_column`
        nullable: bool | None = None,
        branch: str | None = None,
        allow_breaking: bool = False,
    ) -> Run:
        """Rename a column, cast it to another type, or say whether it may be null.

        One that policies, views or contracts of other tables read keeps its name and type, unless you `allow_breaking`.
        Raises TableColumnNotFoundError, InvalidInputError.
        """
        data_type = None if type is None else json_type(type)
        entry = present(path=column, rename=rename, data_type=data_type, nullable=nullable)
        if len(entry) == 1:
            raise InvalidInputError("Give what to alter: rename, type or nullable.")
        fields: dict[str, Any] = {"alterations": [entry], "allow_breaking": allow_breaking or None}
        return self._change("alter", "AlterTableAlterColumns", _VERSION, branch=branch, **fields)

    def drop_index(self, name: str, *, branch: str | None = None) -> None:
        """Drop an index by its name (`list_indices`). Raises TableIndexNotFoundError."""
        self._check_change("drop_index")
        self._lake.calls.call("DropTableIndex", id=list(self.path), index_name=name, branch=branch)

    def add_column(
        self,
        name: str,
        function: Function,
        *,
        inputs: Names | None = None,
        type: DataType | None = None,  # noqa: A002  # as in the command
        version: str | None = None,
        branch: str | None = None,
        wait: bool = True,
    ) -> Run:
        """Add a column that `backfill` computes, now and whenever values are missing or stale.

        `function` is called with a pyarrow.RecordBatch of the columns `inputs`, and returns an array of `type` (such as
        `int32`, `float32[128]`), of Arrow or numpy, or a list. Or it is called with the values of each row, and its
        hints name columns and type: `def letters(title: str) -> int`. One of `tiltyard.functions` has a type of its
        own. It is tried on a few rows first. It is stored
        with the column, pickled: values of another function, or `version` of it ("1" by default), are stale. Or it is
        an SQL expression over the other columns, without inputs, type and version. A server stores functions, and
        workers run them, where its setting `udfs` allows it. Raises InvalidInputError, UnsupportedOperationError, and
        as `Run.wait` does.
        """
        self._check_change("add_column")
        if isinstance(function, str):
            if inputs is not None or type is not None:
                raise InvalidInputError(
                    "function is an SQL expression, which names its columns and has a type of its own: leave inputs "
                    "and type out. A function is given itself, not by its name."
                )
            if version is not None:
                raise InvalidInputError("version is that of a function, and an SQL expression has none: leave it out.")
            work = partial(self._declare_expression, name, function, branch)
        else:
            with translate():
                kind = parse_type(type) if isinstance(type, str) else type
                function, columns, kind = column_function(function, list_names(inputs, "inputs"), kind)
            if kind is None or not columns:
                raise InvalidInputError(
                    "A function needs inputs, the columns that it reads, and the type of its values; or hints that "
                    "name them, as in def letters(title: str) -> int."
                )
            field = pa.field(name, kind)
            code = pickled_function(function)
            title = getattr(function, "__name__", "function")
            declaration = UdfDeclaration(name=title, version=version or "1", code=code, inputs=tuple(columns))
            work = partial(self._declare_function, field, declaration, branch)
        run = start_run("add_column", work)
        return run.wait() if wait else run

    def backfill(
        self,
        column: str,
        udf: Function | None = None,
        *,
        inputs: Names | None = None,
        type: DataType | None = None,  # noqa: A002  # as in the command
        filter: str | None = None,  # noqa: A002  # Lance's own name
        udf_version: str | None = None,
        rejects: str | os.PathLike[str] | None = None,
        branch: str | None = None,
        concurrency: int | None = None,
        batch_rows: int | None = None,
        rows_per_task: int | None = None,
        parked: bool | None = None,
        wait: bool = True,
        submit: bool | None = None,
        **call: Unpack[CallOptions],
    ) -> Run:
        """Compute the values of a column that are missing or stale.

        Of a column that `add_column` has declared, its name is enough. `udf` computes any column from its `inputs`, as
        a function of a pyarrow.RecordBatch that returns an array, or one of a row's values, whose hints name inputs
        and type; with a type (`int32`, `float32[128]`) a column that the table lacks is added. A row that the function
        fails on fails the run; with `on_error="null"` or `"park"` it is null, and computed again by the next backfill.
        `errors` has those that are parked, `parked=True` computes them alone; `rejects` is a folder for them. The
        options of calls are `tiltyard.CallOptions`. Raises InvalidInputError, TableColumnNotFoundError, and as
        `Run.wait` does.
        """
        columns = list_names(inputs, "inputs")
        if callable(udf):
            with translate():
                kind = parse_type(type) if isinstance(type, str) else type
                udf, columns, type = column_function(udf, columns, kind)  # noqa: A001  # as in the command
        arguments = present(
            column=column, udf=None if udf is None else function_name(udf, "udf"), inputs=columns,
            type=name_type(type), filter=filter, udf_version=udf_version, branch=branch, concurrency=concurrency,
            rejects=rejects, batch_rows=batch_rows, rows_per_task=rows_per_task, parked=parked, **call_arguments(call),
        )  # fmt: skip
        return self._run("backfill", arguments, wait=wait, submit=submit)

    def errors(self, column: str, *, branch: str | None = None) -> pa.Table:
        """Return the rows of a column that backfills have parked, and that have no value yet, with their errors.

        The columns are `_rowid`, `error_type`, `error_message`, `job`, and those of the table. Raises
        TableColumnNotFoundError, TableNotFoundError.
        """
        return parked_rows(self._lake.calls, self._table, self.dataset(branch=branch), column)

    def create_index(
        self,
        column: str,
        type: str | None = None,  # noqa: A002  # as in the command
        *,
        index_type: str | None = None,
        name: str | None = None,
        metric: str | None = None,
        replace: bool = False,
        branch: str | None = None,
        wait: bool = True,
        submit: bool | None = None,
        **parameters: Any,
    ) -> Run:
        """Build an index of a column (BTREE by default, BITMAP, FTS, IVF_PQ, …), on the whole cluster.

        `index_type` is lancedb's name of `type`. `metric` is that of a vector index: l2, cosine, dot or hamming.
        `parameters` are those that CreateTableIndex has for the type (`num_partitions=256`). Raises InvalidInputError,
        for a parameter that the type does not have, too, and as `Run.wait` does.
        """
        if type is not None and index_type is not None and type != index_type:
            raise InvalidInputError(f"type is {type} and index_type is {index_type}: they are the same, give one.")
        kind = type or index_type or "BTREE"
        check_parameter_names(kind, [*parameters, *(["metric"] if metric is not None else [])])
        arguments = present(
            column=column, type=kind, name=name, metric=metric, replace=replace or None, branch=branch,
            parameters=index_parameters(parameters),
        )  # fmt: skip
        return self._run("index", arguments, wait=wait, submit=submit)

    def optimize(
        self,
        *,
        rows_per_fragment: int | None = None,
        compact: bool | None = None,
        indexes: bool | None = None,
        keep_versions_days: float | None = None,
        wait: bool = True,
        submit: bool | None = None,
    ) -> Run:
        """Compact small fragments, add new rows to the indexes, and have old versions removed. Raises as `Run.wait`."""
        arguments = present(
            rows_per_fragment=rows_per_fragment, compact=compact, indexes=indexes, keep_versions_days=keep_versions_days
        )
        return self._run("optimize", arguments, wait=wait, submit=submit)

    def deduplicate(
        self,
        on: str,
        *,
        method: Literal["exact", "minhash", "vector"] = "minhash",
        threshold: float | None = None,
        into: str | None = None,
        id: str | None = None,  # noqa: A002  # as in the command
        order_by: Names | None = None,
        shingle: int | None = None,
        metric: Literal["cosine", "l2"] | None = None,
        wait: bool = True,
        submit: bool | None = None,
    ) -> Run:
        """Find duplicates by a column, and fill the column `into` with the id of the row that each is a duplicate of.

        "exact" takes equal values for duplicates, "minhash" texts of whose shingles, runs of `shingle` characters, at
        least `threshold` (0.8) are common (Jaccard), "vector" vectors whose distance by `metric` (cosine, l2) is up to
        `threshold` (0.05). `into` ("duplicate_of") is null for the first row of each group, by `order_by` ("year",
        "year:desc") and the column `id`, the primary key by default, and for rows without duplicates. Another run
        hashes new and changed rows alone. Raises InvalidInputError, TableColumnNotFoundError, and as `Run.wait` does.
        """
        arguments = present(
            on=on, method=method, threshold=threshold, into=into, id=id, order_by=list_names(order_by, "order_by"),
            shingle=shingle, metric=metric,
        )  # fmt: skip
        return self._run("deduplicate", arguments, wait=wait, submit=submit)

    def export(
        self,
        destination: str | os.PathLike[str],
        *,
        format: str = "parquet",  # noqa: A002  # as of `ingest`
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        columns: Names | None = None,
        compression: str | None = None,
        rows_per_file: int | None = None,
        wait: bool = True,
        submit: bool | None = None,
    ) -> Run:
        """Write a version of the table as Parquet files into an empty folder, local or of an object store.

        Raises InvalidInputError, and as `Run.wait` does.
        """
        arguments = present(
            destination=destination, format=format, version=version, tag=tag, branch=branch, filter=filter,
            columns=list_names(columns, "columns"), compression=compression, rows_per_file=rows_per_file,
        )  # fmt: skip
        return self._run("export", arguments, wait=wait, submit=submit)

    def _declare_expression(self, name: str, expression: str, branch: str | None, _: LocalRun) -> Mapping[str, object]:
        entry = {"name": name, "computed": expression}
        response: Mapping[str, object] = self._lake.calls.call(
            "AlterTableAddColumns", id=list(self.path), branch=branch, new_columns=[entry]
        )
        return response

    def _declare_function(
        self, field: pa.Field, declaration: UdfDeclaration, branch: str | None, run: LocalRun
    ) -> Mapping[str, object]:
        return {
            "version": declare_column(
                run, self._table, LazySession(lambda: self._lake.spark), field, declaration, branch
            )
        }


class SnapshotTable(Table):
    """A table in one version, of a snapshot or of `Table.at`: it is read, and nothing changes it."""

    def __init__(self, lake: LakeSession, path: tuple[str, ...], version: int, snapshot: str | None = None) -> None:
        super().__init__(lake, path)
        self._version = version
        self._title = "What at() has returned" if snapshot is None else f"The snapshot '{snapshot}'"

    @property
    def version(self) -> int:
        """Return the number of the version."""
        return self._version

    def dataset(
        self, *, version: int | None = None, tag: str | None = None, branch: str | None = None
    ) -> lance.LanceDataset:
        """Open the version of the snapshot. Raises InvalidInputError for any other, TableNotFoundError."""
        self._check_version(version, tag, branch)
        return super().dataset(version=self._version)

    def to_spark(self, *args: Any, **options: Any) -> DataFrame:
        """Return the rows as a DataFrame of Spark. Arguments and errors are those of `Table.to_spark`."""
        return super().to_spark(*args, **{"version": self._version, **options})

    def export(self, *args: Any, **options: Any) -> Run:
        """Write the rows as Parquet files. Arguments and errors are those of `Table.export`."""
        return super().export(*args, **{"version": self._version, **options})

    def changes(self, since: int | str, until: int | str | None = None, **options: Any) -> Changes:
        """Return what changed up to the version of the snapshot. Arguments and errors are those of `Table.changes`."""
        return super().changes(since, self._version if until is None else until, **options)

    def _request(
        self, *, version: int | None = None, tag: str | None = None, branch: str | None = None
    ) -> dict[str, Any]:
        self._check_version(version, tag, branch)
        return super()._request(version=self._version)

    def _check_version(self, version: int | None, tag: str | None, branch: str | None) -> None:
        if tag is not None or branch is not None or version not in (None, self._version):
            raise InvalidInputError(
                f"{self._title} has version {self._version} of {self.name}: leave version, tag and branch out, or read "
                "the lake's own table."
            )

    def _check_change(self, method: str) -> None:
        raise InvalidInputError(
            f"A snapshot is immutable, and {method} changes it: change the table {self.name} of the lake itself."
        )
