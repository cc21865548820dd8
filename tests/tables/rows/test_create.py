"""CreateTable in each mode, at each kind of location, with whole and with broken bodies."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace import errors
from tests.tables.bodies import Streamed, rows, small
from tests.tables.served import Server

from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.model.operations import ArrowBody
from tiltyard.model.spec import models
from tiltyard.tables.rows import create as module
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table


def create(server: Server, body: ArrowBody, name: str = "t", **fields: Any) -> models.CreateTableResponse:
    return create_table(server.ctx, models.CreateTableRequest(id=[name], **fields), body)


def folders(server: Server) -> list[str]:
    return sorted(path.name for path in Path(server.ctx.storage.root).iterdir() if path.is_dir())


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_create_table_with_rows_has_them_at_version_one(server: Server, compression: str | None) -> None:
    response = create(server, small(rows(10), compression), properties={"a": "b"})
    assert (response.version, response.properties) == (1, {"a": "b"})
    assert server.open("t").to_table().equals(rows(10))
    assert server.ctx.store.describe_table(("t",)).location == response.location
    assert server.ctx.store.claim_due_deletions(10, 0) == []


def test_create_table_without_a_byte_is_empty_and_takes_any_columns(server: Server) -> None:
    assert create(server, MemoryBody(b"")).version == 1
    assert server.open("t").schema.names == []
    insert_into_table(server.ctx, models.InsertIntoTableRequest(id=["t"]), small(rows(2)))
    assert server.open("t").to_table().equals(rows(2))


def test_create_table_schema_only_has_the_schema(server: Server) -> None:
    create(server, small(rows(0)))
    assert server.open("t").schema == rows(0).schema
    assert server.open("t").count_rows() == 0


def test_create_table_twice_is_a_conflict(server: Server) -> None:
    create(server, small(rows(1)))
    with pytest.raises(errors.TableAlreadyExistsError, match="t"):
        create(server, small(rows(2)))
    assert server.open("t").count_rows() == 1


def test_create_table_exist_ok_keeps_rows_and_properties(server: Server) -> None:
    create(server, small(rows(1)), properties={"a": "b"})
    response = create(server, small(rows(2)), mode="exist_ok", properties={"c": "d"})
    assert (response.version, response.properties) == (1, {"a": "b"})
    assert server.open("t").count_rows() == 1


@pytest.mark.parametrize("declared", [False, True])
def test_create_table_exist_ok_many_at_once_all_get_the_table_of_their_schema(server: Server, declared: bool) -> None:
    if declared:
        server.declare("t")
    together = threading.Barrier(6)

    def run(number: int) -> str | None:
        together.wait(60)
        return create(server, Streamed(rows(number + 1)), mode="exist_ok", check_schema=True).location

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(run, range(6))) == {server.ctx.store.describe_table(("t",)).location}
    assert server.open("t").version == 1
    assert len(list(Path(server.open("t").uri, "data").iterdir())) == 1


def test_create_table_exist_ok_that_loses_to_another_schema_is_told_that_it_exists(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other creates the table after the look-up, so that the insert into the catalog decides."""
    look_up = module._find_existing
    create(server, small(rows(1)))
    monkeypatch.setattr(module, "_find_existing", lambda ctx, path: None)
    assert create(server, small(rows(2)), mode="exist_ok", check_schema=True).version is None
    other = small(pa.table({"id": [1]}))
    with pytest.raises(errors.TableAlreadyExistsError, match="already exists, with another schema: t"):
        create(server, other, mode="exist_ok", check_schema=True)
    monkeypatch.setattr(module, "_find_existing", look_up)
    assert server.open("t").count_rows() == 1 and len(folders(server)) == 1


def test_create_table_overwrite_is_a_new_version_with_new_properties(server: Server) -> None:
    first = create(server, small(rows(1)), properties={"a": "b"})
    other = pa.table({"other": ["x", "y"]})
    second = create(server, small(other), mode="Overwrite", properties={"c": "d"})
    assert (second.location, second.version, second.properties) == (first.location, 2, {"c": "d"})
    assert server.open("t").to_table().equals(other)
    assert server.open("t").checkout_version(1).count_rows() == 1


def test_create_table_overwrite_of_nothing_creates(server: Server) -> None:
    assert create(server, Streamed(rows(3)), mode="overwrite").version == 1


@pytest.mark.parametrize("mode", ["create", "overwrite"])
@pytest.mark.parametrize("declared", [False, True])
def test_create_table_broken_off_leaves_nothing(server: Server, mode: str, declared: bool) -> None:
    if declared:
        server.declare("t")
    with pytest.raises(errors.InvalidInputError, match="complete"):
        create(server, Streamed(rows(5000), breaks_off=True), mode=mode)
    assert [path for path in Path(server.ctx.storage.root).rglob("*.lance") if path.is_file()] == []
    assert server.ctx.store.claim_due_deletions(10, 0) == []
    if not declared:
        assert folders(server) == []
    assert create(server, Streamed(rows(5000))).version == 1


def test_create_table_overwrite_broken_off_keeps_the_old_rows(server: Server) -> None:
    create(server, small(rows(1)))
    with pytest.raises(errors.InvalidInputError):
        create(server, Streamed(rows(5000), breaks_off=True), mode="overwrite")
    assert server.open("t").version == 1
    assert len(list(Path(server.open("t").uri, "data").iterdir())) == 1


