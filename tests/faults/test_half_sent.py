"""Bodies that break off: no version, no files, and the server goes on."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tests.faults.conftest import ROWS, Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.sockets import connect, read_response
from tests.services.wire import Wire, stream

LARGE = pa.table({"id": pa.array(range(300_000), pa.int64()), "text": ["x" * 10] * 300_000})
"""Several megabytes in many batches: it streams to the thread that writes."""


def batches(table: pa.Table, rows: int) -> tuple[bytes, list[int]]:
    """A stream of many batches, and where each of them ends."""
    sink = pa.BufferOutputStream()
    ends = []
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
            ends.append(sink.tell())
    return bytes(sink.getvalue()), ends


SMALL_BODY, SMALL_ENDS = batches(ROWS, 20)
LARGE_BODY, LARGE_ENDS = batches(LARGE, 20_000)

CUTS = {
    "nothing sent": (SMALL_BODY, 0),
    "inside the schema": (SMALL_BODY, 50),
    "small, inside a batch": (SMALL_BODY, SMALL_ENDS[2] - 7),
    "small, between batches": (SMALL_BODY, SMALL_ENDS[2]),
    "small, before the end mark": (SMALL_BODY, SMALL_ENDS[-1]),
    "large, inside a batch": (LARGE_BODY, LARGE_ENDS[9] - 1000),
    "large, between batches": (LARGE_BODY, LARGE_ENDS[9]),
    "large, before the end mark": (LARGE_BODY, LARGE_ENDS[-1]),
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("half")
    installation = Installation(folder / "root", f"sqlite:///{folder / 'catalog.db'}")
    installation.start()
    yield installation
    [server] = installation.servers
    assert server.stop() == 0
    assert not [line for line in server.log if " ERROR " in line or "Traceback" in line], "".join(server.log)


@pytest.fixture(scope="module")
def server(installation: Installation) -> ServerProcess:
    return installation.servers[0]


@pytest.fixture(scope="module")
def wire(server: ServerProcess) -> Iterator[Wire]:
    with Wire(server.url) as client:
        client.good(client.table(["t"], "create", stream(ROWS)))
        client.good(client.table(["d"], "declare"))
        yield client


@pytest.fixture(scope="module")
def before(installation: Installation, wire: Wire) -> Iterator[set[str]]:
    """The files before the first upload: taken between two, they could hold some of the former that go only then."""
    files = installation.files()
    yield files
    wait_until(lambda: installation.files() == files, "the files are as before, at the end of all uploads")


def head(path: str, length: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def send_and_leave(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.close()


ACTIONS = [
    "/v1/table/new/create",
    "/v1/table/t/insert",
    "/v1/table/t/insert?mode=overwrite",
    "/v1/table/d/insert",
    "/v1/table/t/create?mode=overwrite",
    "/v1/table/t/merge_insert?on=id&when_not_matched_insert_all=true",
]


def check_unchanged(installation: Installation, wire: Wire, before: set[str]) -> None:
    """The table is what it was, no other one came to be, and no file is left of the attempt."""
    wait_until(lambda: installation.files() == before, "the files are as before")
    assert wire.good(wire.table(["t"], "describe", query={"load_detailed_metadata": "true"}))["version"] == 1
    assert wire.table(["t"], "count_rows").text == "100"
    assert wire.table(["new"], "exists").status_code == 404
    description = wire.good(wire.table(["d"], "describe", query={"check_declared": "true"}))
    assert description["is_only_declared"] is True
    wait_until(lambda: not installation.sql("SELECT location FROM doomed_folders"), "no folder waits for its deletion")


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("path", ACTIONS)
def test_upload_whose_client_leaves_changes_nothing(
    installation: Installation, server: ServerProcess, wire: Wire, before: set[str], path: str, cut: str, framing: str
) -> None:
    body, end = CUTS[cut]
    if framing == "length":
        request = head(path, f"Content-Length: {len(body)}") + body[:end]
    else:
        request = head(path, "Transfer-Encoding: chunked") + (chunk(body[:end]) if end else b"")
    send_and_leave(connect(server.url), request)
    check_unchanged(installation, wire, before)


@pytest.mark.parametrize("cut", [name for name, (_, end) in CUTS.items() if end])  # no byte at all is an empty table
@pytest.mark.parametrize("path", ACTIONS)
def test_upload_that_ends_early_by_its_own_framing_is_400(
    installation: Installation, server: ServerProcess, wire: Wire, before: set[str], path: str, cut: str
) -> None:
    """A proxy that loses its source may close the chunked body as if all were well."""
    body, end = CUTS[cut]
    with connect(server.url) as connection:
        connection.sendall(
            head(path, "Transfer-Encoding: chunked") + (chunk(body[:end]) if end else b"") + b"0\r\n\r\n"
        )
        response = read_response(connection)
    assert response.status == 400, response
    response.check_error()
    check_unchanged(installation, wire, before)


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize(
    "body, end", [(SMALL_BODY, SMALL_ENDS[2]), (LARGE_BODY, LARGE_ENDS[9])], ids=["small", "large"]
)
def test_upload_with_a_broken_chunk_changes_nothing(
    installation: Installation, server: ServerProcess, wire: Wire, before: set[str], path: str, body: bytes, end: int
) -> None:
    with connect(server.url) as connection:
        connection.sendall(
            head(path, "Transfer-Encoding: chunked") + chunk(body[:end]) + b"no length\r\n" + body[end:][:99]
        )
        response = read_response(connection)
    assert response.status in (0, 400), response
    check_unchanged(installation, wire, before)


def test_upload_corrupt_in_a_late_batch_is_400_and_changes_nothing(
    installation: Installation, wire: Wire, before: set[str]
) -> None:
    body = bytearray(LARGE_BODY)
    body[LARGE_ENDS[9] : LARGE_ENDS[9] + 64] = b"\xff" * 64
    for path in ACTIONS:
        response = wire.http.post(path, content=bytes(body))
        assert (response.status_code, response.json()["code"]) == (400, 13), response.text
        check_unchanged(installation, wire, before)


COUNT = b"POST /v1/table/t/count_rows HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


def framed(path: str, body: bytes, framing: str) -> bytes:
    """A whole request."""
    if framing == "length":
        return head(path, f"Content-Length: {len(body)}") + body
    return head(path, "Transfer-Encoding: chunked") + chunk(body) + b"0\r\n\r\n"


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_upload_followed_by_a_request_on_its_connection_answers_both(
    small_installation: Installation, talk: Callable[[ServerProcess], Wire], framing: str
) -> None:
    """However much of the body was read, what follows it is the next request."""
    server = small_installation.start()
    wire = talk(server)
    wire.good(wire.table(["t"], "create", stream(ROWS)))
    renamed = stream(LARGE.rename_columns(["id", "other"]), 20_000)
    statuses = {"/v1/table/new/create?mode=overwrite": 200, "/v1/table/t/insert": 400, "/v1/table/none/insert": 404}
    with connect(server.url) as connection:
        for path, status in [*statuses.items()] * 2:
            connection.sendall(framed(path, renamed, framing))
            assert read_response(connection).status == status
            connection.sendall(COUNT)
            assert read_response(connection).body == b"100"


def read_bodies(connection: socket.socket, count: int) -> list[bytes]:
    """The bodies of so many answers, one after the other."""
    data, bodies = b"", list[bytes]()
    while len(bodies) < count:
        part = connection.recv(1 << 16)
        assert part, f"closed after {len(bodies)} answers"
        data += part
        while (end := data.find(b"\r\n\r\n")) >= 0:
            length = int(re.search(rb"content-length: (\d+)", data[:end])[1])  # type: ignore[index]  # all have one
            if len(data) < end + 4 + length:
                break
            bodies.append(data[end + 4 : end + 4 + length])
            data = data[end + 4 + length :]
    return bodies


@pytest.mark.parametrize("rows", [3, 10_000], ids=["small", "several reads long"])
def test_requests_sent_without_waiting_are_answered_in_order_each_with_its_own_body(
    small_installation: Installation, talk: Callable[[ServerProcess], Wire], rows: int
) -> None:
    server = small_installation.start()
    wire = talk(server)
    wire.good(wire.table(["t"], "create", stream(ROWS.schema)))
    row = pa.table({"id": pa.array(range(rows), pa.int64()), "text": ["some words"] * rows})
    insert = framed("/v1/table/t/insert", stream(row), "length")
    with connect(server.url) as connection:
        sending = threading.Thread(target=connection.sendall, args=((insert + COUNT) * 5,))
        sending.start()
        bodies = read_bodies(connection, 10)
        sending.join()
    assert [int(body) for body in bodies[1::2]] == [rows * number for number in range(1, 6)]
