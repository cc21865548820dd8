"""Every operation, as each caller, on each kind of object: its status and code are those in docs/security.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import lance.namespace
import lance_namespace as upstream
import lance_namespace_urllib3_client as generated_client
import lancedb
import pytest
from lance_namespace.errors import NamespaceNotFoundError, PermissionDeniedError, TableNotFoundError

from tests.access.matrix import ROWS, documented, matrix_server, served, tried
from tests.access.scenes import ARROW, GRANTED, Place, Scene, Stage, outcome, send
from tests.services.secured import Secured, secured_server
from tiltyard.config import Settings
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import operations
from tiltyard.store import open_store, wall_clock

DOCUMENTED = documented()
NOBODY = ("without credentials", "bad", "expired", "revoked")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with matrix_server(tmp_path_factory.mktemp("matrix")) as running:
        yield running


@pytest.fixture(scope="module")
def stage(secured: Secured) -> Stage:
    return Stage(secured)


@pytest.fixture(scope="module")
def scene(stage: Stage) -> Scene:
    """One that nobody changes."""
    return stage.admin.scene()


@pytest.fixture(scope="module")
def nobodies(secured: Secured) -> dict[str, httpx.Client]:
    """Those who are not let in, by what is wrong with them."""
    with open_store(Settings(root=str(secured.server.root)).database_url) as store:
        past = wall_clock() - 1000
        brief = NewKeyOptions(expires_at=past + 1)
        expired = create_key(store, lambda: past, "owner", brief, administrator=False)
        revoked = create_key(store, wall_clock, "owner", NewKeyOptions(), administrator=False)
        store.revoke_key(revoked.record.id)
    keys = {"bad": secured.keys["owner"][:-2] + "xx", "expired": expired.text, "revoked": revoked.text}
    clients = {
        name: httpx.Client(base_url=secured.url, headers={"x-api-key": key}, timeout=60) for name, key in keys.items()
    }
    return {NOBODY[0]: secured.http(), **clients}


def test_table_and_its_cases_have_every_operation() -> None:
    assert set(DOCUMENTED) == set(ROWS) == set(served())


def test_table_says_what_each_operation_declares() -> None:
    declared = {name: served.needs.text for name, (_, served) in bound_operations().items() if served and served.needs}
    assert {name: cells[0] for name, cells in DOCUMENTED.items()} == declared


@pytest.mark.parametrize("name", served())
def test_operation_by_each_caller_answers_as_the_table_says(stage: Stage, name: str) -> None:
    assert tried(stage, name) == DOCUMENTED[name][1:]


@pytest.mark.parametrize("credentials", NOBODY)
def test_every_operation_by_somebody_unknown_is_401(
    stage: Stage, scene: Scene, nobodies: dict[str, httpx.Client], credentials: str
) -> None:
    for name in served():
        fields = ROWS[name].fields(scene, Place.MISSING)
        status = outcome(send(nobodies[credentials], operations()[name], fields, ROWS[name].body))
        assert status == "401.16", f"{name}: {status}"


# The same through stock clients.


def test_generated_client_of_a_reader_reads_and_is_refused(secured: Secured, scene: Scene) -> None:
    client = generated_client.ApiClient(generated_client.Configuration(host=secured.url))
    client.set_default_header("x-api-key", secured.keys["reader"])
    api = generated_client.TableApi(client)
    table, sibling = ("$".join(scene.table(place)) for place in (Place.THERE, Place.SIBLING))
    assert api.describe_table(table, generated_client.DescribeTableRequest()).location
    with pytest.raises(generated_client.exceptions.ForbiddenException):
        api.drop_table(table)
    with pytest.raises(generated_client.exceptions.NotFoundException):
        api.describe_table(sibling, generated_client.DescribeTableRequest())


def test_rust_client_of_a_reader_reads_and_is_refused(secured: Secured, scene: Scene) -> None:
    key = {"headers.x-api-key": secured.keys["reader"]}
    client = lance.namespace.RestNamespace(uri=secured.url, **key)
    requests = {place: upstream.CountTableRowsRequest(id=scene.table(place)) for place in Place}
    assert client.count_table_rows(requests[Place.THERE]).count == 3
    with pytest.raises(PermissionDeniedError):
        client.insert_into_table(upstream.InsertIntoTableRequest(id=scene.table(Place.THERE)), ARROW)
    with pytest.raises(NamespaceNotFoundError):
        client.count_table_rows(requests[Place.SIBLING])
    with pytest.raises(TableNotFoundError):
        client.count_table_rows(requests[Place.MISSING])


def test_lancedb_of_a_reader_reads_and_is_refused(secured: Secured, scene: Scene) -> None:
    connection = lancedb.connect("db://matrix", api_key=secured.keys["reader"], host_override=secured.url)
    home = scene.home(Place.THERE)
    assert list(connection.list_tables(namespace_path=home).tables) == ["orders"]
    table = connection.open_table("orders", namespace_path=home)
    assert table.count_rows() == 3
    with pytest.raises(Exception, match="write"):
        table.delete("id = 1")
    with pytest.raises(Exception, match="not found"):
        connection.open_table("orders", namespace_path=scene.home(Place.SIBLING))
    assert table.count_rows() == 3


def test_lists_of_a_reader_leave_out_what_is_not_theirs(secured: Secured, tmp_path: Path) -> None:
    with secured_server(tmp_path, names=(*GRANTED, "stranger")) as server:
        stage = Stage(server)
        scene = stage.admin.scene()
        reader, everybody = server.wire("reader"), server.wire("administrator")
        assert reader.pages("/v1/namespace/$/list", "namespaces", 1) == scene.home(Place.THERE)
        assert reader.pages("/v1/table", "tables", 1) == ["$".join(scene.table(Place.THERE))]
        assert len(everybody.pages("/v1/table", "tables", None)) == 2