@pytest.mark.parametrize("there", [True, False], ids=["overwritten", "declared"])
def test_create_table_over_another_keeps_the_properties_of_the_server(server: Server, *, there: bool) -> None:
    server_properties, body = {"tiltyard.managed_versioning": "true"}, small(rows(1))
    server.declare("t")
    server.ctx.store.change_table_properties(server.ctx.store.describe_table(("t",)).id, server_properties)
    if there:
        create(server, small(rows(1)), properties={"a": "b"})
    with pytest.raises(errors.InvalidInputError, match=r"'tiltyard\.managed_versioning' is the server's to set"):
        create(server, body, mode="Overwrite", properties={"tiltyard.managed_versioning": "false"})
    response = create(server, small(rows(1)), mode="Overwrite", properties={"c": "d", **server_properties})
    assert response.properties == {"c": "d", **server_properties}
    assert create(server, small(rows(1)), mode="Overwrite").properties == server_properties


def test_create_table_unknown_parent_reads_no_body(server: Server) -> None:
    with pytest.raises(errors.NamespaceNotFoundError):
        create_table(server.ctx, models.CreateTableRequest(id=["no", "t"]), small(rows(1)))
    assert folders(server) == []


def test_create_table_declared_is_written_once(server: Server) -> None:
    server.declare("t")
    declared = server.ctx.store.describe_table(("t",))
    response = create(server, small(rows(2)), properties={"a": "b"})
    assert (response.location, response.version, response.properties) == (declared.location, 1, {"a": "b"})
    assert not server.ctx.store.describe_table(("t",)).declared
    with pytest.raises(errors.TableAlreadyExistsError):
        create(server, small(rows(2)))


@pytest.mark.parametrize("declared", [False, True])
def test_create_table_many_at_once_one_wins(server: Server, declared: bool) -> None:
    if declared:
        server.declare("t")
    results: list[Any] = []

    def run(number: int) -> None:
        try:
            results.append(create(server, small(rows(number + 1))).version)
        except errors.TableAlreadyExistsError as error:
            results.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([result for result in results if result == 1]) == 1
    assert len(results) == 12
    assert server.open("t").version == 1
    assert len(folders(server)) == 1
    assert sorted(path.name for path in Path(server.open("t").uri).iterdir()) == ["_transactions", "_versions", "data"]
    assert len(list(Path(server.open("t").uri, "data").iterdir())) == 1


def test_create_table_interrupted_once_it_is_entered_keeps_its_rows(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(*args: Any) -> None:
        entered(*args)
        raise KeyboardInterrupt

    entered = module._insert_record
    monkeypatch.setattr(module, "_insert_record", enter)
    with pytest.raises(KeyboardInterrupt):
        create(server, small(rows(3)))
    assert server.open("t").to_table().equals(rows(3))
    server.ctx.store.remove_table(("t",), delete_folder=False)
    assert server.ctx.store.claim_due_deletions(10, 0) == []


def test_create_table_interrupted_before_it_is_entered_leaves_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_insert_record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create(server, small(rows(3)))
    assert folders(server) == []
    assert server.ctx.store.claim_due_deletions(10, 0) == []


def test_create_table_at_a_location_lies_there(server: Server) -> None:
    location = f"{server.ctx.storage.root}/mine"
    response = create(server, small(rows(2)), location=f"file://{location}/", properties={"a": "b"})
    assert (response.location, response.version, response.properties) == (location, 1, {"a": "b"})
    with pytest.raises(errors.InvalidInputError, match="not empty"):
        create(server, small(rows(2)), "other", location=location)


def test_create_table_at_a_location_broken_off_frees_name_and_location(server: Server) -> None:
    location = f"{server.ctx.storage.root}/mine"
    with pytest.raises(errors.InvalidInputError):
        create(server, Streamed(rows(3000), breaks_off=True), location=location)
    assert not Path(location).exists()
    assert create(server, small(rows(2)), location=location).version == 1


def test_create_table_foreign_storage_option_is_unsupported(server: Server) -> None:
    with pytest.raises(errors.UnsupportedOperationError, match="aws_secret"):
        create(server, small(rows(1)), storage_options={"aws_secret_access_key": "x"})
    create(server, small(rows(1)), storage_options={"new_table_data_storage_version": "2.1"})
    assert server.open("t").data_storage_version == "2.1"


@pytest.mark.parametrize("names", [["a", "a"], ["a.b"]])
def test_create_table_impossible_columns_is_schema_validation(server: Server, names: list[str]) -> None:
    table = pa.Table.from_arrays([pa.array([1])] * len(names), names=names)
    with pytest.raises(errors.TableSchemaValidationError):
        create(server, small(table))
    assert folders(server) == []


def test_create_table_lease_lost_is_a_conflict(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def steal(*args: Any, **fields: Any) -> Any:
        server.ctx.store.postpone_deletion(args[1], -1)
        server.ctx.store.claim_due_deletions(10, 60_000)
        return insert(*args, **fields)

    insert = server.ctx.store.insert_table
    monkeypatch.setattr(type(server.ctx.store), "insert_table", lambda self, *args, **fields: steal(*args, **fields))
    with pytest.raises(errors.ConcurrentModificationError):
        create(server, small(rows(1)))
    assert folders(server) == []
