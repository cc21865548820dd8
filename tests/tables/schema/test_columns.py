"""Columns of real tables: add, alter, drop, metadata."""

from __future__ import annotations

import datetime as dt
import json
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
)
from tests.tables.served import Server, ask

from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.model.spec import models
from tiltyard.tables.schema import column_additions, columns

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = pa.table(
    {
        "a": pa.array([1, 2, 300], pa.int32()),
        "b": ["x", "y", None],
        "s": pa.array(
            [{"x": 1, "y": {"z": 2}}] * 3, pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.int8())]))])
        ),
        "v": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
    }
)


class Columns:
    """The operations, on the table `t`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.create("t", DATA)

    def _call(self, function: Callable[..., Any], kind: Any, fields: dict[str, Any]) -> Any:
        return function(self.server.ctx, ask(kind, **{"id": "t", **fields}))

    def add(self, *new: tuple[str, str], **fields: Any) -> Any:
        entries = [{"name": name, "expression": expression} for name, expression in new]
        request = {"new_columns": entries} | fields
        return self._call(column_additions.alter_table_add_columns, models.AlterTableAddColumnsRequest, request)

    def alter(self, *alterations: dict[str, Any], **fields: Any) -> Any:
        request = {"alterations": list(alterations), **fields}
        return self._call(columns.alter_table_alter_columns, models.AlterTableAlterColumnsRequest, request)

    def drop(self, *names: str, **fields: Any) -> Any:
        request = {"columns": list(names), **fields}
        return self._call(columns.alter_table_drop_columns, models.AlterTableDropColumnsRequest, request)

    def metadata(self, **fields: Any) -> Any:
        return self._call(columns.update_table_schema_metadata, models.UpdateTableSchemaMetadataRequest, fields)

    def fields(self, *updates: dict[str, Any]) -> Any:
        return self._call(columns.update_field_metadata, models.UpdateFieldMetadataRequest, {"updates": list(updates)})

    @property
    def dataset(self) -> lance.LanceDataset:
        return self.server.open("t")


@pytest.fixture
def table(server: Server) -> Columns:
    return Columns(server)


def test_add_columns_expressions_are_computed_in_one_version(table: Columns) -> None:
    assert table.add(("twice", "a * 2"), ("loud", "upper(b)")).version == 2
    assert table.dataset.to_table(columns=["twice", "loud"]).to_pylist()[1] == {"twice": 4, "loud": "Y"}


def test_add_columns_of_an_empty_table_keeps_their_types(server: Server) -> None:
    server.create("empty", DATA.schema.empty_table())
    request = ask(models.AlterTableAddColumnsRequest, id="empty", new_columns=[{"name": "n", "expression": "a + 1"}])
    column_additions.alter_table_add_columns(server.ctx, request)
    assert server.open("empty").schema.field("n").type == pa.int32()


def test_add_columns_of_a_schema_are_null(table: Columns) -> None:
    schema = pa.schema(
        [pa.field("e", pa.list_(pa.float32(), 3), metadata={"k": "v"}), ("d", pa.timestamp("us", "UTC"))]
    )
    assert table.add(schema=to_json(schema)).version == 2
    assert table.dataset.schema.field("e").equals(schema.field("e"), check_metadata=True)
    assert table.dataset.to_table(columns=["e", "d"]).to_pylist() == [{"e": None, "d": None}] * 3


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ([("a", "1")], "The column 'a' exists"),
        ([("n", "1"), ("n", "2")], "twice"),
        ([("n", " ")], "needs an SQL expression"),
        ([("n", "1 +")], "not valid"),
        ([("n", "cast(b as int)")], "Cannot cast"),
        ([("n", "a" + " + 1" * 5000)], "expression of 'n' chains too many"),
        ([("n", "array_repeat(1, 1000000000)")], "times as large"),
        ([("n.m", "1")], "'n.m' cannot be the name"),
        ([("_rowid", "1")], "responses to queries use it"),
        ([], "Give either"),
    ],
)
def test_add_columns_that_cannot_be_are_invalid_input(table: Columns, new: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        table.add(*new)
    assert table.dataset.version == 1


def test_add_columns_expression_over_an_unknown_column_names_those_there_are(table: Columns) -> None:
    with pytest.raises(TableColumnNotFoundError, match=r"nope.*a, b, s, v"):
        table.add(("n", "nope + 1"))


def test_add_columns_from_several_threads_all_arrive(table: Columns) -> None:
    threads = [threading.Thread(target=table.add, args=((f"n{number}", str(number)),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(table.dataset.schema.names) == {*DATA.schema.names, *(f"n{number}" for number in range(6))}


def test_add_columns_on_a_branch_leaves_main_alone(table: Columns) -> None:
    table.dataset.create_branch("dev")
    table.add(("n", "a"), branch="dev")
    assert "n" not in table.dataset.schema.names
    assert "n" in table.dataset.checkout_version(("dev", None)).schema.names
    with pytest.raises(TableBranchNotFoundError):
        table.add(("n", "a"), branch="nope")


def test_alter_columns_several_changes_are_one_version(table: Columns) -> None:
    version = table.alter(
        {"path": "a", "rename": "aa", "data_type": {"type": "int64"}},
        {"path": "b", "nullable": True},
        {"path": "s.y.z", "rename": "zz"},
        {"path": "v", "data_type": '{"type": "fixed_size_list:halffloat:2"}'},
    ).version
    assert version == 2
    schema = table.dataset.schema
    assert schema.field("aa") == pa.field("aa", pa.int64())
    assert schema.field("s").type.field("y").type.field("zz").type == pa.int8()
    assert schema.field("v").type == pa.list_(pa.float16(), 2)


@pytest.mark.parametrize("data_type", ["int64", {"type": "int64"}, json.dumps({"type": "int64"})])
def test_alter_columns_type_may_be_object_json_or_name(table: Columns, data_type: Any) -> None:
    table.alter({"path": "a", "data_type": data_type})
    assert table.dataset.schema.field("a").type == pa.int64()


@pytest.mark.parametrize(
    ("alterations", "message"),
    [
        ([], "at least one"),
        ([{"path": "a"}], "Say what to alter"),
        ([{"path": "a", "rename": "b"}], "The column 'b' exists"),
        ([{"path": "a", "rename": "n"}, {"path": "b", "rename": "n"}], "The column 'n' exists"),
        ([{"path": "a", "rename": "x"}, {"path": "a", "nullable": False}], "twice"),
        ([{"path": "a", "rename": ""}], "cannot be the name"),
        ([{"path": "a", "data_type": "nonsense"}], "Unknown data type"),
        ([{"path": "b", "data_type": "int32"}], "[Cc]annot cast"),
        ([{"path": "b", "nullable": False}], "NULL values"),
        ([{"path": "a", "data_type": "int8"}], "[Cc]ast"),
        ([{"path": "a", "data_type": "int64"}, {"path": "s.x", "nullable": False}], "apply the cast first"),
    ],
)
def test_alter_columns_that_cannot_be_is_invalid_input_and_changes_nothing(
    table: Columns, alterations: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        table.alter(*alterations)
    assert table.dataset.version == 1


NOON, MIDNIGHT = dt.datetime(2013, 1, 31, 12), dt.datetime(2013, 1, 31)  # noqa: DTZ001  # times without a zone
LISTED = pa.list_(pa.struct([("x y", pa.float64())]))


@pytest.mark.parametrize(
    ("path", "kind", "new_type", "lost", "kept"),
    [
        ("c d", pa.float64(), "float32", 1e300, 0.1),
        ("c", pa.timestamp("us"), "date32", NOON, MIDNIGHT),
        ("c", pa.decimal128(10, 4), "decimal:128:10:2", Decimal("1.2345"), Decimal("1.5")),
        ("c", pa.list_(pa.float64(), 2), "fixed_size_list:float:2", [1e300, 1.0], [0.5, 1.0]),
        ("c.item.`x y`", LISTED, "float32", [{"x y": 1e300}], [{"x y": 0.5}]),
    ],
)
def test_alter_columns_that_would_lose_a_value_is_refused(
    server: Server, path: str, kind: pa.DataType, new_type: str, lost: Any, kept: Any
) -> None:
    column = path.partition(".")[0]
    for name, value in (("lost", lost), ("kept", kept)):
        server.create(name, pa.table({column: pa.array([kept, None, value], kind)}))
        alterations = [{"path": path, "data_type": new_type}]
        request = ask(models.AlterTableAlterColumnsRequest, id=name, alterations=alterations)
        if name == "kept":
            assert columns.alter_table_alter_columns(server.ctx, request).version == 2
            continue
        with pytest.raises(InvalidInputError, match=f"'{path}' cannot become .* without a loss"):
            columns.alter_table_alter_columns(server.ctx, request)
        assert server.open(name).version == 1


def test_alter_columns_with_an_unknown_one_changes_nothing(table: Columns) -> None:
    with pytest.raises(TableColumnNotFoundError, match=r"'nope'.*a, b, s, v"):
        table.alter({"path": "a", "rename": "aa"}, {"path": "nope", "rename": "n"})
    assert table.dataset.version == 1


def test_drop_columns_also_nested_ones(table: Columns) -> None:
    assert table.drop("b", "s.y", "b").version == 2
    assert table.dataset.schema.names == ["a", "s", "v"]
    assert table.dataset.schema.field("s").type == pa.struct([("x", pa.int32())])


def test_drop_columns_unknown_none_or_all_is_refused(table: Columns) -> None:
    with pytest.raises(TableColumnNotFoundError, match="nope"):
        table.drop("a", "nope")
    with pytest.raises(InvalidInputError, match="at least one"):
        table.drop()
    with pytest.raises(InvalidInputError, match="drop the table"):
        table.drop(*DATA.schema.names)
    assert table.dataset.version == 1


def test_schema_metadata_is_replaced(table: Columns) -> None:
    assert table.metadata(metadata={"k": "1", "gone": "2"}).metadata == {"k": "1", "gone": "2"}
    assert table.metadata(metadata={"k": "3"}).metadata == {"k": "3"}
    assert table.dataset.schema.metadata == {b"k": b"3"}
    assert table.metadata().metadata == {}


def test_field_metadata_is_merged_nulls_remove_and_replace_clears(table: Columns) -> None:
    table.fields({"path": "a", "metadata": {"k": "1", "l": "2"}}, {"path": "s.y.z", "metadata": {"deep": "yes"}})
    response = table.fields(
        {"path": "a", "metadata": {"k": None, "m": "3"}}, {"path": "s.y.z", "metadata": {"new": "1"}, "replace": True}
    )
    assert response.version == 3
    assert response.fields == {"a": {"l": "2", "m": "3"}, "s.y.z": {"new": "1"}}
    assert table.dataset.schema.field("a").metadata == {b"l": b"2", b"m": b"3"}


def test_field_metadata_that_declares_code_is_refused(table: Columns) -> None:
    with pytest.raises(InvalidInputError, match=r"tiltyard\.udf\.code"):
        table.fields({"path": "a", "metadata": {"tiltyard.udf.code": "gASVAAAAAAAAAIw="}})


def test_field_metadata_of_an_unknown_field_changes_nothing(table: Columns) -> None:
    with pytest.raises(TableColumnNotFoundError):
        table.fields({"path": "a", "metadata": {"k": "1"}}, {"path": "nope", "metadata": {}})
    with pytest.raises(InvalidInputError, match="twice"):
        table.fields({"path": "a", "metadata": {}}, {"path": "a", "metadata": {}})
    assert table.dataset.version == 1


def test_columns_of_a_missing_or_declared_table_are_refused(table: Columns) -> None:
    table.server.declare("declared")
    with pytest.raises(InvalidTableStateError):
        table.drop("a", id="declared")
    with pytest.raises(TableNotFoundError):
        table.drop("a", id="missing")


def test_add_columns_schema_that_is_not_nullable_is_refused(table: Columns) -> None:
    with pytest.raises((InvalidInputError, TableSchemaValidationError), match="nullable"):
        table.add(schema=to_json(pa.schema([pa.field("n", pa.int8(), nullable=False)])))
