"""Files that a client puts into its table's folder, for the server to read: far too large, or no files at all."""

from __future__ import annotations

import json
import os
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import lance
import pyarrow as pa
import pytest

from tests.services.wire import stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.server import ServerProcess

ROWS = pa.table({"id": [1, 2, 3]})
GIB = 1 << 30
FOOTER = struct.Struct("<QHH4s")
OWN_TRANSACTION = b"\xb8\x01"
"""The key of the field that says where in a manifest its transaction is."""
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


class Client:
    """A client that may write one table, and its files by their location."""

    def __init__(self, url: str, *, managed: bool = True) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)
        self.table = f"t{uuid4().hex}"
        properties = json.dumps({"tiltyard.managed_versioning": str(managed).lower()})
        response = self.post("create", stream(ROWS), properties=properties)
        assert response.status_code == 200, response.text
        self.folder = Path(response.json()["location"])

    def post(self, action: str, body: dict[str, Any] | bytes, **query: str) -> httpx.Response:
        path = f"/v1/table/{self.table}/{action}"
        if isinstance(body, bytes):
            return self.http.post(path, content=body, headers=ARROW, params=query)
        return self.http.post(path, json=body, params=query)

    def final(self, version: int) -> Path:
        """Return the final path of a version's manifest."""
        return self.folder / "_versions" / f"{2**64 - 1 - version}.manifest"

    def stage(self, version: int) -> Path:
        """Return a new name for a staged manifest."""
        return self.folder / "_versions" / f"{2**64 - 1 - version}.manifest-{uuid4()}"

    def commit(self, staged: Path, version: int) -> httpx.Response:
        body = {"version": version, "manifest_path": str(staged), "naming_scheme": "V2"}
        return self.http.post(f"/v1/table/{self.table}/version/create", json=body)

    def commit_in_a_batch(self, staged: Path, version: int) -> httpx.Response:
        entry = {"id": [self.table], "version": version, "manifest_path": str(staged), "naming_scheme": "V2"}
        body = {"operations": [{"create_table_version": entry}]}
        return self.http.post("/v1/table/batch-commit", json=body)

    def next_manifest(self, scratch: Path) -> bytes:
        """Return the manifest of an append, made by Lance on a copy of the table; the data file is in the folder."""
        shutil.copytree(self.folder, scratch / self.table)
        lance.dataset(scratch / self.table).insert(ROWS)
        for part in ("data", "_transactions"):
            shutil.copytree(scratch / self.table / part, self.folder / part, dirs_exist_ok=True)
        return (scratch / self.table / "_versions" / f"{2**64 - 3}.manifest").read_bytes()


def without_own_transaction(manifest: bytes) -> bytes:
    """The same manifest as older writers made it: its transaction is in a file of its own, and nowhere else."""
    position, *rest = FOOTER.unpack(manifest[-FOOTER.size :])
    message = manifest[position + 4 : -FOOTER.size]
    begin = message.rindex(OWN_TRANSACTION)
    end = next(at for at in range(begin + 2, len(message)) if message[at] < 0x80) + 1
    message = message[:begin] + message[end:]
    return manifest[:position] + struct.pack("<I", len(message)) + message + FOOTER.pack(position, *rest)


@pytest.fixture
def client(victim: ServerProcess) -> Iterator[Client]:
    table_client = Client(victim.url)
    yield table_client
    table_client.http.close()


