"""Architecture: what a client may have sent is read by pyarrow in one place, after its size in memory was bounded."""

from __future__ import annotations

import ast
from pathlib import Path

import tiltyard

SOURCES = Path(tiltyard.__file__).parent
READERS = {
    "MessageReader",
    "RecordBatchFileReader",
    "RecordBatchStreamReader",
    "open_file",
    "open_stream",
    "read_message",
    "read_record_batch",
}
GUARDED = {
    "api/bodies/uncompressed_ipc.py": "nothing in it is compressed, and it is as large as it came",
    "api/bodies/uploads.py": "read as it comes, by the same checks",
    "runtime/client_arrow/reading.py": "the place",
}
OF_OURS = {
    "console/upload/file_reader.py": "rows that a process of the server has read from a file, and encoded itself",
    "flight/encoding.py": "rows that this process has encoded",
    "sql/remote_query.py": "rows of the server's own process",
    "tables/rows/shared_appends.py": "rows that a process of the server has queued, which has read them by the guard",
}
NOT_THE_SERVER = ("calls/http_caller.py", "cli/", "lake/", "pipeline/")
"""They run with their user's rights, in processes of their own: commands, jobs and tools that call a server."""


def test_arrow_of_clients_is_read_behind_the_guard_alone() -> None:
    found = {}
    for path in SOURCES.rglob("*.py"):
        name = path.relative_to(SOURCES).as_posix()
        if name.startswith(NOT_THE_SERVER):
            continue
        text = path.read_text()
        if not any(reader in text for reader in READERS):
            continue  # to parse all takes a second
        called = {
            node.attr
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Attribute) and node.attr in READERS and _is_of_pyarrow(node.value)
        }
        if called:
            found[name] = called
    assert found.keys() == GUARDED.keys() | OF_OURS.keys(), (
        f"Read it by tiltyard.runtime.client_arrow.reading: {found.keys() ^ (GUARDED.keys() | OF_OURS.keys())}"
    )


def _is_of_pyarrow(value: ast.expr) -> bool:
    """Whether an expression is `pa.ipc`, `pyarrow.ipc`, `ipc`, or a reader of it."""
    return ast.unparse(value).split(".")[-1] in {"ipc", *READERS}
