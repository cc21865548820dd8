"""UpdateTable and DeleteFromTable."""

from __future__ import annotations

from typing import Any

import pytest
from lance_namespace import errors
from tests.tables.bodies import rows
from tests.tables.rows.calls import names_by_id
from tests.tables.served import Server, run_concurrently

from tiltyard.model.spec import models
from tiltyard.tables.rows.update_delete import delete_from_table, update_table


def update(server: Server, *updates: list[str], **fields: Any) -> models.UpdateTableResponse:
    return update_table(server.ctx, models.UpdateTableRequest(id=["t"], updates=list(updates), **fields))


def delete(server: Server, predicate: str, **fields: Any) -> models.DeleteFromTableResponse:
    return delete_from_table(server.ctx, models.DeleteFromTableRequest(id=["t"], predicate=predicate, **fields))


def test_update_with_a_predicate_changes_those_rows(server: Server) -> None:
    server.create("t", rows(3))
    response = update(server, ["name", "concat(name, '!')"], ["id", "id + 10"], predicate="id = 1")
    assert (response.updated_rows, response.version) == (1, 2)
    assert names_by_id(server) == {0: "n0", 2: "n2", 11: "n1!"}


def test_update_without_a_predicate_changes_all_rows(server: Server) -> None:
    server.create("t", rows(3))
    assert update(server, ["name", "'x'"]).updated_rows == 3


def test_update_of_no_row_is_zero(server: Server) -> None:
    server.create("t", rows(3))
    assert update(server, ["name", "'x'"], predicate="id > 100").updated_rows == 0


def test_update_properties_of_the_server_are_not_for_clients_to_change(server: Server) -> None:
    server.create("t", rows(3))
    table = server.ctx.store.describe_table(("t",)).id
    server.ctx.store.change_table_properties(table, {"tiltyard.managed_versioning": "true"})
    for properties in ({"tiltyard.managed_versioning": "false"}, {"a": "1", "tiltyard.other": "x"}):
        with pytest.raises(errors.InvalidInputError, match="server's to set"):
            update(server, properties=properties)
    as_it_was = {"tiltyard.managed_versioning": "true", "a": "1"}
    assert update(server, properties=as_it_was).properties == as_it_was


def test_update_properties_join_those_there(server: Server) -> None:
    server.create("t", rows(1))
    server.ctx.store.change_table_properties(server.ctx.store.describe_table(("t",)).id, {"a": "1", "b": "1"})
    response = update(server, properties={"b": "2"})
    assert (response.updated_rows, response.version, response.properties) == (0, 1, {"a": "1", "b": "2"})


def test_update_and_delete_on_a_branch_leave_main(server: Server) -> None:
    server.create("t", rows(3)).create_branch("b")
    assert update(server, ["name", "'x'"], predicate="id = 0", branch="b").version == 2
    response = delete(server, "id = 1", branch="b")
    assert (response.version, response.num_deleted_rows) == (3, 1)
    assert names_by_id(server, "b") == {0: "x", 2: "n2"}
    assert names_by_id(server) == {0: "n0", 1: "n1", 2: "n2"}


def test_delete_counts_rows(server: Server) -> None:
    server.create("t", rows(5))
    response = delete(server, "id IN (1, 3)")
    assert (response.version, response.num_deleted_rows) == (2, 2)
    assert delete(server, "true").num_deleted_rows == 3


@pytest.mark.parametrize(
    ("updates", "predicate", "error"),
    [
        ([["nope", "1"]], None, errors.TableColumnNotFoundError),
        ([["id", "nope + 1"]], None, errors.TableColumnNotFoundError),
        ([["id", "1"]], "nope = 1", errors.TableColumnNotFoundError),
        ([["id", "1 +"]], None, errors.InvalidInputError),
        ([["id", "'abc'"]], None, errors.InvalidInputError),
        ([["id", "1"]], "id =", errors.InvalidInputError),
        ([["id", "1"]], "", errors.InvalidInputError),
        ([["id", "1"], ["id", "2"]], None, errors.InvalidInputError),
        ([["id"]], None, errors.InvalidInputError),
        ([["id", " "]], None, errors.InvalidInputError),
        ([], None, errors.InvalidInputError),
    ],
)
def test_update_mistake_is_told(
    server: Server, updates: list[list[str]], predicate: str | None, error: type[Exception]
) -> None:
    server.create("t", rows(2))
    with pytest.raises(errors.LanceNamespaceError) as caught:
        update(server, *updates, predicate=predicate)
    assert caught.type is error
    assert server.open("t").version == 1


@pytest.mark.parametrize(
    ("predicate", "error"),
    [
        ("", errors.InvalidInputError),
        ("  ", errors.InvalidInputError),
        ("id =", errors.InvalidInputError),
        ("id + 1", errors.InvalidInputError),
        ("nope = 1", errors.TableColumnNotFoundError),
    ],
)
def test_delete_mistake_is_told(server: Server, predicate: str, error: type[Exception]) -> None:
    server.create("t", rows(2))
    with pytest.raises(errors.LanceNamespaceError) as caught:
        delete(server, predicate)
    assert caught.type is error
    assert server.open("t").count_rows() == 2


def test_change_declared_table_has_no_data(server: Server) -> None:
    server.declare("t")
    with pytest.raises(errors.InvalidTableStateError):
        delete(server, "true")
    with pytest.raises(errors.InvalidTableStateError):
        update(server, ["id", "1"])


def test_changes_at_once_all_count(server: Server) -> None:
    server.create("t", rows(1))
    results = run_concurrently([lambda: update(server, ["id", "id + 1"]) for _ in range(12)])
    assert [result.updated_rows for result in results] == [1] * 12
    assert server.open("t").to_table()["id"].to_pylist() == [12]
