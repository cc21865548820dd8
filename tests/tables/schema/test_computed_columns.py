"""Computed columns: declared in the metadata of their fields, filled by a job; the server never unpickles code."""

from __future__ import annotations

import base64
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    UnsupportedOperationError,
)
from msgspec import structs
from tests.tables.bodies import small
from tests.tables.commits.test_recovery import recovered
from tests.tables.served import Server, ask

from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, UdfDeclaration, read_declaration
from tiltyard.model.jobs import PIPELINE_JOBS, pipeline_jobs
from tiltyard.model.principals import Principal, Privilege
from tiltyard.model.spec import models
from tiltyard.runtime import failpoints
from tiltyard.store import JobFilter, NewRequest
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.column_readers import source_paths
from tiltyard.tables.schema.columns import alter_table_alter_columns, alter_table_drop_columns
from tiltyard.tables.schema.computed_columns import MAX_CODE_LENGTH, alter_table_backfill_columns
from tiltyard.worker.driver_config import job_spark_conf

IMAGE = "registry.example/functions:3"
DATA = pa.table({"a": [1, 2, 3], "t": ["x", "yy", "zzz"]})


class Bomb:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """The file that exists only if the code was unpickled."""
    return tmp_path / "unpickled"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server that allows clients' code, with a table, and a backfill to queue."""
    monkeypatch.setitem(PIPELINE_JOBS, "backfill", "nowhere")
    pipeline_jobs.cache_clear()
    root = tmp_path / "root"
    root.mkdir()
    server = Server(root, udfs=True, udf_images=(IMAGE,))
    server.create("t", DATA)
    yield server
    pipeline_jobs.cache_clear()
    server.services.close()


def virtual(trap: Path, **changes: Any) -> dict[str, Any]:
    """Return the declaration of a virtual column as clients send it."""
    code = base64.b64encode(pickle.dumps(Bomb(trap))).decode()
    fields = {"input_columns": ["a", "t"], "image": IMAGE, "udf": code, "udf_name": "bomb", "udf_version": "1"}
    return {**fields, "data_type": {"type": "float32"}, **changes}


def add(server: Server, name: str = "v", **entry: Any) -> int | None:
    request = ask(models.AlterTableAddColumnsRequest, id="t", new_columns=[{"name": name, **entry}])
    return alter_table_add_columns(server.ctx, request).version


def test_add_columns_virtual_is_an_empty_column_whose_field_tells_what_computes_it(server: Server, trap: Path) -> None:
    assert add(server, virtual_column=virtual(trap, field_metadata={"unit": "m"})) == 2
    dataset = server.open("t")
    field = dataset.schema.field("v")
    declaration = read_declaration(field.metadata)
    assert isinstance(declaration, UdfDeclaration)
    assert (declaration.name, declaration.version, declaration.inputs, declaration.image) == (
        "bomb",
        "1",
        ("a", "t"),
        IMAGE,
    )
    assert field.type == pa.float32() and field.metadata[b"unit"] == b"m"
    assert dataset.to_table().column("v").null_count == 3
    assert not trap.exists()


def test_add_columns_virtual_with_several_outputs_makes_a_column_of_each(server: Server, trap: Path) -> None:
    kinds = {"norm": {"type": "float64"}, "words": {"type": "int32"}}
    outputs = [
        {"column": name, "struct_field": f"its_{name}", "data_type": kind, "nullable": True}
        for name, kind in kinds.items()
    ]
    add(server, "both", virtual_column=virtual(trap, data_type=None, outputs=outputs))
    schema = server.open("t").schema
    assert schema.names == ["a", "t", "norm", "words"]
    assert [read_declaration(schema.field(name).metadata).struct_field for name in kinds] == ["its_norm", "its_words"]  # type: ignore[union-attr]  # declared just now


