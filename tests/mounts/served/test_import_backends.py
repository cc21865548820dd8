"""A table moves out of each backend and back: it is never in neither catalog, and never opened by two names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.mounts.backends import Backend, new_name
from tests.services.wire import Wire, check_error, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

ROWS = pa.table({"id": [1, 2, 3]})


def move(wire: Wire, path: list[str], new_path: list[str], **more: Any) -> Any:
    return wire.http.post(f"/tiltyard/v1/table/{'$'.join(path)}/move", json={"new_id": new_path, **more})


def count(wire: Wire, path: list[str]) -> int:
    response = wire.call("table", path, "count_rows")
    assert response.status_code == 200, response.text
    return int(response.json())


def takes_tables_where_they_lie(backend: Backend) -> bool:
    return backend.location_of is not None


def test_table_moves_here_and_back(wire: Wire, home: Id, catalog: MountedCatalog, backend: Backend) -> None:
    name = new_name("moved")
    there, here, back = [*home, name], [name], [*home, new_name("back")]
    created = wire.call("table", there, "create", stream(ROWS))
    assert created.status_code == 200, created.text
    location = created.json()["location"]
    kept = move(wire, there, here, keep_entry=True)
    assert kept.status_code == 200, kept.text
    assert kept.json()["location"] == location
    assert catalog.list_tables(Id(home[1:])).names == (name,)
    assert check_error(wire.call("table", there, "count_rows")) == 19
    again = move(wire, there, here)
    assert again.status_code == 200, again.text
    assert again.json()["was_moved_before"]
    assert catalog.list_tables(Id(home[1:])).names == ()
    assert wire.call("table", here, "insert", stream(ROWS)).status_code == 200
    assert count(wire, here) == backend.count(location) == 6
    returned = move(wire, here, back)
    if takes_tables_where_they_lie(backend):
        assert returned.status_code == 200, returned.text
        assert count(wire, back) == 6
        assert check_error(wire.call("table", here, "count_rows")) == 4
        assert catalog.get_table(Id(back[1:])).location.rstrip("/") == location
        assert wire.call("table", back, "insert", stream(ROWS)).status_code == 200
    else:
        assert check_error(returned) in (0, 13)
        assert count(wire, here) == 6
        assert catalog.list_tables(Id(home[1:])).names == ()


def test_copy_of_a_table_leaves_it(wire: Wire, home: Id, catalog: MountedCatalog) -> None:
    name = new_name("copied")
    assert wire.call("table", [*home, name], "create", stream(ROWS)).status_code == 200
    copied = move(wire, [*home, name], [name], copy=True)
    assert copied.status_code == 200, copied.text
    assert wire.call("table", [name], "insert", stream(ROWS)).status_code == 200
    assert (count(wire, [name]), count(wire, [*home, name])) == (6, 3)
    assert catalog.list_tables(Id(home[1:])).names == (name,)
