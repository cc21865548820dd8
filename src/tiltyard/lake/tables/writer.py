"""A table of a lake as its writers have it: rows from any source, by a job here or on a worker, or by an operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.lake.errors import translate
from tiltyard.lake.operations.guesses import MergeInsert
from tiltyard.lake.runs import ServerRun, start_run
from tiltyard.lake.tables.arguments import (
    Names,
    RowOptions,
    list_names,
    write_arguments,
    write_options,
)
from tiltyard.lake.tables.reader import TableReader
from tiltyard.lake.tables.sources import Jdbc, Source, is_frame, open_stream, path_of
from tiltyard.model.text.sql_text import sql_literal
from tiltyard.pipeline.lineage import frame_lineage, memory_source
from tiltyard.pipeline.openlineage.emitter import observe
from tiltyard.pipeline.writing.row_sources import FrameRows, StreamRows
from tiltyard.pipeline.writing.write_job import RowSource, write_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tiltyard.lake.runs import Run
    from tiltyard.pipeline.runs import LocalRun

Mode = Literal["create", "append", "overwrite"]
_NO_WORKER = "rows of this process cannot be read by a worker"
_READING = frozenset({"export"})
"""Jobs of a table that change nothing."""
_MERGED = {
    "version": "version",
    "rows": "num_rows",
    "updated": "num_updated_rows",
    "inserted": "num_inserted_rows",
    "deleted": "num_deleted_rows",
}
"""Figures of runs, by the fields of a response."""
_METHODS = {"index": "create_index"}
"""Jobs whose methods have another name."""


class TableWriter(TableReader):
    """What writes the rows of a table, and what runs the changes of `Table`."""

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

        `source` is a path or URI of files, a DataFrame of Spark, or rows that Arrow can read.
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

    @overload
    def upsert(
        self,
        source: Source,
        *,
        on: Names,
        must_exist: bool = ...,
        wait: bool = ...,
        submit: bool | None = ...,
        **options: Unpack[RowOptions],
    ) -> Run: ...

    @overload
    def upsert(
        self,
        source: Source,
        *,
        key: Names,
        must_exist: bool = ...,
        wait: bool = ...,
        submit: bool | None = ...,
        **options: Unpack[RowOptions],
    ) -> Run: ...

    def upsert(
        self,
        source: Source,
        *,
        on: Names | None = None,
        key: Names | None = None,
        must_exist: bool = False,
        wait: bool = True,
        submit: bool | None = None,
        **options: Unpack[RowOptions],
    ) -> Run:
        """Replace the rows whose key (`on`, or `key`) the source has, and insert its other rows, in one commit.

        Rows keep their values of columns that the source lacks, unless `null` names them; in new rows these are null.
        With `must_exist` a key that the table lacks fails the run. The options are those of `ingest`. A key that is
        null, or twice in the source, fails the run; with `rejects`, rows whose key is null are set aside. Raises
        InvalidInputError, TableNotFoundError, and as `Run.wait` does.
        """
        arguments = write_arguments(options)
        keys = list_names(_one_of(on=on, key=key), "on")
        own = {"on": keys, "must_exist": must_exist}
        return self._write("upsert", source, own, arguments, wait=wait, submit=submit)

    def merge_insert(self, on: Names | None = None) -> MergeInsert:
        """Return what merges rows by a key, the primary key by default: `execute` does it, as its methods have said."""
        self._check_change("merge_insert")
        return MergeInsert(list_names(on, "on"), self._merge)

    @overload
    def delete(self, filter: str, *, wait: bool = ..., submit: bool | None = ...) -> Run: ...

    @overload
    def delete(self, *, where: str, wait: bool = ..., submit: bool | None = ...) -> Run: ...

    def delete(
        self,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        where: str | None = None,
        wait: bool = True,
        submit: bool | None = None,
    ) -> Run:
        """Delete the rows that meet an SQL condition (`filter`, or `where`), in one commit.

        Raises InvalidInputError, TableNotFoundError.
        """
        return self._run("delete", {"filter": _one_of(filter=filter, where=where)}, wait=wait, submit=submit)

    def erase(
        self,
        where: str,
        *,
        values_of: Names = (),
        end_protected: bool = False,
        supersede_tags: bool = False,
        reference: str = "",
        wait: bool = True,
    ) -> Run:
        """Erase the rows that meet an SQL condition from all versions, branches, indexes, clones and dropped copies.

        A worker of the server does it; `lake.erasure(run.id).report()` has what was done. All files are searched for
        the values that these rows have in `values_of`. Tags and snapshots of versions with such rows are named and
        nothing is changed, unless they end, too (`end_protected`), or such tags move to branches with what their
        versions have without the rows (`supersede_tags`). Raises InvalidInputError, PermissionDeniedError,
        TableNotFoundError.
        """
        self._check_change("erase")
        queued = self._lake.calls.call(
            "EraseFromTable",
            id=list(self.path),
            predicate=where,
            values_of=list_names(values_of, "values_of") or None,
            end_protected=end_protected or None,
            supersede_tags=supersede_tags or None,
            reference=reference or None,
        )
        run = ServerRun(self._lake.calls, "erase", queued["erasure_id"])
        return run.wait() if wait else run

    def update(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        where: str | None = None,
        values_sql: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> Run:
        """Set columns to values, or to SQL expressions (`values_sql`), of all rows or those that meet a condition.

        `update({"title": "Up"}, where="id = 5")`, `update(values_sql={"year": "year + 1"})`: one commit, whose run has
        ended. Raises InvalidInputError, TableNotFoundError, ConcurrentModificationError.
        """
        if not isinstance(values or {}, Mapping):
            raise InvalidInputError("values are a mapping of columns to values; the condition is where=.")
        updates = [[name, sql_literal(value, f"values['{name}']")] for name, value in (values or {}).items()]
        updates += [[name, expression] for name, expression in (values_sql or {}).items()]
        if not updates:
            raise InvalidInputError("values and values_sql are empty: name a column, and what it is set to.")
        figures = {"version": "version", "rows": "updated_rows"}
        return self._change("update", "UpdateTable", figures, updates=updates, predicate=where, branch=branch)

    def _check_change(self, method: str) -> None:
        """Raise InvalidInputError where a method may not change this table."""

    def _change(self, method: str, operation: str, figures: Mapping[str, str], **fields: Any) -> Run:
        """Change the table by an operation; return its run, with the fields of the response that `figures` names."""
        self._check_change(method)

        def work(_: LocalRun) -> Mapping[str, object]:
            return _figures(self._lake.calls.call(operation, id=list(self.path), **fields), figures)

        return start_run(method, work).wait()

    def _merge(self, rows: pa.RecordBatchReader, fields: Mapping[str, Any]) -> Run:
        def work(_: LocalRun) -> Mapping[str, object]:
            response = self._lake.calls.write("MergeInsertIntoTable", rows, id=list(self.path), **fields)
            return _figures(response, _MERGED)

        return start_run("merge_insert", work).wait()

    def _run(self, job: str, arguments: Mapping[str, Any], *, wait: bool, submit: bool | None) -> Run:
        if job not in _READING:
            self._check_change(_METHODS.get(job, job))
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
        self._check_change(job)
        named = {**own, **arguments, "table": str(self._table)}
        if (path := path_of(source)) is not None:
            return self._lake.run_job(job, {"source": path, **named}, wait=wait, submit=submit)
        self._lake.check_arguments(job, {"source": "", **named})
        with translate():
            mode = own.get("mode", "append")
            must_exist = bool(own.get("must_exist"))
            options = write_options(arguments, type(source).__name__, mode, own.get("on"), must_exist=must_exist)
            rows = self._open(source)

        def write(run: Any) -> Mapping[str, object]:
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
        made_from = frame_lineage(frame, self._lake.catalog)
        return FrameRows(made_from.sources, frame, made_from.columns)


def _figures(response: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a response that `names` has, by its names of them; not those that are left out."""
    return {name: response[field] for name, field in names.items() if response.get(field) is not None}


def _one_of(**values: Any) -> Any:
    """Return the one of two arguments that is given. Raises TypeError for none, InvalidInputError for both."""
    given = [name for name, value in values.items() if value is not None]
    if not given:
        raise TypeError(f"Give the argument {' or '.join(values)}.")
    if len(given) > 1:
        raise InvalidInputError(f"{' and '.join(given)} are the same: leave one out.")
    return values[given[0]]
