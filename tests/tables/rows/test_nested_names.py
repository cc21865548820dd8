"""Inner field names of lists and maps: rows are accepted whatever names their writer gives them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace import errors
from tests.tables.bodies import Streamed, small
from tests.tables.rows.calls import begin_upload, complete_upload, insert, merge
from tests.tables.served import Server

from tiltyard.model.operations import ArrowBody

PLACE = pa.struct([("x", pa.int64())])


def schema_with_names(array: str, key: str, value: str) -> pa.Schema:
    """Return the schema with the inner field names of a writer."""
    texts = pa.list_(pa.field(array, pa.string()))
    labels = pa.map_(pa.field(key, pa.string(), nullable=False), pa.field(value, texts))
    return pa.schema(
        [
            ("id", pa.int64()),
            ("texts", texts),
            ("large", pa.large_list(pa.field(array, pa.int32()))),
            ("pair", pa.list_(pa.field(array, pa.float32()), 2)),
            ("places", pa.list_(pa.field(array, PLACE))),
            ("labels", labels),
            ("inner", pa.struct([("labels", labels), ("texts", texts)])),
        ]
    )


def table(schema: pa.Schema, *keys: int) -> pa.Table:
    def row(key: int) -> dict[str, Any]:
        labels, texts = [("a", [f"t{key}"]), ("b", [])], ["x", None]
        inner = {"labels": labels, "texts": texts}
        return {
            "id": key,
            "texts": texts,
            "large": [key],
            "pair": [0.5, key],
            "places": [{"x": key}],
            "labels": labels,
            "inner": inner,
        }

    return pa.Table.from_pylist([row(key) for key in keys], schema)


def through_parquet(rows: pa.Table) -> pa.Table:
    """Return the rows as pyarrow reads them from Parquet: the entries of a map have the name of its column."""
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return pq.read_table(sink)


ARROW = schema_with_names("item", "key", "value")
OTHER = schema_with_names("element", "k", "v")


@pytest.mark.parametrize("body", [small, Streamed])
@pytest.mark.parametrize(("existing", "incoming"), [(ARROW, OTHER), (OTHER, ARROW)])
def test_every_way_in_takes_rows_with_other_inner_names(
    server: Server, body: Callable[[pa.Table], ArrowBody], existing: pa.Schema, incoming: pa.Schema
) -> None:
    server.create("t", through_parquet(table(existing, 0)))
    stored = server.open("t").schema
    insert(server, body(table(incoming, 1)))
    upload = begin_upload(server)
    insert(server, body(table(incoming, 2)), upload_id=upload, upload_part_id="a")
    complete_upload(server, upload)
    merge(server, body(table(incoming, 2, 3)), when_matched_update_all=True, when_not_matched_insert_all=True)
    merge(server, body(through_parquet(table(incoming, 4))), when_not_matched_insert_all=True)
    dataset = server.open("t")
    assert sorted(dataset.to_table().to_pylist(), key=lambda row: row["id"]) == table(existing, *range(5)).to_pylist()
    assert dataset.schema.equals(stored, check_metadata=True), "the table keeps its own names"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (pa.list_(pa.struct([("x", pa.int64()), ("y", pa.int64())])), [{"x": 1, "y": 2}], "places.y"),
        (pa.list_(pa.struct([("y", pa.int64())])), [{"y": 2}], "places.y"),
        (pa.list_(pa.string()), ["x"], "'places' is list"),
        (pa.list_view(PLACE), [{"x": 1}], "'places' is list"),
    ],
)
def test_insert_of_fields_that_a_list_lacks_is_refused(
    server: Server, kind: pa.DataType, value: Any, message: str
) -> None:
    server.create("t", pa.table({"places": pa.array([[{"x": 1}]], pa.list_(PLACE))}))
    with pytest.raises(errors.TableSchemaValidationError, match=message):
        insert(server, Streamed(pa.table({"places": pa.array([value], kind)})))


def test_insert_without_a_required_field_of_a_list_is_refused(server: Server) -> None:
    strict = pa.list_(pa.struct([("x", pa.int64()), pa.field("y", pa.int64(), nullable=False)]))
    server.create("t", pa.table({"places": pa.array([[{"x": 1, "y": 2}]], strict)}))
    for kind, value in [(PLACE, {"x": 1}), (pa.struct([("x", pa.int64()), ("y", pa.int64())]), {"x": 1, "y": None})]:
        with pytest.raises(errors.TableSchemaValidationError, match="'places'"):
            insert(server, Streamed(pa.table({"places": pa.array([[value]], pa.list_(kind))})))