def sparse(path: Path, size: int, end: bytes = b"") -> Path:
    """A file of a size that takes no room on the disk, with an end of its own."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size - len(end))
        file.seek(0, os.SEEK_END)
        file.write(end)
    return path


def test_staged_file_of_three_gigabytes_is_refused_unread(client: Client) -> None:
    staged = sparse(client.stage(2), 3 * GIB, FOOTER.pack(0, 0, 2, b"LANC"))
    for commit in (client.commit, client.commit_in_a_batch):
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _, commit=commit: commit(staged, 2), range(8)))
        assert {(response.status_code, response.json()["code"]) for response in responses} == {(400, 13)}
        assert "max_manifest_bytes" in responses[0].json()["error"]


def test_staged_files_just_below_the_bound_are_checked_one_at_a_time(client: Client) -> None:
    size = 64 << 20
    body = size - FOOTER.size - 4
    staged = sparse(client.stage(2), size, FOOTER.pack(0, 0, 2, b"LANC"))
    with staged.open("r+b") as file:
        file.write(struct.pack("<I", body))  # a message of zeros: no field has that number
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: client.commit(staged, 2), range(8)))
    assert {(response.status_code, response.json()["code"]) for response in responses} == {(400, 13)}
    assert "not a Lance manifest" in responses[0].json()["error"]


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_staged_file_that_is_none_is_refused_at_once(client: Client, kind: str) -> None:
    staged = client.stage(2)
    os.mkfifo(staged) if kind == "pipe" else staged.mkdir()
    response = client.commit(staged, 2)
    assert (response.status_code, response.json()["code"]) == (400, 13), response.text


@pytest.mark.parametrize("size", [0, 3 * GIB], ids=["as it was", "three gigabytes"])
def test_transaction_that_a_manifest_names_is_bounded(client: Client, tmp_path: Path, size: int) -> None:
    content = without_own_transaction(client.next_manifest(tmp_path))
    staged = client.stage(2)
    staged.write_bytes(content)
    [transaction] = (client.folder / "_transactions").glob("1-*.txn")
    assert transaction.name.encode() in content
    if not size:
        assert client.commit(staged, 2).status_code == 200
        assert lance.dataset(client.folder).count_rows() == 6
        return
    sparse(transaction, size)
    response = client.commit(staged, 2)
    assert (response.status_code, response.json()["code"]) == (400, 13), response.text
    assert "max_manifest_bytes" in response.json()["error"]
    repeat = client.http.post(f"/v1/table/{client.table}/insert", content=stream(ROWS), headers=ARROW)
    assert repeat.status_code == 200


@pytest.mark.parametrize("field", [6, 23], ids=["indices", "transaction"])
def test_part_of_a_manifest_that_claims_four_gigabytes_is_refused(client: Client, tmp_path: Path, field: int) -> None:
    content = client.next_manifest(tmp_path)
    position, *rest = FOOTER.unpack(content[-FOOTER.size :])
    message = content[position + 4 : -FOOTER.size] + varint(field << 3) + varint(position - 4)
    content = content[: position - 4] + b"\xff\xff\xff\xff" + struct.pack("<I", len(message)) + message
    staged = client.stage(2)
    staged.write_bytes(content + FOOTER.pack(position, *rest))
    response = client.commit(staged, 2)
    assert (response.status_code, response.json()["code"]) == (400, 13), response.text


def varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def test_manifest_of_three_gigabytes_that_lies_in_its_place_is_not_opened(victim: ServerProcess) -> None:
    client = Client(victim.url, managed=False)
    for _ in range(2):
        assert client.post("insert", stream(ROWS)).status_code == 200
    sparse(client.final(4), 3 * GIB, FOOTER.pack(0, 0, 2, b"LANC"))
    query = {"vector": {"single_vector": []}, "k": 1}
    calls = {
        "describe": {"load_detailed_metadata": True},
        "query": query,
        "count_rows": {},
        "insert": stream(ROWS),
        "delete": {"predicate": "id = 1"},
        "version/list": {},
        "stats": {},
        "version/describe": {"version": 4},
    }
    responses = {name: client.post(name, body) for name, body in calls.items()}
    assert {name: response.status_code for name, response in responses.items()} == dict.fromkeys(calls, 400)
    sparse(client.final(2), 3 * GIB, FOOTER.pack(0, 0, 2, b"LANC"))
    client.final(4).unlink()
    assert client.post("count_rows", {}).json() == 9
    assert client.post("count_rows", {"version": 2}).status_code == 400
    client.http.close()


@pytest.mark.parametrize("part", ["a manifest", "a transaction"])
def test_history_with_three_gigabytes_in_it_is_not_read(victim: ServerProcess, part: str) -> None:
    client = Client(victim.url, managed=False)
    for _ in range(20):
        assert client.post("insert", stream(ROWS)).status_code == 200
    if part == "a manifest":
        sparse(client.final(5), 3 * GIB, FOOTER.pack(0, 0, 2, b"LANC"))
    else:
        client.final(5).write_bytes(without_own_transaction(client.final(5).read_bytes()))
        sparse(next((client.folder / "_transactions").glob("4-*.txn")), 3 * GIB)
    responses = {
        "multipart_write/complete": client.post("multipart_write/complete", {"upload_id": "none"}),
        "version/list": client.post("version/list", {}),
        "gc": client.http.post(f"/tiltyard/v1/table/{client.table}/gc", json={"dry_run": True}),
    }
    statuses = {name: response.status_code for name, response in responses.items()}
    assert statuses == dict.fromkeys(responses, 400), responses
    assert client.post("count_rows", {}).json() == 63
    client.http.close()


@pytest.mark.parametrize("kind", ["a link", "a link to a folder", "a folder", "a pipe"])
def test_history_with_three_gigabytes_behind_another_name_is_not_read(
    victim: ServerProcess, tmp_path: Path, kind: str
) -> None:
    client = Client(victim.url, managed=False)
    for _ in range(20):
        assert client.post("insert", stream(ROWS)).status_code == 200
    manifest, elsewhere = client.final(5), tmp_path / "elsewhere"
    large = sparse(elsewhere / manifest.name, 3 * GIB, FOOTER.pack(0, 0, 2, b"LANC"))
    if kind == "a link":
        manifest.unlink()
        manifest.symlink_to(large)
    elif kind == "a link to a folder":
        (manifest.parent / "more").symlink_to(elsewhere)
    elif kind == "a folder":
        sparse(manifest.parent / "more" / manifest.name, 3 * GIB, FOOTER.pack(0, 0, 2, b"LANC"))
    else:
        manifest.unlink()
        os.mkfifo(manifest)
    response = client.post("version/list", {})
    assert (response.status_code, response.json()["code"]) == (400, 13), response.text
    assert client.post("count_rows", {}).json() == 63
    client.http.close()


@pytest.mark.parametrize("kind", ["a link", "a link to a folder", "a pipe"])
def test_tag_behind_another_name_is_not_read(client: Client, tmp_path: Path, kind: str) -> None:
    tags = client.folder / "_refs" / "tags"
    sparse(client.folder / "_refs" / "nothing", 1).unlink()
    tags.mkdir()
    large = sparse(tmp_path / "elsewhere" / "large.json", 3 * GIB)
    if kind == "a link":
        (tags / "large.json").symlink_to(large)
    elif kind == "a link to a folder":
        (tags / "more").symlink_to(large.parent)
    else:
        os.mkfifo(tags / "large.json")
    response = client.post("tags/list", {})
    assert (response.status_code, response.json()["code"]) == (400, 13), response.text
    assert client.post("count_rows", {}).text == "3"


@pytest.mark.parametrize("kind", ["tags", "branches"])
def test_tag_or_branch_of_three_gigabytes_is_not_read(client: Client, kind: str) -> None:
    sparse(client.folder / "_refs" / "nothing", 1).unlink()
    sparse(client.folder / "_refs" / kind / "large.json", 3 * GIB)
    requests: list[tuple[str, dict[str, Any]]] = [
        ("tags/list", {}),
        ("tags/version", {"tag": "large"}),
        ("tags/update", {"tag": "large", "version": 1}),
        ("tags/delete", {"tag": "large"}),
        ("branches/list", {}),
        ("branches/create", {"name": "other"}),
        ("branches/delete", {"name": "large"}),
        ("version/delete", {"ranges": [{"start_version": 1, "end_version": 2}]}),
    ]
    for action, body in requests:
        response = client.post(action, body)
        assert (response.status_code, response.json()["code"]) == (400, 13), (action, response.text)
        assert "max_manifest_bytes" in response.json()["error"], (action, response.text)
    assert client.post("count_rows", {}).text == "3"
    # To create a tag reads no others.
    response = client.post("tags/create", {"tag": "large", "version": 1})
    assert response.status_code == (409 if kind == "tags" else 200), response.text
    assert client.post("tags/create", {"tag": "other", "version": 1}).status_code == 200
