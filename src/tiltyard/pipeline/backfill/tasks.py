"""Tasks of a backfill: compute values of columns for one fragment, and write them as new files of that fragment.

A caller's code is loaded here only, in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import DataFile

from tiltyard.column_refresh.fragment_files import (
    BATCH_ROWS,
    MAX_ERRORS,
    Computation,
    ComputedRows,
    FilledFragment,
    FragmentPlan,
    RowError,
    write_column_files,
)
from tiltyard.column_refresh.freshness import name_of_partial_file
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.nested_types import cast_array
from tiltyard.pipeline.backfill.checkpoints import CheckpointedCalls, checkpoint_key
from tiltyard.pipeline.functions.call_policy import PLAIN_POLICY, CallPolicy
from tiltyard.pipeline.functions.calls import (
    GuardedFunction,
    PartResult,
    call_in_parts,
    call_with_retries,
    describe_error,
    ended_process,
    error_kind,
)
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.host import MAX_MESSAGE_LENGTH, to_arrow
from tiltyard.pipeline.functions.processes import CallError, function_process
from tiltyard.pipeline.functions.user_functions import PickledFunction, UserFunction
from tiltyard.pipeline.sources.filesystem import rename_file
from tiltyard.pipeline.table_location import TableLocation, scan_fragments
from tiltyard.pipeline.task_errors import RowsFailedError
from tiltyard.pipeline.writing.tasks import RejectFiles

if TYPE_CHECKING:
    import lance

TRIAL_ROWS = 16
"""How many rows the code is tried on before a column is added."""


@dataclass(frozen=True, slots=True)
class FilledColumn:
    """A column that a function fills. Of a struct that it returns, `struct_field` is used, else that of its name."""

    field: pa.Field
    struct_field: str = ""


@dataclass(frozen=True, slots=True)
class Rejects:
    """A folder for rows that code fails on, with the run's id in the names of its files."""

    folder: str
    run: str
    storage: Mapping[str, str]

    def files(self, key: str) -> RejectFiles:
        """Return the files for rows of a task."""
        return RejectFiles(self.folder, f"{self.run}-{key}", self.storage)


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """What computes columns: code called with the columns `inputs`, or an SQL expression without any code.

    Code is called once for all `outputs`; an expression has one. `policy` says how, and what becomes of rows that it
    fails on; parked ones are written to the folder of `rejects`, too, if there is one. `advice` ends the message on a
    row that code fails on, and says what to do about it; "" names the options of a backfill.
    """

    outputs: tuple[FilledColumn, ...]
    inputs: tuple[str, ...]
    code: UserFunction | PickledFunction | FunctionCode | None
    expression: str = ""
    rejects: Rejects | None = None
    policy: CallPolicy = PLAIN_POLICY
    advice: str = ""

    @property
    def name(self) -> str:
        """Return the name of the column that was asked for, for messages."""
        return str(self.outputs[0].field.name)

    @property
    def scan_columns(self) -> list[str] | dict[str, str]:
        """The scanner's `columns`: the inputs of the code, or the expression itself."""
        return list(self.inputs) if self.code else {self.name: self.expression}

    def computation(
        self,
        columns: tuple[str, ...],
        rejected: RejectFiles | None = None,
        calls: CheckpointedCalls | None = None,
    ) -> Computation:
        """Return what computes these columns at once; rows that code fails on are added to `rejected`.

        What `calls` has saved is not computed.
        """
        chosen = self.outputs_of(columns)

        def compute(rows: pa.RecordBatch) -> ComputedRows:
            return self.compute(rows, chosen, rejected)

        return Computation(
            tuple(output.field for output in chosen),
            self.scan_columns,
            compute if calls is None else lambda rows: calls.call(rows, compute),
        )

    def outputs_of(self, columns: tuple[str, ...]) -> tuple[FilledColumn, ...]:
        """Return the outputs that fill these columns, in their order."""
        outputs = {output.field.name: output for output in self.outputs}
        return tuple(outputs[name] for name in columns)

    def load_code(self) -> Callable[..., Any]:
        """Load the code, once a process. Raises RefusedError if there is none, or if its module fails."""
        assert isinstance(self.code, UserFunction | PickledFunction)
        try:
            return GuardedFunction(self.code, self.policy).load()
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(
                f"The code of '{self.name}' cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def prepare(self) -> None:
        """Load the code, or start the process of a registered function. Raises RefusedError."""
        if isinstance(self.code, FunctionCode):
            function_process(self.code, self.policy)
        else:
            self.load_code()

    def compute(
        self, rows: pa.RecordBatch, outputs: tuple[FilledColumn, ...], rejected: RejectFiles | None = None
    ) -> ComputedRows:
        """Compute the values of each row. Raises RefusedError if the code fails, or returns what does not fit.

        Rows that the code fails on are null, where its policy says so.
        """
        if self.code is None:
            requirement = f"The expression of '{self.name}' has to be {outputs[0].field.type}"
            return ComputedRows((_cast(rows.column(0), outputs[0], requirement),))
        try:
            results = list(call_in_parts(lambda part: self._call(part, outputs), rows, self.policy))
        except RowsFailedError as error:
            raise RowsFailedError(f"{error}{self._name_row(error, outputs)}") from error
        return self._join(results, outputs, rejected)

    def _call(self, rows: pa.RecordBatch, outputs: tuple[FilledColumn, ...]) -> ComputedRows:
        """Call the code. Raises RowsFailedError for what it raises, and for values of another type."""
        try:
            if isinstance(self.code, FunctionCode):
                return self._call_registered(self.code, rows, outputs)
            return ComputedRows(self._to_arrays(self._call_code(rows), rows.num_rows, outputs))
        except RowsFailedError as error:
            failed = rows if error.rows is None else error.rows
            raise RowsFailedError(str(error), failed) from (error.__cause__ or error)

    def _join(
        self,
        results: Sequence[PartResult[ComputedRows]],
        outputs: tuple[FilledColumn, ...],
        rejected: RejectFiles | None,
    ) -> ComputedRows:
        """Return the values of all parts; rows that the code failed on are null, and are added to `rejected`."""
        arrays: list[tuple[pa.Array, ...]] = []
        errors: list[RowError] = []
        failed = 0
        for result in results:
            if result.value is not None:
                arrays.append(result.value.columns)
                failed += result.value.failed
                errors += [replace(error, row=result.start + error.row) for error in result.value.errors]
                continue
            assert result.error is not None
            arrays.append(tuple(pa.nulls(1, output.field.type) for output in outputs))
            cause = result.error.__cause__ or result.error
            message = cause.message if isinstance(cause, CallError) else str(cause)
            failed += 1
            errors.append(RowError(result.start, error_kind(cause), message[:MAX_MESSAGE_LENGTH]))
            if rejected is not None:
                rejected.add(str(result.error), result.rows.select(list(self.inputs)).to_pylist()[0])
        columns = arrays[0] if len(arrays) == 1 else tuple(map(pa.concat_arrays, zip(*arrays, strict=True)))
        return ComputedRows(columns, failed, tuple(errors[:MAX_ERRORS]))

    def _name_row(self, error: RowsFailedError, outputs: tuple[FilledColumn, ...]) -> str:
        """Return a sentence with the first row that the code fails on by itself; "" where there is none.

        It has the row's id, not its values: a job's error has more readers than its table. Of a call that cost its
        process, the rows are named, for each further call may cost as much.
        """
        rows = error.rows
        if rows is None or "_rowid" not in rows.schema.names:
            return ""
        while rows.num_rows > 1 and not ended_process(error):
            half = rows.slice(0, rows.num_rows // 2)
            try:
                self._call(half, outputs)
                half = rows.slice(rows.num_rows // 2)
                self._call(half, outputs)
            except RowsFailedError:
                rows = half
            else:
                return ""
        first, last = rows.column("_rowid")[0].as_py(), rows.column("_rowid")[-1].as_py()
        where = f"the row with _rowid = {first}" if first == last else f"a row with _rowid = {first} to {last}"
        folder = "" if isinstance(self.code, FunctionCode) else "; --rejects names a folder for them"
        advice = self.advice or f"with --on-error park such rows become null, and their errors are kept{folder}"
        return f". That is {where}: {advice}"

    def _call_registered(
        self, code: FunctionCode, rows: pa.RecordBatch, outputs: tuple[FilledColumn, ...]
    ) -> ComputedRows:
        """Call a function in its process, another one if that has ended. Raises RefusedError, RowsFailedError."""
        inputs = pa.RecordBatch.from_arrays([rows.column(name) for name in self.inputs], list(code.parameters))
        try:
            computed = call_with_retries(lambda: function_process(code, self.policy).compute(inputs), self.policy)
        except CallError as error:
            raise RowsFailedError(f"The function {code.name} failed: {error}") from error
        if computed.failed and self.policy.on_error == "fail":
            first = computed.errors[0]
            count = f"{computed.failed} of {rows.num_rows} rows"
            message = f"The function {code.name} failed on {count}: {first.kind}: {first.message}"
            raise RowsFailedError(message, rows.slice(first.row, 1))
        return ComputedRows(self._to_arrays(computed.values, rows.num_rows, outputs), computed.failed, computed.errors)

    def _call_code(self, rows: pa.RecordBatch) -> Any:
        function = self.load_code()
        try:
            return function(rows.select(list(self.inputs)))
        except RefusedError:
            raise
        except Exception as error:
            raise RowsFailedError(f"The code of '{self.name}' failed: {describe_error(error)}") from error

    def _to_arrays(self, result: Any, rows: int, outputs: tuple[FilledColumn, ...]) -> tuple[pa.Array, ...]:
        """Return what the code returned as an array for each output, of its type. Raises RefusedError."""
        requirement = (
            f"The code of '{self.name}' has to return an Arrow array of {rows} values of {outputs[0].field.type}"
        )
        try:
            result = to_arrow(result)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise RowsFailedError(f"{requirement}: {error}") from error
        if isinstance(result, pa.RecordBatch | pa.Table):
            result = result.to_struct_array()
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array):
            raise RefusedError(f"{requirement}, not {type(result).__name__}.")
        if len(result) != rows:
            raise RefusedError(f"{requirement}, not {type(result).__name__} of {len(result)}.")
        return tuple(_cast(_field_of(result, output), output, requirement) for output in outputs)


def _field_of(result: pa.Array, output: FilledColumn) -> pa.Array:
    if pa.types.is_struct(result.type) and (output.struct_field or not pa.types.is_struct(output.field.type)):
        return pc.struct_field(result, output.struct_field or output.field.name)
    return result


def _cast(values: pa.Array, output: FilledColumn, requirement: str) -> pa.Array:
    try:
        return cast_array(values, output.field.type)
    except pa.ArrowInvalid as error:
        raise RowsFailedError(f"{requirement}: {error}") from error
    except pa.ArrowNotImplementedError as error:
        raise RefusedError(f"{requirement}: {error}") from error


@dataclass(frozen=True, slots=True)
class TryCode:
    """A task: load the code, and call it with a few rows of some fragments that match the condition `where`."""

    location: TableLocation
    version: int
    branch: str | None
    fragments: tuple[int, ...]
    where: str | None
    function: ColumnFunction

    def __call__(self) -> None:
        """Run the task. Raises RefusedError."""
        self.function.prepare()
        if not self.fragments:
            return
        dataset = self.location.open(self.version, self.branch)
        scan = {"columns": self.function.scan_columns, "filter": self.where, "limit": TRIAL_ROWS, "with_row_id": True}
        for batch in scan_fragments(dataset, self.fragments, **scan):
            if batch.num_rows:
                self.function.compute(batch, self.function.outputs)


@dataclass(frozen=True, slots=True)
class FillFragment:
    """A task: compute the values that a plan names, and write its files; another attempt goes on where one ended."""

    location: TableLocation
    branch: str | None
    plan: FragmentPlan
    function: ColumnFunction
    run_id: str
    batch_rows: int = BATCH_ROWS

    def __call__(self) -> FilledFragment:
        """Compute the values, and write the files. Raises RefusedError."""
        plan = self.plan
        dataset = self.location.open(plan.version, self.branch)
        folder = self.location.data_folder(self.branch)
        columns, rejects = tuple(file.column for file in plan.files), self.function.rejects
        rejected = rejects.files(f"{columns[0]}-{plan.fragment_id}-{plan.version}") if rejects else None
        calls = self._checkpointed_calls(dataset, columns, folder)
        computation = self.function.computation(columns, rejected, calls)
        options = {"storage_options": dict(self.location.options) or None, **self.location.refresh_arguments}
        try:
            written = write_column_files(dataset, plan, computation, folder, batch_rows=self.batch_rows, **options)
            if rejected is not None:
                rejected.flush()
        except pa.ArrowInvalid as error:
            if self.function.code is not None:
                raise
            raise RefusedError(f"The expression of '{self.function.name}' cannot be computed: {error}") from error
        if calls is not None:
            calls.delete()
        names = [file.name for file in plan.files]
        if written.failed:
            for name in names:
                if (partial_name := name_of_partial_file(name)) != name:
                    rename_file(f"{folder}/{name}", f"{folder}/{partial_name}", self.location.options)
            names = [name_of_partial_file(name) for name in names]
        self.location.make_durable(f"{folder.removeprefix(f'{self.location.uri}/')}/{name}" for name in names)
        files = tuple(DataFile.create(dataset, name) for name in names)
        return FilledFragment(plan.fragment_id, files, written.rows, written.failed, written.errors)

    def _checkpointed_calls(
        self, dataset: lance.LanceDataset, columns: tuple[str, ...], folder: str
    ) -> CheckpointedCalls | None:
        """Return the calls of the code; None of an SQL expression, and with a folder for rejected rows.

        That folder's files are written anew by each attempt, from all rows.
        """
        if self.function.code is None or self.function.rejects is not None:
            return None
        key = checkpoint_key(self.run_id, dataset, self.plan, self.batch_rows)
        schema = pa.schema([output.field.with_nullable(True) for output in self.function.outputs_of(columns)])
        return CheckpointedCalls(f"{folder}/{key}", schema, self.location.options)


def fill_fragments(tasks: tuple[FillFragment, ...]) -> list[FilledFragment]:
    """Fill neighbouring fragments, one after the other, in one Spark task."""
    return [task() for task in tasks]
