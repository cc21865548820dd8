"""Materialized views: their definition in the table, and the job that refreshes them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import lance
import msgspec
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from tests.tables.served import Server, ask

from tiltyard.catalog.tables import describe_table
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import LINEAGE_PROPERTY, SourceVersion, ViewLineage
from tiltyard.tables.views.materialized_views import create_materialized_view, refresh_materialized_view

SCHEMA = pa.schema([pa.field("year", pa.int32(), metadata={"unit": "a"}), pa.field("v", pa.list_(pa.float32(), 2))])
ENVELOPE = base64.b64encode(b'{"udtf": "chunk"}').decode()
CHUNKER = {
    "kind": "chunker",
    "udtf": ENVELOPE,
    "udtf_sha": hashlib.sha256(b'{"udtf": "chunk"}').hexdigest(),
    "udtf_name": "chunk",
    "udtf_version": "1",
    "input_columns": ["text"],
}


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """A server that allows clients' code."""
    server = Server(tmp_path, udfs=True)
    yield server
    server.services.close()


def create(server: Server, name: str = "v", **changes: Any) -> models.CreateMaterializedViewResponse:
    schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    fields = {"kind": "query", "source_query": "SELECT year, v FROM films", "output_schema": schema, **changes}
    request = msgspec.convert({"id": [name], **fields}, models.CreateMaterializedViewRequest)
    return create_materialized_view(server.ctx, request)


def films(server: Server) -> str:
    """The location of the table that the views read."""
    server.create("films", pa.table({"year": pa.array([1999], pa.int32())}))
    return server.services.store.describe_table(("films",)).location


def refresh(server: Server, name: str = "v", **fields: Any) -> str:
    request = ask(models.RefreshMaterializedViewRequest, id=name, **fields)
    return refresh_materialized_view(server.ctx, request).job_id


def test_create_materialized_view_is_an_empty_table_that_knows_its_query(served: Server) -> None:
    response = create(served, auto_refresh=True)
    dataset = served.open("v")
    assert (response.version, response.job_id, dataset.version, dataset.count_rows()) == (1, None, 1, 0)
    assert (dataset.schema.names, dataset.schema.types) == (SCHEMA.names, SCHEMA.types)
    assert dataset.schema.field("year").metadata == {b"unit": b"a"}
    metadata = {key.decode(): value.decode() for key, value in dataset.schema.metadata.items()}
    assert metadata == {
        "tiltyard.view.kind": "query",
        "tiltyard.view.query": "SELECT year, v FROM films",
        "tiltyard.view.auto_refresh": "true",
        "tiltyard.view.columns": '["year", "v"]',
    }
    with pytest.raises(TableAlreadyExistsError):
        create(served)


def test_create_materialized_view_with_data_queues_its_first_refresh(served: Server) -> None:
    with pytest.raises(TableNotFoundError, match="films"):
        create(served, with_no_data=False)
    location = films(served)
    response = create(served, with_no_data=False)
    assert response.job_id is not None
    record = served.services.store.describe_transaction(response.job_id)
    assert (record.kind, record.payload["arguments"]["table"]) == ("refresh", "v")
    assert record.payload["arguments"]["sources"] == {"films": location}
    assert record.table_id == served.services.store.describe_table(("v",)).id


@pytest.mark.parametrize(
    "query",
    [
        "SELECT year, v FROM table_branch('films', 'dev')",
        "SELECT a.year, a.v FROM films a JOIN Table_Version('films', 1) b ON a.year = b.year",
        "SELECT year, v FROM films VERSION AS OF 1",
        "WITH old AS (SELECT * FROM films TIMESTAMP AS OF '2020-01-01') SELECT year, v FROM old",
    ],
)
def test_refresh_of_a_query_that_names_a_branch_or_a_version_is_refused(served: Server, query: str) -> None:
    films(served)
    create(served, source_query=query)
    with pytest.raises(InvalidInputError, match="reads the latest version of main"):
        refresh(served)
    with pytest.raises(InvalidInputError, match="reads the latest version of main"):
        create(served, "other", source_query=query, with_no_data=False)
    create(served, "named", source_query="SELECT year, v FROM films AS table_branch")
    refresh(served, "named")


