"""The process of a function: a script that a Spark worker starts with the function's own Python.

It reads messages from its standard input and answers each on its standard output: four bytes of length, then JSON or an
Arrow stream. The first message is an order, the function with its limits:

- a registered function (see `FunctionCode.order`): every other message is a batch of its inputs, or AGAIN;
- a function of the job itself, which has a `worker_path`, where it imports from behind its own packages: it comes
  pickled, as the second message, and each call is two, what the rows are (BATCH or TABLE) and the rows.

It imports pyarrow and the standard library, and none of Tiltyard: its environment is the function's.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import inspect
import json
import os
import pickle
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

MAX_MESSAGE_LENGTH = 1000
"""Characters of an error's message that are passed on."""
AGAIN = b""
"""The message after which failed rows are called again. The worker sends it, after a pause."""
BATCH, TABLE, ARRAY = "batch", "table", "array"
"""What an Arrow stream is read as."""
_ARROW = (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)
_LENGTH = struct.Struct(">I")
_PR_SET_PDEATHSIG = 1


def read_message(stream: Any) -> bytes | None:
    """Read a message; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body: bytes = stream.read(length)
    return body if len(body) == length else None  # the process has ended within it


def write_message(stream: Any, body: bytes) -> None:
    """Write a message."""
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def to_ipc(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Return rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


def from_ipc(body: bytes, form: str) -> Any:
    """Read an Arrow stream as a table, a batch, or the array that is its only column."""
    table = pa.ipc.open_stream(body).read_all()
    if form == TABLE:
        return table
    batches = table.combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
    return batch.column(0) if form == ARRAY else batch


def decode_schema(text: str) -> pa.Schema:
    """Read a schema from base64."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def to_arrow(result: Any) -> Any:
    """Return values in a list, a tuple or an array of numpy as an Arrow array; anything else as it is.

    Arrow finds out their type: to be told one, it would cut fractions off. Raises pa.ArrowInvalid for values of several
    types.
    """
    if isinstance(result, _ARROW):
        return result
    if isinstance(result, list | tuple):
        return pa.array(result)
    if not hasattr(result, "__array__") or (values := result.__array__()).ndim == 0:
        return result
    return pa.array(values if values.ndim == 1 else values.tolist())


def describe(error: BaseException, most: int = MAX_MESSAGE_LENGTH) -> list[str]:
    """Return the type and the message of an error, of `most` characters, without positions in the source."""
    return [type(error).__name__, str(error)[:most]]


