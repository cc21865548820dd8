"""A table of a lake: read it, write it, and run the jobs of the pipeline on it.

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

from tiltyard.lake.arguments import (
    DataType,
    Names,
    RowOptions,
    call_arguments,
    index_parameters,
    list_names,
    name_type,
    present,
    write_arguments,
    write_options,
)
from tiltyard.lake.errors import translate
from tiltyard.lake.functions import Function, function_name, pickled_function
from tiltyard.lake.runs import start_run
from tiltyard.lake.sources import Jdbc, Source, is_frame, open_stream, path_of
from tiltyard.lake.table_reader import TableReader
from tiltyard.model.columns.computed_columns import UdfDeclaration
from tiltyard.model.columns.index_types import check_parameter_names
from tiltyard.pipeline.backfill.declaration import declare_column
from tiltyard.pipeline.backfill.parked import parked_rows
from tiltyard.pipeline.lineage import frame_sources, memory_source
from tiltyard.pipeline.openlineage.emitter import observe, record_frame
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.sources.types import parse_type
from tiltyard.pipeline.writing.row_sources import FrameRows, StreamRows
from tiltyard.pipeline.writing.write_job import RowSource, write_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tiltyard.lake.runs import Run
    from tiltyard.pipeline.functions.call_options import CallOptions
    from tiltyard.pipeline.runs import LocalRun

Mode = Literal["create", "append", "overwrite"]
_NO_WORKER = "rows of this process cannot be read by a worker"


class Table(TableReader):
    """A table, or a view. It need not exist yet: `ingest` creates it."""

    # Write

    def ingest(
        self,
        source: Source,
        *,
        mode: Mode = "create",
        wait: bool = True,
        submit: bool | None = None,
        **options: Unpack[RowOptions],
    ) -> Run:
        """Write the rows of a source in one commit: nothing is visible until all are written and checked.

        `source` is a path or URI of files, a DataFrame of Spark, or rows that Arrow can read (`tiltyard.lake.sources`).
        `mode` is "create" (an error if the table has a version), "append" (rows are added to a table that exists, in
        its columns and types) or "overwrite" (a new version replaces all rows and columns, or is the first). Rows pass
        through `select`, `rename` (old to new), `cast` (a type by column), then `udf`, a function of a
        pyarrow.RecordBatch that returns one; `null` names columns that the source lacks. A row that does not fit fails
        the run, unless `rejects` is a folder for such rows. `checks` are `rows >= 9`, `not_null(a)`,
        `between(a, 0, 1)`, `unique(a)`, …; the figure `checks` reports on them. `tiltyard.CallOptions` say how the
        function is called, `tiltyard.FileOptions` how files are read. Raises InvalidInputError,
        TableAlreadyExistsError, TableNotFoundError (to append to), and as `Run.wait` does.
        """
        return self._write("ingest", source, {"mode": mode}, write_arguments(options), wait=wait, submit=submit)

    def write(self, source: Source, *, mode: Mode = "append", **options: Any) -> Run:
        """Append rows to a table that exists: `ingest`, with its modes, options and errors, but another default."""
        return self.ingest(source, mode=mode, **options)

    def upsert(
        self,
        source: Source,
        *,
        on: Names,
        wait: bool = True,
        submit: bool | None = None,
        **options: Unpack[RowOptions],
    ) -> Run:
        """Replace the rows whose key (`on`) the source has, and insert its other rows, in one commit.

        The options are those of `ingest`. A key that is null, or twice in the source, fails the run; with `rejects`,
        rows whose key is null are set aside. Raises InvalidInputError, TableNotFoundError, and as `Run.wait` does.
        """
        keys = list_names(on, "on")
        return self._write("upsert", source, {"on": keys}, write_arguments(options), wait=wait, submit=submit)

    def delete(self, filter: str, *, wait: bool = True, submit: bool | None = None) -> Run:  # noqa: A002  # Lance's own name
        """Delete the rows that meet an SQL condition, in one commit. Raises InvalidInputError, TableNotFoundError."""
        return self._run("delete", {"filter": filter}, wait=wait, submit=submit)

    def drop(self) -> None:
        """Drop the table; `tiltyard undrop` restores it for a while. Raises TableNotFoundError."""
        self._table.client.drop_table(upstream.DropTableRequest(id=list(self.path)))

    # Columns, indexes, files

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
        `int32`, `float32[128]`); it is tried on a few rows first. It is stored with the column, pickled: values of
        another function, or `version` of it ("1" by default), are stale. Or it is an SQL expression over the other
        columns, without inputs, type and version. A server stores functions, and workers run them, where its setting
        `udfs` allows it. Raises InvalidInputError, UnsupportedOperationError, and as `Run.wait` does.
        """
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
            if type is None or not inputs:
                raise InvalidInputError(
                    "A function needs inputs, the columns that it reads, and the type of its values."
                )
            with translate():
                field = pa.field(name, parse_type(type))
            code = pickled_function(function)
            columns = tuple(list_names(inputs, "inputs") or ())
            title = getattr(function, "__name__", "function")
            declaration = UdfDeclaration(name=title, version=version or "1", code=code, inputs=columns)
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
        a function of a pyarrow.RecordBatch that returns an array; with `type` (`int32`, `float32[128]`) a column that
        the table lacks is added. A row that the function fails on fails the run; with `on_error="null"` or `"park"` it
        is null, and computed again by the next backfill. `errors` has those that are parked, `parked=True` computes
        them alone; `rejects` is a folder for them. The options of calls are `tiltyard.CallOptions`. Raises
        InvalidInputError, TableColumnNotFoundError, and as `Run.wait` does.
        """
        arguments = present(
            column=column, udf=None if udf is None else function_name(udf, "udf"), inputs=list_names(inputs, "inputs"),
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

    def _run(self, job: str, arguments: Mapping[str, Any], *, wait: bool, submit: bool | None) -> Run:
        return self._lake.run_job(job, {"table": str(self._table), **arguments}, wait=wait, submit=submit)

    def _write(
        self,
        job: str,
        source: Source,
        own: Mapping[str, Any],
        arguments: Mapping[str, Any],
        *,
        wait: bool,
        submit: bool | None,
    ) -> Run:
        """Write the rows of a source by a job; those of this process in a run without a record."""
        named = {**own, **arguments, "table": str(self._table)}
        if (path := path_of(source)) is not None:
            return self._lake.run_job(job, {"source": path, **named}, wait=wait, submit=submit)
        self._lake.check_arguments(job, {"source": "", **named})
        with translate():
            mode = own.get("mode", "append")
            options = write_options(arguments, type(source).__name__, mode, own.get("on"))
            rows = self._open(source)

        def write(run: Any) -> Mapping[str, object]:
            if isinstance(rows, FrameRows):
                record_frame(run, str(self._table), rows.frame, {}, named)
            return write_source(run, rows, self._table, options, job)

        def observed(run: LocalRun) -> Mapping[str, object]:
            return observe(job, run, self._lake.catalog, named, write)

        return self._lake.run_here(job, observed, wait=wait, submit=submit, why=_NO_WORKER)

    def _open(self, source: Source) -> RowSource:
        """Return the rows of a source that is no files. Raises InvalidInputError."""
        if isinstance(source, Jdbc):
            return FrameRows((memory_source(source),), source.read(self._lake.spark))
        if is_frame(source):
            frame: DataFrame = source  # type: ignore[assignment]  # by the name of its class
        elif hasattr(source, "to_spark") and type(source).__module__.startswith("pyspark.pandas"):
            frame = source.to_spark()
        else:
            return StreamRows((memory_source(source),), open_stream(source), lambda: self._lake.spark)
        return FrameRows(frame_sources(frame, self._lake.catalog), frame)
