"""Columns and indexes that a view declares with its query: what is refused, who may have code run, what stays as is."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import msgspec
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from tests.tables.served import Server, ask

from tiltyard.calls.in_process_caller import InProcessCaller
from tiltyard.catalog.views import describe_materialized_view
from tiltyard.model.principals import Principal, parse_privileges
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import ViewDefinition
from tiltyard.store.access.grants import SERVER
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.columns import alter_table_alter_columns, alter_table_drop_columns
from tiltyard.tables.views.materialized_views import create_materialized_view, refresh_materialized_view

SCHEMA = pa.schema([("id", pa.int64()), ("chunk", pa.string())])
ITEM = {"name": "item", "nullable": True, "type": {"type": "float32"}}
VECTOR: dict[str, Any] = {
    "name": "vector",
    "virtual_column": {
        "input_columns": ["chunk"],
        "data_type": {"type": "fixed_size_list", "fields": [ITEM], "length": 8},
        "image": "",
        "udf": base64.b64encode(b"a function").decode(),
        "udf_name": "embed",
        "udf_version": "1",
    },
}  # fmt: skip
LETTERS = {"name": "letters", "computed": "length(chunk)"}
NORM = {"name": "long", "computed": "letters > 5"}
INDEXES = [{"column": "chunk", "index_type": "fts"}, {"column": "vector", "index_type": "IVF_PQ", "name": "near"}]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, udfs=True)
    server.create("pages", pa.table({"id": [1], "text": ["a"]}))
    yield server
    server.services.close()


def create(server: Server, as_: str | None = None, **changes: Any) -> None:
    fields = {
        "id": ["v"], "kind": "query", "source_query": "SELECT id, text AS chunk FROM pages",
        "output_schema": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(),
    }  # fmt: skip
    if as_ is None:
        create_materialized_view(server.ctx, msgspec.convert(fields | changes, models.CreateMaterializedViewRequest))
    else:
        InProcessCaller(server.services, Principal(as_)).call("CreateMaterializedView", **(fields | changes))


def of_code(inputs: list[str], name: str = "vector") -> dict[str, Any]:
    return {"name": name, "virtual_column": {**VECTOR["virtual_column"], "input_columns": inputs}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": [{"name": "chunk", "computed": "id"}]}, "'chunk' cannot be computed: the query has that name"),
        ({"columns": [{"name": "Chunk", "computed": "id"}]}, "'Chunk' cannot be computed: another column of the view"),
        ({"columns": [of_code(["text"])]}, "'vector' is computed of 'text', which the view lacks: it has id, chunk"),
        ({"columns": [of_code([])]}, "The code of 'vector' reads no column"),
        ({"columns": [{"name": "n", "computed": "length(txt)"}]}, "txt"),
        ({"columns": [{"name": "n", "computed": "random()"}]}, "random"),
        ({"columns": [{"name": "n", "computed": "m + 1"}, {"name": "m", "computed": "n + 1"}]}, "read each other"),
        ({"columns": [{"name": "n", "expression": "id"}]}, "is declared as 'computed' or 'virtual_column'"),
        ({"columns": [{"name": "n"}]}, "needs one of 'computed'"),
        ({"columns": [{"name": f"n{number}", "computed": "id"} for number in range(65)]}, "64 columns besides"),
        ({"indexes": [{"column": "text", "index_type": "FTS"}]}, "no column 'text' to index: it has id, chunk"),
        ({"indexes": [{"column": "id", "index_type": "FTS"}]}, "FTS needs"),
        ({"indexes": [{"column": "id", "index_type": "FAST"}]}, "Unknown index type 'FAST'"),
        ({"indexes": [{"column": "id", "index_type": "BTREE"}] * 2}, "Two indexes of the view are called 'id_idx'"),
        ({"indexes": [{"column": "id", "index_type": "BTREE", "branch": "dev"}]}, "An index of a view has none of"),
        ({"auto_refresh": True, "auto_refresh_interval_seconds": -1.0}, "auto_refresh_interval_seconds is above 0"),
        ({"kind": "select", "output_schema": "", "indexes": INDEXES[:1]}, "Views of the kind 'select' compute no"),
    ],
)
def test_definition_that_cannot_be_is_one_sentence_and_makes_no_view(
    served: Server, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LanceNamespaceError, match=message):
        create(served, **changes)
    with pytest.raises(TableNotFoundError):
        served.services.store.describe_table(("v",))


def test_definition_is_described_and_its_columns_stay_as_they_are(served: Server) -> None:
    create(
        served, columns=[NORM, LETTERS, VECTOR], indexes=INDEXES, auto_refresh=True, auto_refresh_interval_seconds=300
    )
    schema = served.open("v").schema
    assert sorted(schema.names) == ["chunk", "id", "letters", "long", "vector"]
    described = describe_materialized_view(served.ctx, ask(models.DescribeMaterializedViewRequest, id="v"))
    assert [(each.name, each.function, each.expression, each.inputs) for each in described.columns or ()] == [
        ("long", None, "letters > 5", ["letters"]), ("letters", None, "length(chunk)", ["chunk"]),
        ("vector", "embed", None, ["chunk"]),
    ]  # fmt: skip
    assert [(each.column, each.index_type, each.name) for each in described.indexes or ()] == [
        ("chunk", "FTS", "chunk_idx"), ("vector", "IVF_PQ", "near"),
    ]  # fmt: skip
    assert (described.auto_refresh, described.auto_refresh_interval_seconds) == (True, 300)
    with pytest.raises(InvalidInputError, match="The view's definition makes the column 'vector'"):
        alter_table_drop_columns(served.ctx, ask(models.AlterTableDropColumnsRequest, id="v", columns=["vector"]))
    code = {"udf_version": "2", "input_columns": ["chunk"]}
    for alteration in ({"path": "long", "rename": "far"}, {"path": "vector", "virtual_column": code}):
        request = ask(models.AlterTableAlterColumnsRequest, id="v", alterations=[alteration])
        with pytest.raises(InvalidInputError, match="The view's definition makes the column"):
            alter_table_alter_columns(served.ctx, request)
    more = {"name": "more", "computed": "id * 2"}
    alter_table_add_columns(served.ctx, ask(models.AlterTableAddColumnsRequest, id="v", new_columns=[more]))
    alter_table_drop_columns(served.ctx, ask(models.AlterTableDropColumnsRequest, id="v", columns=["more"]))


def test_definition_without_columns_has_the_digest_of_earlier_releases() -> None:
    definition = ViewDefinition.from_metadata({b"tiltyard.view.kind": b"query", b"tiltyard.view.query": b"SELECT 1"})
    assert definition is not None
    assert definition.digest == "4408a5fef3f36b9d6dcf8ded8ab4d9a16393709651ea5a9661f39005ff454b7e"


def test_definition_with_code_is_refreshed_by_those_who_may_run_it_while_its_creator_may(served: Server) -> None:
    store = served.services.store
    as_ann, as_eve = (msgspec.structs.replace(served.ctx, principal=Principal(name)) for name in ("ann", "eve"))
    store.grant("principal:ann", SERVER, 0, parse_privileges(["create", "read", "write", "run_udfs"]), "test")
    store.grant("principal:eve", SERVER, 0, parse_privileges(["create", "read", "write"]), "test")
    with pytest.raises(PermissionDeniedError, match="run_udfs"):
        create(served, "eve", columns=[VECTOR])
    create(served, "ann", columns=[VECTOR, LETTERS])
    refresh = ask(models.RefreshMaterializedViewRequest, id="v")
    with pytest.raises(PermissionDeniedError, match="run_udfs"):
        refresh_materialized_view(as_eve, refresh)
    assert refresh_materialized_view(as_ann, refresh).job_id
    store.revoke("principal:ann", SERVER, 0, parse_privileges(["read", "write", "create"]))  # what stays
    served.ctx.rights_cache.refresh_next()
    with pytest.raises(PermissionDeniedError, match="runs code of ann, its creator, who may not let code run there"):
        refresh_materialized_view(served.ctx, refresh)


def test_definition_with_code_is_refused_where_that_is_switched_off(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with pytest.raises(UnsupportedOperationError, match="the server's setting 'udfs' allows them"):
        create(server, columns=[VECTOR])
    create(server, columns=[LETTERS])
    assert lance.dataset(server.services.store.describe_table(("v",)).location).schema.names[-1] == "letters"
    server.services.close()
