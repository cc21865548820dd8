"""Take rows out of the files of rows that a table's contract has rejected: lines of JSON in its folder `_rejects`.

A file is written anew without them, under a name that its content decides, and then the old one is deleted: whoever
repeats this after a crash writes the same file.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

from tiltyard.contracts.checked_rows import FOLDER
from tiltyard.storage.errors import lance_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

_LINE = "_parked_line"
"""The column with the number of a line, where the condition is computed: no column of a table begins like this."""


def erase_parked_rows(ctx: Context, table: TableRecord, schema: pa.Schema, predicate: str) -> tuple[int, list[str]]:
    """Remove the parked rows that match a condition; return how many, and the files of which that cannot be said.

    Those have lines that are no rows, or values that the columns of the condition cannot have. Raises
    ServiceUnavailableError, FileTooLargeError.
    """
    files, folder = ctx.storage.files(table.location), f"{table.location}/{FOLDER}"
    removed, unsettled = 0, []
    with lance_errors(table.location):
        names = sorted(entry.path for entry in files.walk(folder))
    for name in names:
        with lance_errors(table.location):
            lines = files.read(f"{folder}/{name}").splitlines(keepends=True)
        rows = [_row_of(line) for line in lines]
        matching = _matching(rows, schema, predicate)
        if matching is None or None in rows:
            unsettled.append(f"{FOLDER}/{name}")
        if matching:
            removed += len(matching)
            _replace(ctx, folder, name, b"".join(line for at, line in enumerate(lines) if at not in matching))
    return removed, unsettled


def _row_of(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)["row"]
    except (ValueError, KeyError, TypeError):
        return None
    return row if isinstance(row, dict) else None


def _matching(rows: Sequence[dict[str, Any] | None], schema: pa.Schema, predicate: str) -> set[int] | None:
    """Return the numbers of the rows that match a condition on a table's columns; None if it cannot be computed."""
    known = [(at, row) for at, row in enumerate(rows) if row is not None]
    if not known:
        return set()
    fields, columns = [pa.field(_LINE, pa.int64())], [pa.array([at for at, _ in known], pa.int64())]
    for field in schema:
        column = _column([row.get(field.name) for _, row in known], field.type)
        if column is not None:
            fields.append(pa.field(field.name, field.type))
            columns.append(column)
    data = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    try:
        with lance_errors():
            dataset = lance.write_dataset(data, "memory://parked")
            return set(dataset.to_table(columns=[_LINE], filter=predicate).column(_LINE).to_pylist())
    except LanceNamespaceError:
        return None


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return the values of parked rows as a column of the table; None where they are not such values."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        pass
    try:
        return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _replace(ctx: Context, folder: str, name: str, content: bytes) -> None:
    """Write what is left of a file under another name, durably, and delete the file."""
    files = ctx.storage.files(folder)
    with lance_errors(folder):
        if content:
            left = f"{folder}/{hashlib.sha256(content).hexdigest()[:32]}-0.jsonl"
            files.write_if_not_exists(left, content)
            ctx.storage.make_durable([left])
        files.delete([f"{folder}/{name}"])
