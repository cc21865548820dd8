"""Searches of vectors in memory stay within the policies of a table."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa

from tests.access.policies.people import TABLE, call, good, rows
from tests.access.scenes import send
from tests.services.secured import secured_server
from tests.services.wire import stream
from tiltyard.model.spec import operations

COUNT = 600


def test_searches_in_memory_find_visible_rows_alone(tmp_path: Path) -> None:
    places = np.random.default_rng(1).normal(size=(COUNT, 8)).astype(np.float32)
    people = pa.table(
        {
            "id": range(COUNT),
            "team": ["red" if number % 20 == 0 else "blue" for number in range(COUNT)],
            "pay": range(COUNT),
            "place": pa.FixedSizeListArray.from_arrays(pa.array(places.reshape(-1)), 8),
        }
    )
    near = {"vector": {"single_vector": places[1].tolist()}, "k": 40, "columns": {"column_names": ["id", "team"]}}
    memory = {"TILTYARD_VECTOR_CACHE_BYTES": str(1 << 26)}
    with (
        secured_server(tmp_path, environ=memory, names=("ann",)) as secured,
        secured.http("administrator") as admin,
        secured.http("ann") as ann,
    ):
        good(send(admin, operations()["CreateNamespace"], {"id": TABLE[:1]}))
        granted = {"object_kind": "namespace", "id": TABLE[:1], "grantee": "ann", "privileges": ["all"]}
        good(send(admin, operations()["GrantPrivileges"], granted))
        good(call(admin, "CreateTable", stream(people)))
        index = {"column": "place", "index_type": "IVF_FLAT", "distance_type": "l2"}
        good(call(admin, "CreateTableIndex", **index))
        deadline = time.monotonic() + 60
        while "Route: index_in_memory" not in (plan := good(call(admin, "ExplainTableQueryPlan", query=near))):
            assert time.monotonic() < deadline, plan
            rows(admin, **near)
            time.sleep(0.1)
        assert {row["team"] for row in rows(admin, **near)} == {"red", "blue"}
        good(call(admin, "SetTablePolicy", name="own team", filter="team = 'red'"))
        before = searches_in_memory(admin)
        visible = rows(ann, **near)
        assert {row["team"] for row in visible} == {"red"}
        assert len(visible) == COUNT // 20
        filtered = rows(ann, filter="id >= 300", **near)
        assert {row["id"] for row in filtered} == set(range(300, COUNT, 20))
        assert len(rows(admin, filter="id >= 300", **near)) == 40
        assert searches_in_memory(admin) == before + 3
        masks = [{"column": "pay", "mask": "null"}]
        good(call(admin, "SetTablePolicy", name="masks", masks=masks))
        masked = rows(ann, **near | {"columns": {"column_names": ["id", "pay"]}})
        assert [row["pay"] for row in masked] == [None] * len(visible)
        assert searches_in_memory(admin) == before + 3


def searches_in_memory(http: httpx.Client) -> float:
    """Return how many searches the index in memory has answered."""
    lines = [line for line in http.get("/metrics").text.splitlines() if "searches of vectors in memory" in line]
    return float(lines[0].rsplit(" ", 1)[1])