def class_names(error: BaseException) -> list[str]:
    """Return the names of the classes of an error and its cause, and of theirs, with and without their modules."""
    kinds = [*type(error).__mro__, *(type(error.__cause__).__mro__ if error.__cause__ else ())]
    classes = [kind for kind in kinds if issubclass(kind, Exception)]
    return [name for kind in classes for name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")]


class ResultError(Exception):
    """A function of Arrow returned no array of its rows' number and type, as it would for fewer of them."""


class Function:
    """A function, or an instance of a class, and how it is called: `form` is rows, arrays or batch."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Load the source and create the instance. Raises whatever the source raises."""
        self.call: Any
        self.output = decode_schema(order["output"])
        self.is_struct = bool(order["is_struct"])
        self.most_errors, self.most_message = int(order["most_errors"]), int(order["most_message"])
        self.retry_on, self.retries = frozenset(order["retry_on"]), int(order["retries"])
        entry = getattr(_load_module(order["files"], order["entry_file"]), order["entrypoint"])
        target = entry
        if inspect.isclass(entry):
            given = {name: value for name, value in order["initialization"].items() if value is not None}
            self.call = entry(**given)
            target = entry.__call__
        else:
            self.call = entry
        self.form = _form(target)

    def compute(self, batch: pa.RecordBatch, wait: Callable[[int], None]) -> tuple[pa.Array, list[list[Any]], int]:
        """Compute a batch; return the values, some errors as (row, type, message), and how many rows failed.

        Rows that fail with an error of `retry_on` are called again, all of them after one `wait`, whose argument is the
        number of the attempt: 0, 1, 2 … Raises ResultError, what a function of Arrow raises, and MemoryError of a
        function of rows, unless the batch is one row.
        """
        if self.form != "rows":
            return self._to_array(self._call_batch(batch), batch.num_rows), [], 0
        calls = _RowCalls(self, batch)
        rows = calls.make(range(batch.num_rows), is_last=self.retries == 0)
        for attempt in range(self.retries):
            if not rows:
                break
            wait(attempt)
            rows = calls.make(rows, is_last=attempt + 1 == self.retries)
        return self._rows_to_array(calls.values), sorted(calls.errors), calls.failed

    def compute_row(self, arguments: dict[str, Any]) -> Any:
        """Call the function with the values of a row. Raises what it raises, and what `_check_row` raises."""
        return self._check_row(self.call(**arguments))

    def is_retried(self, error: Exception) -> bool:
        """Return whether an error is one of those after which a row is called again."""
        return bool(self.retry_on) and not self.retry_on.isdisjoint(class_names(error))

    def _check_row(self, value: Any) -> Any:
        """Return a row's value if the output's type can hold it. Raises what pyarrow raises, ValueError for null."""
        if self.is_struct:
            return pa.array([value], self._type)[0].as_py() if value is not None else None
        field = self.output.field(0)
        if value is None and not field.nullable:
            raise ValueError("the function returned None, and its output is not nullable")
        pa.scalar(value, field.type)
        return value

    @property
    def _type(self) -> pa.DataType:
        return pa.struct(list(self.output)) if self.is_struct else self.output.field(0).type

    def _rows_to_array(self, values: list[Any]) -> pa.Array:
        kind = pa.struct([field.with_nullable(True) for field in self.output]) if self.is_struct else self._type
        return pa.array(values, kind)

    def _call_batch(self, batch: pa.RecordBatch) -> Any:
        if self.form == "batch":
            return self.call(batch)
        return self.call(**dict(zip(batch.schema.names, batch.columns, strict=True)))

    def _to_array(self, result: Any, rows: int) -> pa.Array:
        """Return what a function of Arrow returned, in the output's type. Raises ResultError, pa.ArrowInvalid."""
        result = to_arrow(result)
        if isinstance(result, pa.Table):
            result = result.combine_chunks().to_batches()[0] if result.num_rows else None
        if isinstance(result, pa.RecordBatch):
            result = result.to_struct_array()
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array):
            raise ResultError(f"the function returned {type(result).__name__}, and not an Arrow array")
        if len(result) != rows:
            raise ResultError(f"the function returned {len(result)} values for {rows} rows")
        kind = pa.struct([field.with_nullable(True) for field in self.output]) if self.is_struct else self._type
        try:
            if isinstance(result, pa.StructArray) and self.is_struct:
                parts = [result.field(field.name).cast(field.type) for field in kind]
                return pa.StructArray.from_arrays(parts, fields=list(kind), mask=result.is_null())
            return result.cast(kind)
        except (pa.ArrowNotImplementedError, KeyError) as error:
            raise ResultError(f"the function returned {result.type}, and not {kind}: {error}") from error

    def close(self) -> None:
        """Call the `close` of an instance, if it has one."""
        close = getattr(self.call, "close", None)
        if callable(close) and not inspect.isfunction(self.call):
            close()


class _RowCalls:
    """The calls of a function with the rows of a batch: their `values`, how many `failed`, and some of the `errors`."""

    def __init__(self, function: Function, batch: pa.RecordBatch) -> None:
        self._function = function
        self._columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        self.values: list[Any] = [None] * batch.num_rows
        self.errors: list[list[Any]] = []
        self.failed = 0

    def make(self, rows: Iterable[int], *, is_last: bool) -> list[int]:
        """Call the function with these rows; return those that are to be called again, none after the last attempt."""
        again = []
        for row in rows:
            try:
                self.values[row] = self._function.compute_row({name: c[row] for name, c in self._columns.items()})
            except Exception as error:
                if isinstance(error, MemoryError) and len(self.values) > 1:
                    raise  # other rows of the batch may hold the memory: the worker calls halves of it
                if not is_last and self._function.is_retried(error):
                    again.append(row)
                    continue
                self.failed += 1
                if len(self.errors) < self._function.most_errors:
                    self.errors.append([row, *describe(error, self._function.most_message)])
        return again


def _form(target: Any) -> str:
    """Return how a callable takes its inputs, by its annotations: their text, since nothing resolves their names."""
    parameters = [parameter for parameter in inspect.signature(target).parameters.values() if parameter.name != "self"]
    words = [str(parameter.annotation).rpartition(".")[2] for parameter in parameters]
    if words == ["RecordBatch"]:
        return "batch"
    return "arrays" if words and all(word == "Array" for word in words) else "rows"


