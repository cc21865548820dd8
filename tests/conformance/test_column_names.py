"""Names of columns: whole everywhere, or refused before a table has them; through the stock clients."""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lancedb.index import FTS, BTree, IvfFlat
from lancedb.remote.errors import HttpError

Fresh = Callable[[str], str]
WAIT = datetime.timedelta(minutes=5)
NO_COLUMN = ("a.b", "a`b", "`a`", "", "a\0b")
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_names_that_cannot_be_read_again_are_refused_wherever_columns_come_in(
    raw: Any, remote: Any, fresh: Fresh
) -> None:
    headers = {"content-type": "application/vnd.apache.arrow.stream"}
    existing, declared, name = remote.create_table(fresh("t"), ROWS).name, fresh("declared"), fresh("new")
    raw.post(f"/v1/table/{declared}/declare")
    upload = raw.post(f"/v1/table/{existing}/multipart_write/create/").json()["upload_id"]
    for column in NO_COLUMN:
        inner = [{column: 1}] if column in ("", "a\0b") else None
        for rows in (pa.table({column: [1]}), *([pa.table({"s": inner})] if inner else [])):
            body = stream(rows)
            for path in (
                f"{name}/create",
                f"{existing}/create?mode=overwrite",
                f"{existing}/insert?mode=overwrite",
                f"{existing}/insert?mode=overwrite&upload_id={upload}&upload_part_id=p",
                f"{declared}/insert",
                f"{declared}/create",
            ):
                response = raw.http.post(f"/v1/table/{path}", content=body, headers=headers)
                assert (response.status_code, response.json()["code"]) == (400, 20), (column, path, response.text)
                assert "cannot" in response.json()["error"]
        for route, changed in (
            ("add_columns", {"new_columns": [{"name": column, "expression": "1"}]}),
            ("add_columns", {"new_columns": [{"name": column, "computed": "id + 1"}]}),
            ("alter_columns", {"alterations": [{"path": "id", "rename": column}]}),
        ):
            response = raw.post(f"/v1/table/{existing}/{route}", changed)
            assert (response.status_code, response.json()["code"]) == (400, 13), (column, route, response.text)
        if "\0" not in column:  # this client would end the name there
            with pytest.raises(HttpError, match="cannot be the name"):
                remote.open_table(existing).add_columns(pa.schema([pa.field(column, pa.int64())]))
    assert remote.open_table(existing).search().to_arrow() == ROWS
    assert name not in remote.list_tables(limit=1000).tables


def test_name_with_a_backtick_is_refused_where_a_client_commits_it_and_its_table_as_it_came_is_written_on(
    rest: Any, raw: Any, server: Any, fresh: Fresh
) -> None:
    named, plain = pa.table({"id": [1], "a`b": [1]}), fresh("plain")
    dataset = lance.write_dataset(ROWS, namespace_client=rest, table_id=[plain], mode="create")
    for write in (
        lambda: lance.write_dataset(named, namespace_client=rest, table_id=[fresh("new")], mode="create"),
        lambda: lance.write_dataset(named, namespace_client=rest, table_id=[plain], mode="overwrite"),
        lambda: dataset.add_columns(pa.field("a`b", pa.int64())),
    ):
        # Lance's client keeps the server's sentence for its log where it cannot look how a commit has ended.
        with pytest.raises((OSError, ValueError, RuntimeError), match=r"cannot be the name of a column|is unknown"):
            write()
    assert raw.post(f"/v1/table/{plain}/count_rows", {}).json() == ROWS.num_rows
    struct = pa.table({"s": [{"a`b": 1}]})
    assert lance.write_dataset(struct, namespace_client=rest, table_id=[fresh("s")], mode="create").count_rows() == 1
    declared, registered = raw.post(f"/v1/table/{fresh('came')}/declare").json(), fresh("again")
    lance.write_dataset(named, f"{declared['location']}x", storage_options=server.options or None)
    properties = {"tiltyard.managed_versioning": "true"}
    body = {"location": f"{declared['location']}x".rpartition("/")[2], "properties": properties}
    assert raw.post(f"/v1/table/{registered}/register", body).status_code == 200
    registered_table = lance.dataset(namespace_client=rest, table_id=[registered])
    registered_table.delete("id = 1")
    assert registered_table.count_rows() == 0


@pytest.mark.parametrize("inner", ["a.b", "a`b", "x"])
def test_dots_and_backticks_within_a_struct_are_whole_everywhere(remote: Any, fresh: Fresh, inner: str) -> None:
    def path(suffix: str) -> str:
        return f"s.{inner}{suffix}" if inner == "x" else f"s.`{inner.replace('`', '``')}{suffix}`"

    number, text, vector = path(""), path("t"), path("v")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(32, dtype=np.float32)), 4)
    fields = [pa.array(range(8), pa.int64()), pa.array(["a fox"] * 8), vectors]
    struct = pa.StructArray.from_arrays(fields, names=[inner, f"{inner}t", f"{inner}v"])
    rows = pa.table({"id": pa.array(range(8), pa.int64()), "s": struct})
    table = remote.create_table(fresh("t"), rows)
    assert table.search().to_arrow() == rows
    assert table.count_rows(f"{number} > 3") == 4
    assert table.search().select([number]).to_arrow().column(0).to_pylist() == list(range(8))
    assert table.search().select({"z": f"{number} + 1"}).limit(1).to_list() == [{"z": 1}]
    table.create_index(number, config=BTree(), wait_timeout=WAIT)
    table.create_index(text, config=FTS(), wait_timeout=WAIT)
    table.create_index(vector, config=IvfFlat(), wait_timeout=WAIT)
    assert sorted(column for index in table.list_indices() for column in index.columns) == sorted(
        [number, text, vector]
    )
    assert table.index_stats(f"{number}_idx").num_indexed_rows == 8
    assert [row["id"] for row in table.search().where(f"{number} = 3").to_list()] == [3]
    assert table.search([0, 0, 0, 0], vector_column_name=vector).limit(1).to_list()[0]["id"] == 0
    assert len(table.search("fox", query_type="fts", fts_columns=text).limit(20).to_list()) == 8
    table.add(rows.slice(0, 1))
    merged = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    assert merged.execute(rows.slice(1, 2)).num_updated_rows == 2
    assert table.delete(f"{number} = 5").num_deleted_rows == 1
    table.add_columns({"twice": f"{number} * 2"})
    table.alter_columns({"path": number, "nullable": True})
    table.update_field_metadata({"path": number, "metadata": {"k": "v"}})
    table.drop_index(f"{number}_idx")
    table.drop_columns([text])
    assert [field.name for field in table.schema.field("s").type] == [inner, f"{inner}v"]
    table.alter_columns({"path": number, "rename": "plain"})
    assert table.count_rows("s.plain > 3") == 3


def test_rename_within_a_struct_onto_its_sibling_is_refused(remote: Any, fresh: Fresh) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "s": [{"x": 1, "y": 2}]})
    table = remote.create_table(fresh("t"), rows)
    with pytest.raises(HttpError, match="'y' exists"):
        table.alter_columns({"path": "s.x", "rename": "y"})
    with pytest.raises(HttpError, match="'s' exists"):
        table.alter_columns({"path": "`id`", "rename": "s"})
    assert table.search().to_arrow() == rows
    table.alter_columns({"path": "s.x", "rename": "id"})
    assert table.search().to_arrow()["s"].to_pylist() == [{"id": 1, "y": 2}]