def test_create_materialized_view_of_a_chunker_keeps_its_code_as_it_came(served: Server) -> None:
    create(served, kind="scalar_udtf", udtf_spec=CHUNKER)
    metadata = served.open("v").schema.metadata
    assert metadata[b"tiltyard.view.kind"] == b"chunker" and json.loads(metadata[b"tiltyard.view.udtf"]) == CHUNKER


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "magic"}, "not a kind of view"),
        ({"udtf_spec": CHUNKER}, "has no udtf_spec"),
        ({"kind": "chunker"}, "needs a udtf_spec"),
        ({"kind": "udtf", "udtf_spec": CHUNKER}, "of kind 'chunker'"),
        ({"kind": "chunker", "udtf_spec": {**CHUNKER, "udtf_sha": "00"}}, "udtf_sha"),
        ({"output_schema": "AAAA"}, "not an Arrow schema"),
        ({"output_schema": "!"}, "not base64"),
        ({"output_schema": "\U0006a882"}, "not base64"),
        ({"source_query": " "}, "source_query"),
    ],
)
def test_create_materialized_view_that_cannot_be_creates_nothing(
    served: Server, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        create(served, **changes)
    assert served.services.store.list_all_tables(None, 10) == []


def test_create_materialized_view_with_code_where_it_is_switched_off_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match="setting 'udfs'"):
        create(Server(tmp_path), kind="chunker", udtf_spec=CHUNKER)


def test_refresh_materialized_view_queues_the_job_with_what_was_asked(served: Server) -> None:
    create(served)
    location = films(served)
    record = served.services.store.describe_transaction(refresh(served, src_version=3, max_rows_per_fragment=10))
    arguments = dict(record.payload["arguments"])
    digest = arguments.pop("definition")
    expected = {"table": "v", "source_version": 3, "rows_per_fragment": 10, "sources": {"films": location}}
    assert arguments == expected
    view = served.services.store.describe_view(served.services.store.describe_table(("v",)).id)
    assert view is not None
    assert view.definition == digest


def test_refresh_of_what_is_no_view_or_no_chunker_is_invalid_input(served: Server) -> None:
    served.create("t", pa.table({"a": [1]}))
    with pytest.raises(InvalidInputError, match="not a materialized view"):
        refresh(served, "t")
    create(served)
    with pytest.raises(InvalidInputError, match="output_limit"):
        refresh(served, output_limit=3)


def test_refresh_of_a_view_that_this_catalog_did_not_make_is_refused(served: Server) -> None:
    metadata = {"tiltyard.view.kind": "query", "tiltyard.view.query": "SELECT year FROM films"}
    served.create("found", pa.table({"year": [1]}).replace_schema_metadata(metadata))
    with pytest.raises(InvalidTableStateError, match="create the view again"):
        refresh(served, "found")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"error_handling": {"retry": 1}}, UnsupportedOperationError, "error_handling"),
        ({"manifest": json.dumps({"worker_image": "evil:1"})}, InvalidInputError, "udf_images"),
        ({"manifest": "{"}, InvalidInputError, "not JSON"),
    ],
)
def test_create_materialized_view_with_code_that_may_not_run_creates_nothing(
    served: Server, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create(served, kind="chunker", udtf_spec={**CHUNKER, **fields})
    assert served.services.store.list_all_tables(None, 10) == []


def test_describe_of_a_view_behind_a_compaction_that_remapped_an_index_tells_what_it_was_made_of(
    served: Server,
) -> None:
    create(served)
    view = served.open("v")
    rows = pa.table({"year": [1, 2], "v": [[0.0, 0.0]] * 2}, SCHEMA)
    lineage = ViewLineage({"films": SourceVersion("there", 7)}, "digest").to_json()
    lance.write_dataset(
        rows, view, mode="append", max_rows_per_file=1, transaction_properties={LINEAGE_PROPERTY: lineage}
    )
    dataset = served.open("v")
    dataset.create_scalar_index("year", "BTREE")
    dataset.optimize.compact_files()
    for _ in range(2):
        description = describe_table(served.ctx, ask(models.DescribeTableRequest, id="v", load_detailed_metadata=True))
        assert (description.properties or {})["tiltyard.view.sources"] == '{"films":7}'
    films(served)
    assert refresh(served)
