"""Views for tests: made through the server by its client, read by plain pylance."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import CreateMaterializedViewRequest
from pyspark import cloudpickle

from tiltyard.pipeline.catalog_client import CatalogConnection, table

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def write(catalog: CatalogConnection, name: str, rows: pa.Table, mode: str = "create") -> None:
    """Rows into a table, by stock pylance."""
    lance.write_dataset(rows, namespace_client=catalog.client(), table_id=[name], mode=mode)


def numbers(first: int, end: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": range(first, end), "text": [f"row {number}" for number in range(first, end)]}, SCHEMA)


def create_view(catalog: CatalogConnection, name: str, query: str, schema: pa.Schema = SCHEMA, **fields: Any) -> None:
    """A view, by upstream's own operation."""
    definition = {"kind": "query", "source_query": query, **fields}
    output = base64.b64encode(schema.serialize().to_pybytes()).decode()
    catalog.client().create_materialized_view(
        CreateMaterializedViewRequest(id=name.split("$"), output_schema=output, **definition)
    )


def spec(kind: str, function: Callable[..., Any], inputs: list[str] | None, **fields: Any) -> dict[str, Any]:
    """The udtf_spec of a function, in the envelope that Lance's clients send."""
    envelope = json.dumps({f"{kind}_payload": base64.b64encode(cloudpickle.dumps(function)).decode()}).encode()
    definition = {"kind": kind, "udtf_name": "f", "udtf_version": "1", "input_columns": inputs, **fields}
    return {**definition, "udtf": base64.b64encode(envelope).decode(), "udtf_sha": hashlib.sha256(envelope).hexdigest()}


def contents(catalog: CatalogConnection, name: str, key: str = "id") -> pa.Table:
    """A table's rows, by plain pylance from its files."""
    location = table(catalog, name).location()
    return lance.dataset(location.uri).to_table().sort_by(key).replace_schema_metadata(None)


def words(id: int, text: str) -> Any:  # noqa: A002  # the column's name
    """A chunker: the words of a text, numbered; of the first row none."""
    return [{"word": word, "number": number} for number, word in enumerate(text.split())] if id else None


def whole(text: pa.Array, __source_row_id: pa.Array) -> pa.RecordBatch:
    """A chunker of whole batches: each text twice."""
    rows = [number for number in __source_row_id.to_pylist() for _ in range(2)]
    columns = {"__source_row_id": rows, "word": text.take(pa.array(rows)), "number": [0, 1] * len(text)}
    return pa.RecordBatch.from_pydict(columns)


def failing(text: str) -> Any:
    """A chunker that fails."""
    raise ValueError("no words")


def words_but_of_one(id: int, text: str) -> Any:  # noqa: A002  # the column's name
    """A chunker that fails on one row."""
    if id == 3:
        raise ValueError("no words")
    return words(id, text)


def totals(rows: pa.Table) -> Any:
    """A UDTF: how many rows of a group there are, and their sum."""
    groups = set(rows["group"].to_pylist())
    yield pa.record_batch({"id": [min(groups)], "count": [rows.num_rows], "sum": [sum(rows["id"].to_pylist())]})


def dying(folder: str, id: int, text: str) -> Any:  # noqa: A002  # the column's name
    """A chunker that gives each row, and kills its process at the first one it is ever given."""
    mark = Path(folder) / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"id": id, "text": text}]


def held(folder: str, id: int, text: str) -> Any:  # noqa: A002  # the same
    """A chunker that gives each row, once it may go on."""
    (Path(folder) / "at").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)
    return [{"id": id, "text": text}]
