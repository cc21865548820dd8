"""The pages that bring in a file: into a new table of a namespace, or into one that exists.

The file stays with the browser, which sends its beginning to look at, and all of it once its columns are decided: so it
does not matter which process or machine answers, and a refusal leaves file and form as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.heads import read_head
from tiltyard.console.templates import plain
from tiltyard.console.upload.file_reader import FileReader
from tiltyard.console.upload.receiving import MAX_FILE_BYTES, ReceivedFile
from tiltyard.console.upload.target import UPSERT, Target, check_creates, offered_modes
from tiltyard.model.file_reading import FileColumn, FileOrder
from tiltyard.model.schemas.python_values import python_values

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_ROWS = 12
"""Rows that are shown before a file is brought in."""
MAX_COLUMNS_SHOWN = 200
"""Columns whose types can be changed on the page."""
MAX_CELL_CHARACTERS = 80
SAMPLE_SECONDS = 60
"""How long it may take to look at the beginning of a file."""
MEMORY_BYTES = 2 << 30
"""Memory of the process that reads a file."""
MAX_TYPE_CHARACTERS = 300
"""Characters of the name of a type."""
TYPES = (
    "string", "int64", "int32", "float64", "float32", "bool", "date32", "timestamp[us]", "timestamp[us, UTC]", "binary",
    "decimal(10, 2)", "list<string>", "float32[384]",
)  # fmt: skip
"""Types that the form suggests."""
CSV_OPTIONS = {
    "delimiter": ("Separator", "of CSV; \\t is a tab", ","),
    "escape": ("Escape", "a backslash, say: what follows it is text", ""),
}
"""Options of CSV by their names: what the form calls each, its help, and what it shows as an example."""
FORMATS = {"csv": "CSV", "json": "JSON lines", "parquet": "Parquet", "arrow": "Arrow"}
_EXTENSIONS = ("csv", "tsv", "json", "jsonl", "ndjson", "parquet", "arrow", "arrows", "feather")
_PACKED = ".gz"


def show(page: PageRequest) -> Page:
    """Show the form of a file that becomes a new table. Raises what creating one in the namespace raises."""
    check_creates(page.calls, page.path)
    return _form(page, {"target": "upload", "modes": {}, "head": None}, page.path)


def show_into(page: PageRequest) -> Page:
    """Show the form of a file whose rows go into the table of the page.

    Raises PermissionDeniedError for a reader who may do nothing to it, InvalidInputError for a view.
    """
    head = read_head(page, "")
    if head.table.location is None:
        raise InvalidInputError("A view has no rows of its own: add them to the tables that it reads.")
    modes = offered_modes(page.calls, page.path)
    if not modes:
        Target.of_existing(page).authorize(page.calls)
    values = head.values(page, "table") | {"target": "upload-into", "modes": modes}
    return _form(page, values, page.path[:-1])


def _form(page: PageRequest, values: Mapping[str, Any], namespace: Sequence[str]) -> Page:
    own = {
        "namespace": namespace,
        "formats": FORMATS,
        "csv_options": CSV_OPTIONS,
        "types": TYPES,
        "max_bytes": most_bytes(page.services.settings.max_upload_bytes),
        "name": page.text("name"),
        "section": "",
    }
    return Page("upload.html", {**values, **own}, fragment=page.is_fragment)


def most_bytes(setting: int) -> int:
    """Return how many bytes a file may have."""
    return min(setting, MAX_FILE_BYTES) if setting else MAX_FILE_BYTES


def file_name(page: PageRequest) -> str:
    """Return the name for a file on this machine: of its format, and nothing of what its owner calls it."""
    title = page.text("title").lower()
    packed = _PACKED if title.endswith(_PACKED) and not page.text("head") else ""
    extension = title.removesuffix(_PACKED).rpartition(".")[2]
    return f"file.{extension if extension in _EXTENSIONS else 'bin'}{packed}"


def read_order(
    page: PageRequest, file: ReceivedFile, target: Target, schema: pa.Schema | None, **limits: Any
) -> FileOrder:
    """Return the order of a form: how its file is read, and which columns are taken. Raises InvalidInputError."""
    types = dict(zip(page.all_of("cast-name"), page.all_of("cast-type"), strict=False))
    for name, text in types.items():
        if len(text) > MAX_TYPE_CHARACTERS:
            raise InvalidInputError(f"The type of '{plain(name, 60)}' has more than {MAX_TYPE_CHARACTERS} characters.")
    files: dict[str, Any] = {name: text for name in ("format", *CSV_OPTIONS) if (text := page.text(name))}
    if files.get("format", "csv") not in FORMATS:
        raise InvalidInputError(f"The format is one of {', '.join(FORMATS)}, not '{files['format'][:40]}'.")
    return FileOrder(
        path=str(file.path),
        title=plain(page.text("title") or "The file", 120),
        files=files,
        types={} if schema is not None else types,
        left_out=page.all_of("leave-out"),
        table=schema.serialize().to_pybytes() if schema is not None else None,
        leaves_out_rejected=page.text("rejected") == "leave-out",
        memory_bytes=MEMORY_BYTES,
        **limits,
    )


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column of the file on the page: `becomes` is its type in the table, None where the table has none of it.

    `is_chosen`: somebody has chosen the type.
    """

    name: str
    type: str
    is_inferred: bool
    becomes: str | None
    is_taken: bool
    is_chosen: bool


