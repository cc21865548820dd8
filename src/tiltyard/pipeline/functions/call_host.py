"""The process of a user's function, which a Spark worker starts with the Python of the function's packages.

It reads messages from its standard input and answers on its standard output, in the form of `host`. The first message
is the limit of its memory (JSON), the second one the function, pickled. Then each call is two messages: what the rows
are, a batch or a table, and the rows as an Arrow stream.
"""

from __future__ import annotations

import json
import pickle
import resource
from typing import Any

import pyarrow as pa

from tiltyard.pipeline.functions.host import (
    ARRAY,
    BATCH,
    TABLE,
    class_names,
    describe,
    from_ipc,
    read_message,
    serve_in_folder,
    to_arrow,
    to_ipc,
    write_message,
)

_ARROW = (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)


def _answer(stream: Any, result: Any) -> None:
    """Write what a function returned: JSON that says what it is, then each part of it."""
    is_list = not isinstance(result, _ARROW)
    try:
        if is_list and not (isinstance(result, list | tuple) and all(isinstance(part, _ARROW) for part in result)):
            result = to_arrow(result)
            is_list = not isinstance(result, _ARROW)
        parts = [_part(part) for part in (result if is_list else [result])]
    except TypeError:
        write_message(stream, json.dumps({"other": type(result).__name__}).encode())
        return
    write_message(stream, json.dumps({"is_list": is_list, "forms": [form for form, _ in parts]}).encode())
    for _, body in parts:
        write_message(stream, body)


def _part(part: Any) -> tuple[str, bytes]:
    """Return what a part of a result is, and its Arrow stream. Raises TypeError for what is nothing of Arrow."""
    if isinstance(part, pa.Array | pa.ChunkedArray):
        return ARRAY, to_ipc(pa.table([part], names=["value"]))
    if isinstance(part, pa.RecordBatch | pa.Table):
        return (TABLE if isinstance(part, pa.Table) else BATCH), to_ipc(part)
    raise TypeError(type(part).__name__)


def _describe(error: BaseException) -> bytes:
    return json.dumps({"error": describe(error), "kinds": class_names(error)}).encode()


def _serve(requests: Any, responses: Any) -> None:
    limit = json.loads(read_message(requests) or b"null")
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        function = pickle.loads(read_message(requests) or b"").load()  # noqa: S301  # from the worker that started this
    except BaseException as error:  # noqa: BLE001 - also what a module raises to end the process
        write_message(responses, _describe(error))
        return
    write_message(responses, b"{}")
    while (form := read_message(requests)) is not None:
        try:
            _answer(responses, function(from_ipc(read_message(requests) or b"", form.decode())))
        except Exception as error:  # noqa: BLE001 - the worker reports it
            write_message(responses, _describe(error))


def main() -> None:
    """Serve one function until the worker closes the input."""
    serve_in_folder(_serve)
