"""Large bodies over TLS and without: `python -m bench.encrypted`.

An answer of 500 MB and an upload of 1 GB by one connection, to Tiltyard (one process) with a certificate and without,
in turn; the client encrypts and decrypts on the same cores. RestAdapter has no TLS. A plain socket with Python's `ssl`
on both sides, which sends zeros, is the limit.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import ssl
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.services.certificates import loopback_certificate

from bench import data
from bench.data import LARGE
from bench.environment import ANSWER_ROWS
from bench.load import Address
from bench.servers import Server, tiltyard
from bench.wire import ARROW, JSON, of_table

UPLOAD_BYTES = 1_000_000_000
PIECE = 1 << 20
TIMEOUT = 600.0


def connect(address: Address, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    """Open a connection, encrypted with a context."""
    if context is None:
        return http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT)
    return http.client.HTTPSConnection(address.host, address.port, timeout=TIMEOUT, context=context)


def checked(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    """Return the response. Raises RuntimeError unless it is a success."""
    if not 200 <= response.status < 300:
        raise RuntimeError(f"{response.status}: {response.read(500)!r}")
    return response


def call(address: Address, context: ssl.SSLContext | None, path: str, body: object) -> None:
    """POST JSON. Raises RuntimeError unless it succeeds."""
    connection = connect(address, context)
    connection.request("POST", path, json.dumps(body), {"Content-Type": JSON})
    checked(connection.getresponse()).read()
    connection.close()


def download(address: Address, context: ssl.SSLContext | None) -> float:
    """Read the answer; return the bytes per second."""
    body = {"vector": {"single_vector": []}, "k": ANSWER_ROWS, "columns": {"column_names": ["id", "name", "vector"]}}
    connection = connect(address, context)
    started_at = time.perf_counter()
    connection.request("POST", of_table(LARGE, "query"), json.dumps(body), {"Content-Type": JSON})
    response, size, buffer = checked(connection.getresponse()), 0, bytearray(PIECE)
    while count := response.readinto(buffer):
        size += count
    connection.close()
    return size / (time.perf_counter() - started_at)


def upload(address: Address, context: ssl.SSLContext | None, file: Path, name: str) -> float:
    """Create a table of a file; return the bytes per second until the answer."""
    connection = connect(address, context)
    started_at = time.perf_counter()
    with file.open("rb") as source:
        connection.request(
            "POST",
            of_table(name, "create"),
            source,
            {"Content-Type": ARROW, "Content-Length": str(file.stat().st_size)},
        )
    checked(connection.getresponse()).read()
    seconds = time.perf_counter() - started_at
    connection.close()
    call(address, context, of_table(name, "drop"), {})
    return file.stat().st_size / seconds


def limit(server_context: ssl.SSLContext, context: ssl.SSLContext, size: int) -> float:
    """Send bytes from one thread to another over TLS; return the bytes per second."""
    listener = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        with server_context.wrap_socket(listener.accept()[0], server_side=True) as connection:
            piece = bytes(PIECE)
            for _ in range(size // PIECE):
                connection.sendall(piece)

    sender = threading.Thread(target=send)
    sender.start()
    received, buffer = 0, bytearray(PIECE)
    with context.wrap_socket(socket.create_connection(listener.getsockname()), server_hostname="127.0.0.1") as client:
        started_at = time.perf_counter()
        while count := client.recv_into(buffer):
            received += count
        seconds = time.perf_counter() - started_at
    sender.join()
    listener.close()
    return received / seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder that keeps the data for the next run")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-tls-", dir=options.work)))
        work = options.work or folder
        source, file = data.large_table(work, ANSWER_ROWS), data.stream_file(work, UPLOAD_BYTES)
        files = loopback_certificate(folder)
        context = ssl.create_default_context(cafile=str(files.certificate))
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_context.load_cert_chain(files.certificate, files.key)
        sides: list[tuple[str, Server, ssl.SSLContext | None]] = []
        for name, flags, secure in (
            ("plain", (), None),
            ("TLS", ("--tls-certificate", str(files.certificate), "--tls-key", str(files.key)), context),
        ):
            root = folder / name
            root.mkdir()
            server = tiltyard(root, folder / f"{name}.log", 1, further=flags)
            stack.callback(server.stop)
            call(server.address, secure, f"/v1/namespace/{data.NAMESPACE}/create", {})
            data.link(source, root / "registered.lance")
            call(server.address, secure, of_table(LARGE, "register"), {"location": str(root / "registered.lance")})
            sides.append((name, server, secure))
        print("| | answer of 500 MB | CPU | upload of 1 GB | CPU |\n|---|---|---|---|---|")
        speeds: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for number in range(options.rounds):
            for name, server, secure in sides:
                before = server.cpu_seconds()
                speed = download(server.address, secure)
                middle = server.cpu_seconds()
                speeds.setdefault((name, "answer"), []).append((speed, middle - before))
                speed = upload(server.address, secure, file, f"{data.NAMESPACE}$upload{number}")
                speeds.setdefault((name, "upload"), []).append((speed, server.cpu_seconds() - middle))
        for name, _, _ in sides:
            cells = [
                f"{median(speed for speed, _ in speeds[name, what]) / 1e6:,.0f} MB/s | "
                f"{median(cpu for _, cpu in speeds[name, what]):.2f} s"
                for what in ("answer", "upload")
            ]
            print(f"| {name} | {' | '.join(cells)} |")
        raw = median(limit(server_context, context, 512 << 20) for _ in range(options.rounds))
        print(f"| TLS between two sockets of Python in one process | {raw / 1e6:,.0f} MB/s | | | |")


if __name__ == "__main__":
    main()
