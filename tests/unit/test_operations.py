"""The registry of operations: an invalid one refuses the start, and no module lists operations by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiltyard
from tiltyard.bootstrap import register_operations
from tiltyard.model import operations
from tiltyard.model.operations import Needs, UndeclaredNeedsError, UnknownOperationError, bound_operations, operation
from tiltyard.model.spec import operations as specified

SOURCE = Path(tiltyard.__file__).parent
NAMES = frozenset(specified())
MAY_NAME_OPERATIONS = (
    "model/spec/",
    "api/lancedb/",
    "calls/",
    "console/",
    "pipeline/",
    "sql/statements/view_statements.py",
)
"""The specification, the dialect of another protocol, and clients: what calls operations, the console, SQL's statements
on views, and the pipeline.
"""

ANYTHING = Needs("nothing", lambda ctx, request: ctx)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of its own."""
    register_operations()
    monkeypatch.setattr(operations, "_handlers", dict(operations._handlers))


def test_every_operation_says_what_it_needs() -> None:
    register_operations()
    texts = {name: served.needs.text for name, (_, served) in bound_operations().items() if served and served.needs}
    assert set(texts) == {name for name, (_, served) in bound_operations().items() if served}
    assert all(texts.values())


def test_operation_that_declares_no_needs_refuses_the_start(registry: None) -> None:
    del operations._handlers["query_table"]

    @operation
    def query_table(ctx: Any, request: Any) -> None: ...

    with pytest.raises(UndeclaredNeedsError, match="query_table"):
        bound_operations()


def test_operation_that_the_specification_does_not_know_refuses_the_start(registry: None) -> None:
    @operation(needs=ANYTHING)
    def fly_to_the_moon(ctx: Any, request: Any) -> None: ...

    with pytest.raises(UnknownOperationError, match="fly_to_the_moon"):
        bound_operations()


def test_two_functions_of_one_operation_are_refused(registry: None) -> None:
    with pytest.raises(UnknownOperationError, match="query_table"):

        @operation(needs=ANYTHING)
        def query_table(ctx: Any, request: Any) -> None: ...


def named_operations(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return the line and the name of operations in collection literals and in comparisons."""
    for node in ast.walk(tree):
        parts: list[Any] = []
        if isinstance(node, ast.List | ast.Set | ast.Tuple):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = [*node.keys, *node.values]
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        for part in parts:
            if isinstance(part, ast.Constant) and part.value in NAMES:
                yield part.lineno, part.value


def test_no_module_lists_operations_by_name() -> None:
    """Facts of an operation are arguments of its decorator."""
    lists = [
        f"{path}:{line}: {name}"
        for file in sorted(SOURCE.rglob("*.py"))
        if not (path := file.relative_to(SOURCE).as_posix()).startswith(MAY_NAME_OPERATIONS)
        for line, name in named_operations(ast.parse(file.read_text()))
    ]
    assert not lists


def test_named_operations_of_collections_and_comparisons_are_seen() -> None:
    source = """
CALL = call("DropTable")
SET = frozenset({"QueryTable", "other"})
MAP = {"UpdateTable": 1, 2: "ListTables"}
same = name == "DescribeTable" or name in ("TableExists",)
"""
    names = {name for _, name in named_operations(ast.parse(source))}
    assert names == {"QueryTable", "UpdateTable", "ListTables", "DescribeTable", "TableExists"}


def test_facts_of_operations_are_those_that_clients_depend_on() -> None:
    register_operations()
    handlers = {name: handler for name, (_, handler) in bound_operations().items() if handler is not None}
    queries = {name for name, handler in handlers.items() if handler.query}
    plans = {"ExplainTableQueryPlan", "AnalyzeTableQueryPlan"}
    assert queries == {"QueryTable", "CountTableRows", "FetchTableBlobs", "ReadTableBlob", "QueryJobEvents", *plans}
    assert {name for name, handler in handlers.items() if not handler.audited} == {
        "BeatJob",
        "KeepJobPart",
        "RecordFunctionErrors",
        "RecordTableLineage",
    }
    assert {name for name, handler in handlers.items() if not handler.keyed} == {
        "AlterSecret",
        "BeatJob",
        "CreateApiKey",
        "CreateSecret",
        "KeepJobPart",
        "ReadJobFunction",
        "RecordFunctionErrors",
        "RecordTableLineage",
        "RotateApiKey",
    }
    retried = {name for name, handler in handlers.items() if handler.retried_with_new_ids}
    assert retried == {"InsertIntoTable", "MergeInsertIntoTable"}
    assert {name for name, handler in handlers.items() if handler.recovered_by is not None} == {
        "AlterTableAddColumns",
        "AlterTableAlterColumns",
        "AlterTableDropColumns",
        "CreateTable",
        "DeleteFromTable",
        "InsertIntoTable",
        "MergeInsertIntoTable",
        "RestoreTable",
        "UpdateFieldMetadata",
        "UpdateTable",
        "UpdateTableSchemaMetadata",
    }
    assert all(handlers[name].changes for name in ("BeatJob", "CreateApiKey", *retried))