def _load_module(files: dict[str, str], entry: str) -> Any:
    """Write the files into the working folder, which is this process's own, and import the entry's module."""
    folder = Path.cwd()
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    sys.path.insert(0, str(folder))
    name = Path(entry).stem
    spec = importlib.util.spec_from_file_location(name, folder / entry)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _serve(requests: Any, responses: Any) -> None:
    first = read_message(requests)
    if first is None:
        return
    order = json.loads(first)
    serve = _serve_registered if order["worker_path"] is None else _serve_pickled
    serve(order, requests, responses)


def _limit_memory(order: dict[str, Any]) -> None:
    if (limit := order["memory_bytes"]) is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _serve_pickled(order: dict[str, Any], requests: Any, responses: Any) -> None:
    """Serve a function of the job, which may return any arrays, batches and tables."""
    behind = order["worker_path"]
    sys.path = [path for path in sys.path if path not in behind] + behind
    _limit_memory(order)
    try:
        function = pickle.loads(read_message(requests) or b"").load()  # noqa: S301  # from the worker that started this
    except BaseException as error:  # noqa: BLE001 - also what a module raises to end the process
        write_message(responses, _describe_failure(error))
        return
    write_message(responses, b"{}")
    while (form := read_message(requests)) is not None:
        try:
            _write_result(responses, function(from_ipc(read_message(requests) or b"", form.decode())))
        except Exception as error:  # noqa: BLE001 - the worker reports it
            write_message(responses, _describe_failure(error))


def _describe_failure(error: BaseException) -> bytes:
    return json.dumps({"error": describe(error), "kinds": class_names(error)}).encode()


def _write_result(stream: Any, result: Any) -> None:
    """Write what a function returned: JSON that says what it is, then each part of it."""
    is_list = not isinstance(result, _ARROW)
    try:
        if is_list and not (isinstance(result, list | tuple) and all(isinstance(part, _ARROW) for part in result)):
            result = to_arrow(result)
            is_list = not isinstance(result, _ARROW)
        parts = [_to_part(part) for part in (result if is_list else [result])]
    except TypeError:
        write_message(stream, json.dumps({"other": type(result).__name__}).encode())
        return
    write_message(stream, json.dumps({"is_list": is_list, "forms": [form for form, _ in parts]}).encode())
    for _, body in parts:
        write_message(stream, body)


def _to_part(part: Any) -> tuple[str, bytes]:
    """Return what a part of a result is, and its Arrow stream. Raises TypeError for what is nothing of Arrow."""
    if isinstance(part, pa.Array | pa.ChunkedArray):
        return ARRAY, to_ipc(pa.table([part], names=["value"]))
    if isinstance(part, pa.RecordBatch | pa.Table):
        return (TABLE if isinstance(part, pa.Table) else BATCH), to_ipc(part)
    raise TypeError(type(part).__name__)


def _serve_registered(order: dict[str, Any], requests: Any, responses: Any) -> None:
    """Serve a registered function, whose values have the type that it declares."""
    most = int(order["most_message"])
    os.environ.update(order.pop("variables"))
    try:
        _limit_memory(order)
        function = Function(order)
    except BaseException as error:  # noqa: BLE001 - also what a module raises to end the process
        write_message(responses, json.dumps({"error": describe(error, most)}).encode())
        return
    write_message(responses, b"{}")

    def wait(attempt: int) -> None:
        write_message(responses, json.dumps({"attempt": attempt}).encode())
        if read_message(requests) is None:
            raise SystemExit

    while (message := read_message(requests)) is not None:
        try:
            values, errors, failed = function.compute(from_ipc(message, BATCH), wait)
            body = to_ipc(pa.record_batch([values], ["value"]))
        except Exception as error:  # noqa: BLE001 - the worker reports it
            is_refused = isinstance(error, ResultError)
            answer = {"error": describe(error, most), "kinds": class_names(error), "is_refused": is_refused}
            write_message(responses, json.dumps(answer).encode())
            continue
        write_message(responses, json.dumps({"errors": errors, "failed": failed}).encode())
        write_message(responses, body)
    function.close()


def main() -> None:
    """Serve one function, in a folder of its own, until the worker closes the input; what it prints goes nowhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a loop in the function must not outlive the worker
    requests, responses = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    with tempfile.TemporaryDirectory(prefix="tiltyard-function-") as folder:
        os.chdir(folder)
        _serve(requests, responses)


if __name__ == "__main__":
    main()
