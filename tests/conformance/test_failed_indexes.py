"""Every stock client reports an index that cannot be built, with the reason."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import lance_namespace_urllib3_client as models
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client.api import IndexApi
from lancedb.remote.errors import HttpError

pytestmark = pytest.mark.parametrize("server", ["embedded"], indirect=True)

LONG = datetime.timedelta(minutes=5)


@pytest.fixture
def table(raw: Any, remote: Any, fresh: Callable[[str], str]) -> Any:
    """A table whose files are broken, so that its index cannot be built."""
    table = remote.create_table(fresh("t"), pa.table({"id": pa.array(range(1000), pa.int64())}))
    location = raw.post(f"/v1/table/{table.name}/describe").json()["location"]
    for file in Path(unquote(urlsplit(location).path)).glob("data/*.lance"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    table.create_scalar_index("id")
    return table


def test_wait_for_index_ends_with_the_reason(raw: Any, table: Any) -> None:
    with pytest.raises(HttpError, match=r"could not be built: .*not appear to be a Lance file") as failed:
        table.wait_for_index(["id_idx"], timeout=LONG)
    assert failed.value.status_code == 400
    (config,) = table.list_indices()
    assert (config.name, config.columns, config.num_unindexed_rows) == ("id_idx", ["id"], 1000)
    (entry,) = raw.post(f"/v1/table/{table.name}/index/list").json()["indexes"]
    assert entry["status"] == "failed"
    assert "not appear to be a Lance file" in entry["failure"]
    table.drop_index("id_idx")
    assert (table.list_indices(), table.index_stats("id_idx")) == ([], None)


def test_clients_of_the_specification_read_its_state(table: Any, generated: Any, rest: Any) -> None:
    with pytest.raises(HttpError, match="could not be built"):
        table.wait_for_index(["id_idx"], timeout=LONG)
    for indexes in (
        IndexApi(generated).list_table_indices(table.name, models.ListTableIndicesRequest()),
        rest.list_table_indices(models.ListTableIndicesRequest(id=[table.name])),
    ):
        assert [(entry.index_name, entry.status) for entry in indexes.indexes] == [("id_idx", "failed")]
    for stats in (
        IndexApi(generated).describe_table_index_stats(table.name, "id_idx", models.DescribeTableIndexStatsRequest()),
        rest.describe_table_index_stats(models.DescribeTableIndexStatsRequest(id=[table.name], index_name="id_idx")),
    ):
        assert (stats.index_type, stats.num_indexed_rows, stats.num_unindexed_rows) == ("BTREE", 0, 1000)


def test_an_index_of_no_rows_is_waited_for_until_it_is_there(remote: Any, fresh: Callable[[str], str]) -> None:
    table = remote.create_table(fresh("t"), schema=pa.schema([("id", pa.int64())]))
    table.create_scalar_index("id")
    table.wait_for_index(["id_idx"], timeout=LONG)
    assert table.index_stats("id_idx").num_indices == 1