def test_add_columns_computed_is_declared_with_the_type_of_its_values(server: Server) -> None:
    add(server, "double", computed="a * 2")
    field = server.open("t").schema.field("double")
    assert (field.type, read_declaration(field.metadata)) == (pa.int64(), ExpressionDeclaration("a * 2"))
    assert server.open("t").to_table().column("double").null_count == 3


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"image": "another:1"}, InvalidInputError, "'another:1' is not among.*functions:3"),
        ({"udf": "not base64!"}, InvalidInputError, "not base64"),
        ({"udf": "\U0006a882"}, InvalidInputError, "not base64"),
        ({"udf": ""}, InvalidInputError, "empty"),
        ({"udf": "AAAA" * (MAX_CODE_LENGTH // 4 + 1)}, InvalidInputError, "import what is above"),
        ({"udf_name": " "}, InvalidInputError, "udf_name"),
        ({"input_columns": []}, InvalidInputError, "input_columns"),
        ({"input_columns": ["a", "nope"]}, TableColumnNotFoundError, "nope"),
        ({"data_type": None}, InvalidInputError, "'outputs' or 'data_type'"),
        ({"field_metadata": {"tiltyard.udf.code": "x"}}, InvalidInputError, "the server's to set"),
        ({"manifest": "{}", "manifest_checksum": "00"}, InvalidInputError, "manifest_checksum"),
        (
            {"outputs": [{"column": "o", "struct_field": "o", "data_type": {"type": "int32"}, "nullable": False}]},
            InvalidInputError,
            "let it be nullable",
        ),
    ],
)
def test_add_columns_virtual_that_cannot_be_changes_nothing(
    server: Server, trap: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        add(server, virtual_column=virtual(trap, **changes))
    assert server.open("t").version == 1


def test_add_columns_virtual_where_code_is_switched_off_names_the_setting(tmp_path: Path, trap: Path) -> None:
    root = tmp_path / "other"
    root.mkdir()
    server = Server(root)
    server.create("t", DATA)
    with pytest.raises(UnsupportedOperationError, match="setting 'udfs'"):
        add(server, virtual_column=virtual(trap))


def test_add_columns_virtual_by_who_may_not_run_code_is_refused(server: Server, trap: Path) -> None:
    table = server.services.store.describe_table(("t",)).id
    server.services.store.grant("principal:ann", TABLE, table, int(Privilege.ALTER), "test")
    server.ctx = Context(server.services, "test", principal=Principal("ann"))
    with pytest.raises(PermissionDeniedError, match="run_udfs"):
        add(server, virtual_column=virtual(trap))
    assert server.open("t").version == 1


def test_alter_columns_virtual_makes_its_values_stale(server: Server, trap: Path) -> None:
    add(server, virtual_column=virtual(trap))
    before = read_declaration(server.open("t").schema.field("v").metadata)
    entry = {"path": "v", "virtual_column": {"udf_version": "2", "input_columns": ["a"]}}
    alter_table_alter_columns(server.ctx, ask(models.AlterTableAlterColumnsRequest, id="t", alterations=[entry]))
    after = read_declaration(server.open("t").schema.field("v").metadata)
    assert isinstance(before, UdfDeclaration) and isinstance(after, UdfDeclaration)
    assert (after.version, after.inputs, after.code) == ("2", ("a",), before.code)
    assert after.identity != before.identity


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"path": "a", "virtual_column": {"udf_version": "2"}}, "is not virtual"),
        ({"path": "v", "rename": "w", "virtual_column": {"udf_version": "2"}}, "a request of its own"),
    ],
)
def test_alter_columns_virtual_that_cannot_be_is_invalid_input(
    server: Server, trap: Path, entry: dict[str, Any], message: str
) -> None:
    add(server, virtual_column=virtual(trap))
    with pytest.raises(InvalidInputError, match=message):
        alter_table_alter_columns(server.ctx, ask(models.AlterTableAlterColumnsRequest, id="t", alterations=[entry]))


def backfill(server: Server, column: str, **fields: Any) -> str:
    request = ask(models.AlterTableBackfillColumnsRequest, id="t", column=column, **fields)
    return alter_table_backfill_columns(server.ctx, request).job_id


