"""lancedb's namespace connection: tables are found here, rows are read and written by the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

Fresh = Callable[[str], str]

ROWS = pa.table({"id": [1, 2, 3], "vector": pa.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], pa.list_(pa.float32(), 2))})


def test_create_open_and_query(local_writes: Any, fresh: Fresh) -> None:
    name = fresh("t")
    table = local_writes.create_table(name, ROWS)
    table.add(ROWS)
    reopened = local_writes.open_table(name)
    assert reopened.count_rows() == 6
    assert reopened.search([1.0, 0.0]).limit(1).to_list()[0]["id"] == 1
    assert name in local_writes.table_names(limit=1000)


def test_create_of_an_existing_one_says_so(local_writes: Any, fresh: Fresh) -> None:
    name = fresh("t")
    local_writes.create_table(name, ROWS)
    with pytest.raises(Exception, match="already exists"):
        local_writes.create_table(name, ROWS)
    assert local_writes.create_table(name, ROWS, exist_ok=True).count_rows() == 3
    assert local_writes.create_table(name, ROWS.slice(1), mode="overwrite").count_rows() == 2


def test_namespaces_rename_and_drop(local_writes: Any, fresh: Fresh) -> None:
    space, name = [fresh("space")], fresh("t")
    local_writes.create_namespace(space)
    local_writes.create_table(name, ROWS, namespace_path=space)
    assert local_writes.table_names(namespace_path=space) == [name]
    local_writes.rename_table(name, "renamed", cur_namespace_path=space, new_namespace_path=space)
    assert local_writes.open_table("renamed", namespace_path=space).count_rows() == 3
    local_writes.drop_table("renamed", namespace_path=space)
    assert local_writes.table_names(namespace_path=space) == []
    local_writes.drop_namespace(space)


def test_rows_written_by_the_client_are_seen_by_the_server(local_writes: Any, remote: Any, fresh: Fresh) -> None:
    name = fresh("t")
    local_writes.create_table(name, ROWS)
    server_table = remote.open_table(name)
    assert server_table.count_rows() == 3
    local_writes.open_table(name).add(ROWS)
    assert server_table.count_rows() == 6
    server_table.add(ROWS)
    assert local_writes.open_table(name).count_rows() == 9