def sample(page: PageRequest) -> Page:
    """Show the columns and the first rows of a file for a new table."""
    return _sample(page, Target.of_new(page))


def sample_into(page: PageRequest) -> Page:
    """Show the columns and the first rows of a file for the table of the page."""
    return _sample(page, Target.of_existing(page))


def _sample(page: PageRequest, target: Target) -> Page:
    file = page.file
    assert file is not None
    try:
        is_cut = restore_ends(
            file, page.integer("head", file.size, 0, file.size), page.integer("size", file.size, 0, MAX_FILE_BYTES)
        )
        schema = target.schema(page.calls)
        limits = {"max_rows": FIRST_ROWS, "is_cut": is_cut, "seconds": SAMPLE_SECONDS}
        with FileReader(read_order(page, file, target, schema, **limits)) as reader:
            rows = _first_rows(reader)
            return Page(
                "upload_columns.html", _sample_values(page, target, schema, reader.columns, rows), fragment=True
            )
    except InvalidInputError as error:
        return Page("upload_problem.html", {"problem": str(error)}, 400, fragment=True)
    finally:
        file.close()


def restore_ends(file: ReceivedFile, head: int, size: int) -> bool:
    """Give a file, of which the first `head` bytes and the last ones came, its size; return whether it has a gap.

    Nothing is in the gap, and it takes no room.
    """
    if head >= file.size and size <= file.size:
        return False
    with file.path.open("r+b") as opened:
        opened.seek(head)
        tail = opened.read()
        if tail:
            opened.truncate(head)
            opened.truncate(max(size, file.size))
            opened.seek(-len(tail), os.SEEK_END)
            opened.write(tail)
    return True


def _first_rows(reader: FileReader) -> list[list[str | None]]:
    """Return the first rows as texts, None for null; none where they cannot be read."""
    rows: list[list[str | None]] = []
    for batch in reader.batches(lambda *_: None):
        columns = [[_cell(value) for value in python_values(column)] for column in batch.columns[:MAX_COLUMNS_SHOWN]]
        rows += [list(row) for row in zip(*columns, strict=True)]
    return rows[:FIRST_ROWS]


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return plain(value, MAX_CELL_CHARACTERS)


def _sample_values(
    page: PageRequest,
    target: Target,
    schema: pa.Schema | None,
    columns: Sequence[FileColumn],
    rows: Sequence[Sequence[str | None]],
) -> dict[str, Any]:
    left_out = set(page.all_of("leave-out"))
    chosen = set(page.all_of("cast-name"))
    shown = [
        ShownColumn(
            column.name,
            column.type,
            column.is_inferred,
            column.becomes,
            is_taken=column.name not in left_out,
            is_chosen=column.name in chosen,
        )
        for column in columns[:MAX_COLUMNS_SHOWN]
    ]
    taken = [column.name for column in columns if column.becomes is not None]
    order = {name: number for number, name in enumerate(schema.names if schema is not None else taken) if name in taken}
    positions = {name: number for number, name in enumerate(order)}
    return {
        "columns": shown,
        "positions": positions,
        "rows": rows,
        "further": len(columns) - len(shown),
        "missing": [field.name for field in schema if field.name not in taken] if schema is not None else [],
        "changes_types": schema is None,
        "keys": list(order) if target.mode == UPSERT else [],
        "key": set(page.all_of("key")),
        "mode": target.mode,
    }
