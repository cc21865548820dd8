"""Cases of the operations that queue jobs of the pipeline, added to CASES."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from tiltyard_conformance.cases import CASES, Fields, World, case

__all__ = ["CASES"]

SCHEMA = pa.schema([pa.field("id", pa.int64())])


def _view(w: World) -> Fields:
    source = w.table()
    return {
        "id": [w.name("view")],
        "kind": "query",
        "source_query": f"SELECT id FROM {source[0]}",
        "output_schema": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(),
    }


def _refreshed(w: World) -> Fields:
    fields = _view(w)
    w.post(f"/v1/materialized_view/{fields['id'][0]}/create", fields)
    return {"id": fields["id"]}


def _computed(w: World) -> Fields:
    table = w.table()
    columns = {"new_columns": [{"name": "twice", "computed": "id * 2"}]}
    w.post(f"/v1/table/{table[0]}/add_columns", columns)
    return {"id": table, "column": "twice"}


def _queued(w: World, job_id: str) -> str:
    """Return the kind of a queued job."""
    transaction = w.post(f"/v1/transaction/{job_id}/describe")
    assert transaction["status"] == "Queued"
    return str(transaction["properties"]["kind"])


@case("CreateMaterializedView", _view)
def _(w: World, f: Fields, r: Any) -> None:
    assert r.version == 1
    assert w.count(f["id"]) == 0


@case("RefreshMaterializedView", _refreshed)
def _(w: World, f: Fields, r: Any) -> None:
    assert _queued(w, r.job_id) == "refresh"


@case("AlterTableBackfillColumns", _computed)
def _(w: World, f: Fields, r: Any) -> None:
    transaction = w.post(f"/v1/transaction/{r.job_id}/describe")
    assert transaction["status"] != "Failed"
