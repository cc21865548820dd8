"""Blobs of a table with policies: of visible rows and columns alone."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import lance
import pyarrow as pa
import pytest

from tests.access.policies.people import good, refused
from tests.access.scenes import send
from tests.services.secured import Secured
from tests.services.wire import stream
from tiltyard.model.spec import operations

TABLE = ["hr", "photos"]
INNER = pa.struct([lance.blob_field("image")])
PHOTOS = pa.table(
    [
        pa.array([1, 2, 3]),
        pa.array(["red", "blue", "red"]),
        lance.blob_array([b"ann", b"secret", None]),
        lance.blob_array([b"111-", b"222-", b"333-"]),
        pa.StructArray.from_arrays([lance.blob_array([b"111-", b"222-", b"333-"])], fields=INNER),
    ],
    schema=pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("team", pa.string()),
            lance.blob_field("face"),
            lance.blob_field("scan"),
            pa.field("inner", INNER),
        ]
    ),
)


@pytest.fixture(scope="module")
def clients(secured: Secured) -> Iterator[dict[str, httpx.Client]]:
    """The administrator; ann, who is bound; tess, who is exempt; and a caller without any grant."""
    names = ("administrator", "ann", "tess")
    http = {name: secured.http(name) for name in names}
    http["nobody"] = httpx.Client(base_url=secured.server.url)
    good(send(http["administrator"], operations()["CreateTable"], {"id": TABLE}, stream(PHOTOS)))
    policy = {
        "id": TABLE,
        "name": "p",
        "filter": "team = 'red'",
        "masks": [{"column": "scan", "mask": "null"}, {"column": "inner", "mask": "hide"}],
        "exempt_roles": ["auditors"],
    }
    good(send(http["administrator"], operations()["SetTablePolicy"], policy))
    yield http
    for client in http.values():
        client.close()


def fetch(client: httpx.Client, column: str, row_ids: list[int], **more: object) -> httpx.Response:
    return send(client, operations()["FetchTableBlobs"], {"id": TABLE, "column": column, "row_ids": row_ids, **more})


def read(client: httpx.Client, column: str, row_id: int, **more: object) -> httpx.Response:
    return send(client, operations()["ReadTableBlob"], {"id": TABLE, "column": column, "row_id": row_id, **more})


def values(response: httpx.Response) -> list[bytes | None]:
    assert response.status_code == 200, response.text
    column: list[bytes | None] = pa.ipc.open_file(io.BytesIO(response.content)).read_all().column(0).to_pylist()
    return column


def test_blobs_of_visible_rows_are_read(clients: dict[str, httpx.Client]) -> None:
    assert values(fetch(clients["ann"], "face", [2, 0])) == [None, b"ann"]
    assert (read(clients["ann"], "face", 0).content, read(clients["ann"], "face", 2).status_code) == (b"ann", 204)


def test_blobs_of_hidden_rows_are_as_those_of_missing_ones(clients: dict[str, httpx.Client]) -> None:
    assert read(clients["tess"], "face", 1).content == b"secret"  # and its handle is kept
    missing = refused(fetch(clients["ann"], "face", [77]), 400)
    assert refused(fetch(clients["ann"], "face", [1]), 400) == missing.replace("77", "1")
    assert refused(fetch(clients["ann"], "face", [0, 1]), 400) == missing.replace("77", "1")
    assert refused(read(clients["ann"], "face", 1), 400) == missing.replace("77", "1")
    nowhere = refused(read(clients["ann"], "face", 77, row_is_address=True), 400)
    assert refused(read(clients["ann"], "face", 1, row_is_address=True), 400) == nowhere.replace("77", "1")
    assert read(clients["ann"], "face", 0, row_is_address=True).content == b"ann"


@pytest.mark.parametrize("column", ["scan", "SCAN", "`scan`", "inner.image", "`inner`.`image`", "inner.`image`"])
def test_masked_columns_are_not_served(clients: dict[str, httpx.Client], column: str) -> None:
    refused(fetch(clients["ann"], column, [0]))
    refused(read(clients["ann"], column, 0))


def test_exempt_roles_and_administrators_read_all(clients: dict[str, httpx.Client]) -> None:
    for name in ("tess", "administrator"):
        assert values(fetch(clients[name], "face", [0, 1])) == [b"ann", b"secret"]
        assert read(clients[name], "inner.image", 1).content == b"222-"


def test_older_versions_and_branches_are_refused_and_the_latest_by_its_number_is_not(
    clients: dict[str, httpx.Client],
) -> None:
    good(send(clients["administrator"], operations()["CreateTableBranch"], {"id": TABLE, "name": "side"}))
    refused(read(clients["ann"], "face", 0, branch="side"))
    assert read(clients["ann"], "face", 0, version=1).content == b"ann"
    update = {"id": TABLE, "predicate": "id = 3", "updates": [["team", "'blue'"]]}
    good(send(clients["administrator"], operations()["UpdateTable"], update))
    refused(read(clients["ann"], "face", 0, version=1))
    assert read(clients["ann"], "face", 0).content == b"ann"


def test_caller_without_credentials_or_grants_gets_nothing(clients: dict[str, httpx.Client]) -> None:
    assert read(clients["nobody"], "face", 0).status_code == 401
    assert fetch(clients["nobody"], "face", [0]).status_code == 401
