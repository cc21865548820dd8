"""Events of versions say what their manifests know of rows, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa

from tests.events.receiver import kept_events
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream


def rows(first: int, end: int) -> pa.Table:
    numbers = pa.array(range(first, end), pa.int64())
    return pa.table({"id": numbers, "value": numbers})


def test_versions_tell_their_operation_and_the_rows_that_are_known(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_EVENTS": "true"})
    with Wire(server.url) as wire:

        def upsert(first: int, end: int) -> None:
            on = {"on": "id", "when_matched_update_all": "true", "when_not_matched_insert_all": "true"}
            headers = {"content-type": "application/vnd.apache.arrow.stream"}
            body = stream(rows(first, end))
            wire.good(wire.http.post("/v1/table/t/merge_insert", params=on, content=body, headers=headers))

        wire.good(wire.table(["t"], "create", stream(rows(0, 10))))
        wire.good(wire.table(["t"], "insert", stream(rows(10, 15))))
        wire.good(wire.table(["t"], "delete", {"predicate": "id < 3"}))
        wire.good(wire.table(["t"], "update", {"updates": [["value", "value + 1"]], "predicate": "id > 12"}))
        upsert(13, 20)
        upsert(30, 34)
        wire.good(wire.table(["t"], "create_scalar_index", {"column": "id", "index_type": "BTREE"}))
        client = lance_namespace.connect("rest", {"uri": server.url})
        lance.write_dataset(rows(40, 47), namespace_client=client, table_id=["t"], mode="append")
        found = [_changed(event["data"]) for event in kept_events(wire.http, types="table.version")]
    assert server.stop() == 0
    assert [each for each in found if each["operation"] != "create_index"] == [
        {"operation": "append", "rows_inserted": 5},
        {"operation": "delete", "rows_deleted": 3},
        {"operation": "update", "rows_written": 2, "rows_removed": 2},
        {"operation": "update", "rows_written": 7, "rows_removed": 2},
        {"operation": "update", "rows_inserted": 4},
        {"operation": "append", "rows_inserted": 7},
    ]


def _changed(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name == "operation" or name.startswith("rows")}
