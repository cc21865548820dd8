"""MergeInsertIntoTable with every parameter, and concurrent merges of one key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace import errors
from tests.tables.bodies import Streamed, rows, small
from tests.tables.rows.calls import merge, names_by_id
from tests.tables.served import Server, run_concurrently

from tiltyard.model.operations import ArrowBody
from tiltyard.model.spec import models


def counts(response: models.MergeInsertIntoTableResponse) -> tuple[int | None, int | None, int | None]:
    return response.num_inserted_rows, response.num_updated_rows, response.num_deleted_rows


def renamed(*keys: int) -> pa.Table:
    return (
        rows(len(keys)).set_column(0, "id", pa.array(keys)).set_column(1, "name", pa.array([f"new{k}" for k in keys]))
    )


BODIES = pytest.mark.parametrize("body", [small, Streamed])


@BODIES
def test_merge_upsert_counts_both(server: Server, body: Callable[[pa.Table], ArrowBody]) -> None:
    server.create("t", rows(3))
    response = merge(server, body(renamed(2, 3)), when_matched_update_all=True, when_not_matched_insert_all=True)
    assert counts(response) == (1, 1, 0)
    assert (response.version, response.num_attempts, response.num_rows) == (2, 1, 2)
    assert names_by_id(server) == {0: "n0", 1: "n1", 2: "new2", 3: "new3"}


def test_merge_insert_only_leaves_what_is_there(server: Server) -> None:
    server.create("t", rows(3))
    assert counts(merge(server, small(renamed(2, 3)), when_not_matched_insert_all=True)) == (1, 0, 0)
    assert names_by_id(server) == {0: "n0", 1: "n1", 2: "n2", 3: "new3"}


def test_merge_update_filter_spares_rows(server: Server) -> None:
    server.create("t", rows(3))
    response = merge(
        server, small(renamed(0, 2)), when_matched_update_all=True, when_matched_update_all_filt="target.id > 1"
    )
    assert counts(response) == (0, 1, 0)
    assert names_by_id(server) == {0: "n0", 1: "n1", 2: "new2"}


def test_merge_delete_by_source_with_filter(server: Server) -> None:
    server.create("t", rows(4))
    response = merge(
        server,
        small(renamed(0)),
        when_matched_update_all=True,
        when_not_matched_by_source_delete=True,
        when_not_matched_by_source_delete_filt="id > 2",
    )
    assert counts(response) == (0, 1, 1)
    assert names_by_id(server) == {0: "new0", 1: "n1", 2: "n2"}
    assert counts(merge(server, small(renamed(0)), when_not_matched_by_source_delete=True)) == (0, 0, 2)


def test_merge_on_several_columns_matches_all_of_them(server: Server) -> None:
    server.create("t", pa.table({"id": [1, 1], "g": ["a", "b"], "x": [1, 2]}))
    source = pa.table({"id": [1, 2], "g": ["b", "b"], "x": [20, 30]})
    response = merge(
        server, small(source), on=["id", "g"], when_matched_update_all=True, when_not_matched_insert_all=True
    )
    assert counts(response) == (1, 1, 0)
    assert sorted(server.open("t").to_table()["x"].to_pylist()) == [1, 20, 30]


def test_merge_on_as_a_plain_string_works(server: Server) -> None:
    server.create("t", rows(1))
    assert counts(merge(server, small(renamed(0)), on="id", when_matched_update_all=True)) == (0, 1, 0)


def test_merge_some_columns_updates_those(server: Server) -> None:
    server.create("t", rows(2))
    merge(server, small(pa.table({"id": [1], "name": ["x"]})), when_matched_update_all=True)
    assert server.open("t").to_table().to_pylist()[1]["v"] == [4.0, 5.0, 6.0, 7.0]
    assert names_by_id(server) == {0: "n0", 1: "x"}


def test_merge_with_and_without_an_index_is_the_same(server: Server) -> None:
    server.create("t", rows(100)).create_scalar_index("id", "BTREE")
    for use_index in (True, False, None):
        response = merge(server, small(renamed(5)), when_matched_update_all=True, use_index=use_index, timeout="1m30s")
        assert counts(response) == (0, 1, 0)


@BODIES
def test_merge_into_a_declared_table_inserts_all(server: Server, body: Callable[[pa.Table], ArrowBody]) -> None:
    server.declare("t")
    with pytest.raises(errors.InvalidTableStateError):
        merge(server, body(rows(2)), when_matched_update_all=True)
    response = merge(server, body(rows(2)), when_not_matched_insert_all=True)
    assert (response.version, counts(response)) == (1, (2, 0, 0))


def test_merge_branch_changes_the_branch_alone(server: Server) -> None:
    server.create("t", rows(2)).create_branch("b")
    merge(server, small(renamed(1, 2)), branch="b", when_matched_update_all=True, when_not_matched_insert_all=True)
    assert names_by_id(server, "b") == {0: "n0", 1: "new1", 2: "new2"}
    assert names_by_id(server) == {0: "n0", 1: "n1"}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"on": ["nope"]}, errors.TableColumnNotFoundError, "No column 'nope'. These rows have: id, name, v"),
        ({"on": []}, errors.InvalidInputError, "`on`"),
        ({"on": ["id", "id"]}, errors.InvalidInputError, "twice"),
        ({"timeout": "soon"}, errors.InvalidInputError, "not a duration"),
        ({"timeout": "5x"}, errors.InvalidInputError, "not a duration"),
        ({"timeout": "0s"}, errors.InvalidInputError, "not a duration"),
        ({"timeout": " " * 100_000}, errors.InvalidInputError, "not a duration"),
        ({"when_matched_update_all": False}, errors.InvalidInputError, "changes nothing"),
        ({"when_matched_update_all_filt": "target.zz > 1"}, errors.TableColumnNotFoundError, "zz"),
        ({"when_matched_update_all_filt": "target.id >"}, errors.InvalidInputError, "pars"),
        ({"when_not_matched_by_source_delete_filt": "id > 1"}, errors.InvalidInputError, "needs"),
    ],
)
def test_merge_bad_parameters_are_told(
    server: Server, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    server.create("t", rows(2))
    with pytest.raises(error, match=message.replace(".", r"\.")):
        merge(server, small(rows(1)), **({"when_matched_update_all": True} | fields))


def test_merge_one_key_twice_is_invalid(server: Server) -> None:
    server.create("t", rows(2))
    with pytest.raises(errors.InvalidInputError, match="Ambiguous"):
        merge(server, small(renamed(1, 1)), when_matched_update_all=True)


def test_merge_unknown_column_is_schema_validation(server: Server) -> None:
    server.create("t", rows(2))
    with pytest.raises(errors.TableSchemaValidationError, match="zz"):
        merge(server, small(pa.table({"id": [1], "zz": [1]})), when_matched_update_all=True)


def test_merge_broken_off_makes_no_version(server: Server) -> None:
    server.create("t", rows(2))
    with pytest.raises(errors.InvalidInputError, match="complete"):
        merge(server, Streamed(rows(3000), breaks_off=True), when_not_matched_insert_all=True)
    assert server.open("t").version == 1


@pytest.mark.parametrize("declared", [False, True])
def test_merge_one_new_key_many_times_at_once_is_one_row(server: Server, declared: bool) -> None:
    server.declare("t") if declared else server.create("t", rows(0))
    results = run_concurrently(
        [lambda: merge(server, small(rows(1)), when_not_matched_insert_all=True) for _ in range(16)]
    )
    assert sum(result.num_inserted_rows for result in results) == 1
    assert server.open("t").count_rows() == 1


def test_merge_updates_beside_other_changes_lose_nothing(server: Server) -> None:
    server.create("t", rows(20))
    location = server.open("t").uri
    script = (
        f"import lance\nfor _ in range(10): lance.dataset({location!r}).update({{'name': \"'other'\"}}, 'id >= 10')"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as other:
        results = run_concurrently(
            [lambda key=key: merge(server, small(renamed(key)), when_matched_update_all=True) for key in range(10)]
        )
    assert other.returncode == 0
    assert [counts(result) for result in results] == [(0, 1, 0)] * 10
    assert names_by_id(server) == {key: f"new{key}" if key < 10 else "other" for key in range(20)}
