"""A server imports no package that it does not use, at its start or later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.faults.conftest import wait_until
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.tables.indexes.build_process import COMMAND

NOT_OURS = (
    "lance_namespace_urllib3_client",
    "pydantic",
    "pandas",
    "pyspark",
    "sqlglot",
    "botocore",
    "psycopg",
    "faiss",
)
BEGINNINGS = tuple(f"/{name}/__init__.py" for name in NOT_OURS)
WATCH = f"""
import os, sys, traceback
def watch(event, arguments):
    if event == "exec" and getattr(arguments[0], "co_filename", "").endswith({BEGINNINGS}):
        with open(os.environ["WATCHED"], "a") as file:
            file.write(arguments[0].co_filename + "\\n" + "".join(traceback.format_stack()))
sys.addaudithook(watch)
"""
ROWS = pa.table({"id": pa.array(range(300), pa.int64()), "text": [f"row {number}" for number in range(300)]})


def work(wire: Wire) -> None:
    """Ask for what callers ask for most."""
    wire.good(wire.namespace(["n"], "create"))
    table = ["n", "t"]
    wire.good(wire.table(table, "create", stream(ROWS)))
    wire.good(wire.table(table, "insert", stream(ROWS)))
    wire.good(wire.table(table, "insert", stream(ROWS), query={"mode": "overwrite"}))
    wire.good(wire.table(table, "merge_insert", stream(ROWS), query={"on": "id", "when_matched_update_all": "true"}))
    wire.good(wire.table(table, "update", {"updates": [["text", "'x'"]], "predicate": "id = 1"}))
    wire.good(wire.table(table, "delete", {"predicate": "id = 2"}))
    wire.good(wire.table(table, "add_columns", {"new_columns": [{"name": "twice", "expression": "id * 2"}]}))
    build = wire.good(wire.table(table, "create_index", {"column": "id", "index_type": "BTREE"}))["transaction_id"]
    wire.good(wire.table(table, "version/list"))
    wire.good(wire.table(table, "describe", query={"load_detailed_metadata": "true"}))
    wire.good(wire.table(table, "tags/create", {"tag": "a", "version": 1}))
    assert wire.table(table, "count_rows").text == "299"
    rows = wire.table(table, "query", {"k": 10, "vector": {"single_vector": []}, "filter": "id < 100"})
    assert rows.status_code == 200
    assert wire.http.get("/metrics").status_code == 200
    wait_until(
        lambda: wire.good(wire.call("transaction", [build], "describe"))["status"] == "Succeeded", "the index is built"
    )
    wire.good(wire.table(table, "drop"))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_server_imports_nothing_that_it_has_no_use_for(tmp_path: Path, workers: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    modules_file = tmp_path / "seen"
    environ = {"PYTHONPATH": str(tmp_path), "WATCHED": str(modules_file)}
    server = ServerProcess(tmp_path / "root", "--workers", workers, environ=environ, forked=False)
    with Wire(server.url) as wire:
        work(wire)
    assert server.stop() == 0
    assert not modules_file.exists(), modules_file.read_text()[:4000]


def test_process_that_builds_an_index_imports_nothing_that_it_has_no_use_for(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    modules_file = tmp_path / "seen"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "WATCHED": str(modules_file)}
    done = subprocess.run(
        COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ, timeout=120, check=False
    )
    assert "JSONDecodeError" in done.stderr  # it had imported all, and wanted an order
    assert not modules_file.exists(), modules_file.read_text()[:4000]


LAZY = """
import sys
from tiltyard.runtime.lazy_imports import import_lazily
import_lazily()
from lance_namespace.errors import ErrorCode, TableNotFoundError
import lance_namespace, inspect
inspect.getmodule(lambda: None)
assert "pydantic" not in sys.modules and not hasattr(lance_namespace, "__wrapped__")
assert isinstance(lance_namespace.from_error_code(4, "x"), TableNotFoundError)
assert "pydantic" in sys.modules
import tiltyard
assert issubclass(tiltyard.Namespace, lance_namespace.LanceNamespace)
assert isinstance(lance_namespace.connect("tiltyard", {"root": sys.argv[1]}), tiltyard.Namespace)
try:
    lance_namespace.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
import pandas
assert pandas.DataFrame({"a": [1]}).shape == (1, 1)
"""


def test_import_lazily_leaves_modules_that_work_when_they_are_used(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAZY, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