def test_backfill_columns_queues_the_job_under_its_table(server: Server, trap: Path) -> None:
    add(server, virtual_column=virtual(trap))
    record = server.services.store.describe_transaction(backfill(server, "v", where="a > 1", concurrency=4))
    assert (record.kind, record.status, record.properties["column"]) == ("backfill", "Queued", "v")
    arguments = {"table": "t", "column": "v", "where": "a > 1", "concurrency": 4}
    assert record.payload["arguments"] == arguments
    assert record.table_id == server.services.store.describe_table(("t",)).id
    assert not trap.exists()


def test_backfill_columns_runs_in_the_image_of_the_column_on_kubernetes_alone(server: Server, trap: Path) -> None:
    add(server, virtual_column=virtual(trap))
    record = server.services.store.describe_transaction(backfill(server, "v"))
    option = ("spark.kubernetes.executor.container.image", IMAGE)
    assert option in job_spark_conf(Settings(root="s3://lake/tables", spark="k8s://https://cluster"), record).items()
    assert option not in job_spark_conf(Settings(root="s3://lake/tables", spark="local[2]"), record).items()


def test_backfill_columns_of_main_by_its_name_is_one_without_a_branch(server: Server, trap: Path) -> None:
    add(server, virtual_column=virtual(trap))
    record = server.services.store.describe_transaction(backfill(server, "v", branch="main"))
    assert record.payload["arguments"] == {"table": "t", "column": "v"}


def test_backfills_of_a_branch_are_queued_for_it(server: Server, trap: Path) -> None:
    add(server, virtual_column=virtual(trap))
    server.open("t").create_branch("try")
    with pytest.raises(TableBranchNotFoundError):
        backfill(server, "v", branch="none")
    backfill(server, "v", branch="try")
    new = [{"name": "w", "virtual_column": virtual(trap, auto_backfill=True)}]
    alter_table_add_columns(server.ctx, ask(models.AlterTableAddColumnsRequest, id="t", branch="try", new_columns=new))
    changed = [{"path": "v", "virtual_column": {"udf_version": "2", "auto_backfill": True}}]
    alteration = ask(models.AlterTableAlterColumnsRequest, id="t", branch="try", alterations=changed)
    alter_table_alter_columns(server.ctx, alteration)
    queued = [
        record.payload["arguments"] for record in server.services.store.list_jobs(JobFilter(["backfill"]), None, 9)
    ]
    assert sorted(arguments["column"] for arguments in queued) == ["v", "v", "w"]
    assert {arguments["branch"] for arguments in queued} == {"try"}


def test_sql_over_a_small_table_is_computed_by_the_server_and_all_else_by_spark(
    server: Server, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server, "c", computed="a + 1")
    add(server, virtual_column=virtual(trap))

    def kind(column: str) -> str:
        return server.services.store.describe_transaction(backfill(server, column)).kind

    assert (kind("c"), kind("v")) == ("refresh_column", "backfill")
    rows = server.open("t").count_rows()
    for most, expected in ((rows, "refresh_column"), (rows - 1, "backfill"), (0, "backfill")):
        settings = replace(server.services.settings, column_refresh_rows=most)
        monkeypatch.setattr(server, "ctx", Context(replace(server.services, settings=settings), "test"))
        assert kind("c") == expected
    server.open("t").update_field_metadata({"c": ExpressionDeclaration("repeat('x', 1000000000)").metadata()})
    assert kind("c") == "backfill"  # no request could declare it: a client's own commit did


def test_add_columns_with_auto_backfill_queues_it_at_once(server: Server, trap: Path) -> None:
    add(server, virtual_column=virtual(trap, auto_backfill=True))
    (queued,) = server.services.store.list_jobs(JobFilter(["backfill"]), None, 10)
    assert (queued.kind, queued.payload["arguments"]["column"]) == ("backfill", "v")


