"""Take rows out of the files of rejected rows: lines of JSON, in a table's folder `_rejects` or where a job put them.

A file is written anew without them, under a name that its content decides, and then the old one is deleted: whoever
repeats this after a crash writes the same file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from tiltyard.contracts.checked_rows import FOLDER
from tiltyard.model.jobs import JOBS_ON_TABLES
from tiltyard.storage.errors import lance_errors
from tiltyard.store import JobFilter
from tiltyard.tables.erasure.conditions import columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

MAX_JOBS = 1_000
"""Jobs of one table that are asked where they have put rejected rows, the newest ones."""
_LINE = "_parked_line"
"""The column with the number of a line, where the condition is computed: no column of a table begins like this."""


@dataclass(frozen=True, slots=True)
class ParkedFolder:
    """A folder with files of rejected rows, of which those are meant whose names begin with `stem`.

    `label` stands before their names in messages; `rows` is how many the job says that it has written there.
    """

    location: str
    label: str
    stem: str = ""
    rows: int = 0


def find_folders(ctx: Context, table: TableRecord) -> list[ParkedFolder]:
    """Return where rejected rows of a table may be: its own folder, and those that its recorded jobs were given."""
    found = [ParkedFolder(f"{table.location}/{FOLDER}", FOLDER)]
    jobs = JobFilter(tuple(sorted(JOBS_ON_TABLES)), table_id=table.id)
    for record in ctx.store.list_jobs(jobs, None, MAX_JOBS):
        folder = record.payload.get("arguments", {}).get("rejects")
        if isinstance(folder, str) and folder:
            location, count = folder.rstrip("/"), str(record.properties.get("rejected", ""))
            rows = int(count) if count.isdigit() else 0
            found.append(ParkedFolder(location, location, f"{record.id}-", rows))
    return found


def erase_parked_rows(ctx: Context, table: TableRecord, schema: pa.Schema, predicate: str) -> tuple[int, list[str]]:
    """Remove the parked rows that match a condition; return how many, and the files of which that cannot be said.

    Those have lines that are no rows, lack a column of the condition, or have values that it cannot have; or a job has
    written them, and they are not where it says. Raises ServiceUnavailableError, FileTooLargeError.
    """
    removed, unsettled = 0, list[str]()
    for folder in find_folders(ctx, table):
        try:
            files = ctx.storage.files(folder.location)
            with lance_errors(folder.location):
                names = sorted(each.path for each in files.walk(folder.location) if each.path.startswith(folder.stem))
        except (PermissionDeniedError, InvalidInputError) as error:
            names, why = [], f"not below the roots of the server: {error}"
        else:
            why = "not found from this server"
        if folder.rows and not names:
            unsettled.append(f"{folder.label}/{folder.stem}*.jsonl ({why})")
        for name in names:
            with lance_errors(folder.location):
                lines = files.read(f"{folder.location}/{name}").splitlines(keepends=True)
            rows = [_row_of(line) for line in lines]
            matching = _matching(rows, schema, predicate)
            needed = set(columns_of(predicate, schema.names))
            if matching is None or any(row is None or not needed <= row.keys() for row in rows):
                unsettled.append(f"{folder.label}/{name}")
            if matching:
                removed += len(matching)
                left = b"".join(line for at, line in enumerate(lines) if at not in matching)
                _replace(ctx, folder, name, left)
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


def _replace(ctx: Context, folder: ParkedFolder, name: str, content: bytes) -> None:
    """Write what is left of a file under another name, durably, and delete the file."""
    files = ctx.storage.files(folder.location)
    with lance_errors(folder.location):
        if content or folder.stem:  # an empty file says that the job's rows were there
            left = f"{folder.location}/{folder.stem}{hashlib.sha256(content).hexdigest()[:32]}-0.jsonl"
            files.write_if_not_exists(left, content)
            ctx.storage.make_durable([left])
        files.delete([f"{folder.location}/{name}"])
