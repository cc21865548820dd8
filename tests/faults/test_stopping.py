"""SIGTERM: running requests are finished or refused cleanly, within ten seconds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.faults.conftest import MANY_BATCHES, ROWS, Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.sockets import connect, read_response
from tests.services.wire import Wire, stream

Talk = Callable[[ServerProcess], Wire]

MAX_STOP_SECONDS = 45
"""Ten are guaranteed, and a busy machine adds some. A stalled upload alone would delay the stop by 60."""


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.extended), "2"])
def test_stopping_server_finishes_running_uploads(small_installation: Installation, workers: str) -> None:
    server = small_installation.start("--workers", workers)
    body = stream(pa.table({"id": pa.array(range(500_000), pa.int64())}), MANY_BATCHES)
    connection = connect(server.url)
    head = f"POST /v1/table/t/create HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection.sendall(head + body[: 3 << 20])
    wait_until(small_installation.folders, "the upload is being written")
    server.process.send_signal(signal.SIGTERM)
    connection.sendall(body[3 << 20 :])
    response = read_response(connection)
    assert response.status == 200, response
    assert server.stop(MAX_STOP_SECONDS) == 0
    server.start()
    with Wire(server.url) as wire:
        assert wire.table(["t"], "count_rows").text == "500000"


@pytest.mark.extended
def test_stopping_server_does_not_wait_for_stalled_uploads(small_installation: Installation, talk: Talk) -> None:
    server = small_installation.start()
    wire = talk(server)
    wire.good(wire.table(["t"], "create", stream(ROWS)))
    body = stream(pa.table({"id": pa.array(range(500_000), pa.int64()), "text": ["x"] * 500_000}), MANY_BATCHES)
    connections = [connect(server.url) for _ in range(3)]
    for connection, path in zip(connections, ("new/create", "t/insert", "t/insert?mode=overwrite"), strict=True):
        head = f"POST /v1/table/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body[: 2 << 20])
    wait_until(lambda: len(small_installation.folders()) == 2, "the uploads are being written")
    assert server.stop(MAX_STOP_SECONDS) == 0
    for connection in connections:
        response = read_response(connection)
        assert (response.status, response.json()["code"]) == (503, 17)
        connection.close()
    server.start()
    small_installation.wait_until_swept()
    client = talk(server)
    assert client.table(["t"], "count_rows").text == "100"
    assert client.table(["new"], "exists").status_code == 404


def test_stopping_server_finishes_running_queries(small_installation: Installation, talk: Talk) -> None:
    server = small_installation.start()
    wire = talk(server)
    wide = pa.table({"id": pa.array(range(200_000), pa.int64()), "text": ["word " * 20] * 200_000})
    wire.good(wire.table(["t"], "create", stream(wide)))
    body = {"k": 200_000, "vector": {"single_vector": []}, "filter": "text LIKE '%word word%' AND id % 3 >= 0"}
    with ThreadPoolExecutor(4) as pool:
        queries = [pool.submit(talk(server).table, ["t"], "query", body) for _ in range(4)]
        wait_until(lambda: any(query.running() for query in queries), "queries run")
        status = server.stop(MAX_STOP_SECONDS)
        outcomes = [query.exception() or query.result() for query in queries]
    assert status == 0
    for outcome in outcomes:  # one that had not reached the server yet is refused by the closed port
        if not isinstance(outcome, BaseException):
            assert pa.ipc.open_file(outcome.content).read_all().num_rows == 200_000


@pytest.mark.extended
def test_stopping_server_releases_its_jobs(small_installation: Installation, talk: Talk) -> None:
    """A second server resumes them at once, without waiting for a lease to expire."""
    import numpy as np

    server = small_installation.start()
    wire = talk(server)
    vectors = np.random.default_rng(1).random((30_000, 64), np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 64)
    wire.good(wire.table(["t"], "create", stream(pa.table({"vector": column}))))
    request = {"column": "vector", "index_type": "IVF_PQ", "num_partitions": 64, "num_sub_vectors": 16}
    transaction = wire.good(wire.table(["t"], "create_index", request))["transaction_id"]
    status = f"SELECT status FROM transactions WHERE id = '{transaction}'"
    wait_until(lambda: small_installation.sql(status) == [("Running",)], "the build has begun")
    assert server.stop(MAX_STOP_SECONDS) == 0
    assert small_installation.sql(status)[0][0] in ("Queued", "Succeeded")
    small_installation.start()
    wait_until(lambda: small_installation.sql(status) == [("Succeeded",)], "the next server has built it", 240)


@pytest.mark.extended
def test_server_whose_first_process_is_killed_leaves_none_that_keeps_its_port(
    small_installation: Installation, talk: Talk
) -> None:
    server = small_installation.start("--workers", "2")
    talk(server).good(talk(server).table(["t"], "create", stream(ROWS)))
    wait_until(lambda: len(server.workers) == 2, "both processes are there")
    workers = server.workers
    server.process.kill()
    server.process.wait()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "they have ended")
    server.start()
    assert talk(server).table(["t"], "count_rows").text == "100"


@pytest.mark.extended
def test_server_whose_first_process_is_killed_starts_again_at_once(
    small_installation: Installation, talk: Talk
) -> None:
    """Its child processes may keep the port for a while: one is suspended with it until the new server waits."""
    server = small_installation.start("--workers", "2")
    wait_until(lambda: len(server.workers) == 2, "both processes are there")
    orphans = server.workers
    os.kill(orphans[0], signal.SIGSTOP)
    server.process.kill()
    server.process.wait()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(server.start)
        wait_until(lambda: starting.done() or any("is in use" in line for line in server.log), "the new one waits")
        os.kill(orphans[0], signal.SIGCONT)
        starting.result()
    assert talk(server).http.get("/health/ready").status_code == 200
    wait_until(lambda: not any(Path(f"/proc/{orphan}").exists() for orphan in orphans), "the old ones have ended")
    assert server.stop(MAX_STOP_SECONDS) == 0