def test_add_columns_with_auto_backfill_struck_behind_its_commit_queues_it_when_it_is_recognised(
    server: Server, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(server.ctx, ask(models.CreateTableRequest, id="kept"), small(DATA))
    added = ask(
        models.AlterTableAddColumnsRequest,
        id="kept",
        new_columns=[{"name": "v", "virtual_column": virtual(trap, auto_backfill=True)}],
    )
    changes = {"path": "v", "virtual_column": {"udf_version": "2", "auto_backfill": True}}
    altered = ask(models.AlterTableAlterColumnsRequest, id="kept", alterations=[changes])
    calls = [("Add", alter_table_add_columns, added), ("Alter", alter_table_alter_columns, altered)]
    for version, (name, call, request) in enumerate(calls, 2):
        claimed, _ = server.ctx.store.begin_request(NewRequest(name, "POST", None, "me", 60_000, 60_000))
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "_faults", failpoints.parse("after_record=unavailable"))
            with pytest.raises(ServiceUnavailableError):
                call(structs.replace(server.ctx, claims=(claimed.claim,)), request)
        assert len(server.services.store.list_jobs(JobFilter(["backfill"]), None, 10)) == version - 2
        record = server.ctx.store.describe_request(name)
        assert record is not None
        assert recovered(server.ctx, f"AlterTable{name}Columns", request, record).version == version
        queued = server.services.store.list_jobs(JobFilter(["backfill"]), None, 10)
        assert [record.payload["arguments"] for record in queued] == [{"table": "kept", "column": "v"}] * (version - 1)
    alter_table_drop_columns(server.ctx, ask(models.AlterTableDropColumnsRequest, id="kept", columns=["v"]))
    assert recovered(server.ctx, "AlterTableAlterColumns", altered, record).version == 3
    assert len(server.services.store.list_jobs(JobFilter(["backfill"]), None, 10)) == 2


@pytest.mark.parametrize(
    ("column", "fields", "error", "message"),
    [
        ("a", {}, InvalidInputError, "is not computed"),
        ("nope", {}, TableColumnNotFoundError, "nope"),
        ("double", {"where": "a >"}, InvalidInputError, "Error parsing statement"),
        ("double", {"read_version": 1}, InvalidInputError, "read_version"),
    ],
)
def test_backfill_columns_that_cannot_be_queues_nothing(
    server: Server, column: str, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    add(server, "double", computed="a * 2")
    with pytest.raises(error, match=message):
        backfill(server, column, **fields)
    assert server.services.store.transaction_counts() == {}


def drop(server: Server, *columns: str) -> None:
    alter_table_drop_columns(server.ctx, ask(models.AlterTableDropColumnsRequest, id="t", columns=list(columns)))


@pytest.mark.parametrize("change", [{"data_type": "int32"}, {"rename": "b"}])
def test_column_that_a_computed_one_reads_is_neither_dropped_nor_retyped(
    server: Server, trap: Path, change: dict[str, Any]
) -> None:
    add(server, "d", computed="abs(`a`) + 1")
    add(server, "v", virtual_column=virtual(trap, input_columns=["t"]))
    for column, reader in (("a", "d"), ("t", "v")):
        with pytest.raises(InvalidInputError, match=f"The column '{reader}' is computed from '{column}'"):
            drop(server, column)
        alterations = [models.AlterColumnsEntry(path=column, **change)]
        request = ask(models.AlterTableAlterColumnsRequest, id="t", alterations=alterations)
        with pytest.raises(InvalidInputError, match=f"The column '{reader}' is computed from '{column}'"):
            alter_table_alter_columns(server.ctx, request)
    nullable = [models.AlterColumnsEntry(path="a", nullable=True)]
    alter_table_alter_columns(server.ctx, ask(models.AlterTableAlterColumnsRequest, id="t", alterations=nullable))
    drop(server, "a", "d")
    assert server.open("t").schema.names == ["t", "v"]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("a + b", {("a",), ("b",)}),
        ("abs(A) + s.x.y", {("a",), ("s", "x", "y")}),
        ("'a' || `b c` || \"D\"", {("b c",), ("d",)}),
        ("s . x > 1", {("s", "x")}),
    ],
)
def test_names_in_an_expression_are_those_of_fields(expression: str, names: set[tuple[str, ...]]) -> None:
    assert set(source_paths(ExpressionDeclaration(expression))) == names
