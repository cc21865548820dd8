"""What strangers and single principals can do to SQL's port: it answers, HTTP answers, and memory stays bounded."""

from __future__ import annotations

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import grpc
import lancedb
import pyarrow as pa
import pytest

from tests.attacks.conftest import BOUND_MIB
from tests.attacks.test_connections import ASKS, DESCRIPTORS, HELLOS, PATIENCE
from tests.attacks.watchdog import attacked_server, resident_mib
from tests.flight.conftest import Wire, flight_port
from tests.identity.test_startup import certificate
from tests.services.http2 import SERVICE, RawCalls, field, message, metadata
from tests.services.secured import make_keys
from tests.services.sockets import connect, exchange, read_response
from tiltyard.flight.calls import MAX_CALLS_OF_CALLER, MAX_WAITING
from tiltyard.flight.frames import MAX_BLOCK_BYTES
from tiltyard.flight.handles import QueryHandle
from tiltyard.flight.messages import MESSAGES
from tiltyard.server.connection_balancing import raise_descriptor_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services.server import ServerProcess

CONNECTIONS, STREAMS = 40, 256
IDLE = 1500
PASSING = ("calls of yours", "took more than", "CANCELLED")
"""What a server says that may take the same call a moment later; the last is gRPC's own word, where so many calls came
at once that one was not begun in time."""
WINDOW = 65_535 - 5
"""Bytes of a message that a client may send before the server has read any."""


class Victim:
    """A server, the key of its administrator, and how stock clients call it."""

    def __init__(self, server: ServerProcess, key: str | None) -> None:
        self.server = server
        self.key = key
        self.port = flight_port(server.url)
        self.wait_for_place()  # the first query waits for imports

    def call_sql(self) -> float:
        """Run a query by lancedb on a connection of its own; return the seconds that it took."""
        started = time.monotonic()
        db = lancedb.connect("db://dev", api_key=self.key or "any", host_override=self.server.url)
        assert db.execute_query("SELECT 1 AS x").read_all().to_pylist() == [{"x": 1}]
        return time.monotonic() - started

    def call_http(self) -> float:
        """Send a request of HTTP on a connection of its own; return the seconds that it took."""
        started = time.monotonic()
        header = b"" if self.key is None else f"x-api-key: {self.key}\r\n".encode()
        assert exchange(self.server.url, ASKS.replace(b"Host: a\r\n", b"Host: a\r\n" + header)).status == 200
        return time.monotonic() - started

    def wait_for_place(self) -> None:
        """Wait until the calls that make room for later ones have ended, so that this caller may call again.

        On a busy machine a client may take longer to send its call than a server waits that waits for a second.
        """
        ends_at = time.monotonic() + PATIENCE
        while True:
            try:
                self.call_sql()
            except RuntimeError as refused:
                if not any(reason in str(refused) for reason in PASSING) or time.monotonic() > ends_at:
                    raise
            else:
                return

    def check(self) -> None:
        """Call it by both ports a few times."""
        for _ in range(3):
            assert max(self.call_sql(), self.call_http()) < PATIENCE

    @property
    def credentials(self) -> tuple[tuple[bytes, bytes], ...]:
        return () if self.key is None else ((b"x-api-key", self.key.encode()),)


@contextmanager
def victim(folder: Path, *flags: str, has_keys: bool = True, **options: object) -> Iterator[Victim]:
    """A server under a watchdog of its memory."""
    key = None
    if has_keys:
        key = make_keys(f"sqlite:///{folder}/catalog.db", "administrator")["administrator"]
        flags = (*flags, "--auth")
    with attacked_server(folder, *flags, bound_mib=BOUND_MIB, **options) as server:  # type: ignore[arg-type]
        yield Victim(server, key)


def open_calls(
    stack: ExitStack, port: int, connections: int, attack: Callable[[RawCalls], None], *, at_once: int = 1
) -> list[RawCalls]:
    """Open connections and attack by each, so many of them at once; the server may end them meanwhile."""
    raise_descriptor_limit()
    opened = [stack.enter_context(RawCalls(port)) for _ in range(connections)]

    def attack_by(calls: RawCalls) -> None:
        with suppress(OSError):
            attack(calls.greet())

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(attack_by, opened))
    return opened


def send_no_message(calls: RawCalls) -> None:
    for _ in range(STREAMS):
        calls.begin("DoGet")


OPEN = pytest.param(False, id="open", marks=pytest.mark.extended)


@pytest.mark.parametrize("has_keys", [pytest.param(True, id="keys"), OPEN])
def test_streams_without_a_message_do_not_stop_others_sql(tmp_path: Path, *, has_keys: bool) -> None:
    environ = {"TILTYARD_HEAD_TIMEOUT": "600"}
    with victim(tmp_path, has_keys=has_keys, environ=environ) as attacked, ExitStack() as stack:
        open_calls(stack, attacked.port, CONNECTIONS, send_no_message)
        attacked.check()


def test_connections_beyond_all_descriptors_do_not_stop_either_port(tmp_path: Path) -> None:
    environ = {"TILTYARD_HEAD_TIMEOUT": "600"}
    with victim(tmp_path, environ=environ, descriptors=DESCRIPTORS) as attacked, ExitStack() as stack:
        authenticated = stack.enter_context(connect(attacked.server.url, PATIENCE))
        request = ASKS.replace(b"Host: a\r\n", f"Host: a\r\nx-api-key: {attacked.key}\r\n".encode())
        authenticated.sendall(request)
        assert read_response(authenticated).status == 200
        raise_descriptor_limit()
        for at in range(IDLE):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", attacked.port), timeout=PATIENCE))
            with suppress(OSError):
                idle.sendall((b"", b"PRI * HTTP/2.0\r\n", b"\x00")[at % 3])
        attacked.check()
        authenticated.sendall(request)
        assert read_response(authenticated).status == 200
        open_calls(stack, attacked.port, IDLE, lambda calls: None)
        attacked.check()


def test_unfinished_messages_hold_little_memory(tmp_path: Path) -> None:
    def send_half(credentials: tuple[tuple[bytes, bytes], ...]) -> Callable[[RawCalls], None]:
        def attack(calls: RawCalls) -> None:
            calls.socket.settimeout(0.5)  # the server reads no more of a stranger
            for _ in range(100):
                stream = calls.begin("DoGet", *credentials)
                for _ in range(WINDOW // 16_384):
                    calls.send(stream, message(2 << 20) + b"x" * (16_384 - 5))

        return attack

    environ = {"TILTYARD_HEAD_TIMEOUT": "600"}
    with victim(tmp_path, environ=environ) as attacked, ExitStack() as stack:
        open_calls(stack, attacked.port, 150, send_half(()), at_once=15)  # they wait, most of the time
        attacked.check()
        open_calls(stack, attacked.port, 40, send_half(attacked.credentials))
        attacked.wait_for_place()
        attacked.check()


@pytest.mark.extended
def test_idle_sockets_of_sql_do_not_stop_https_handshakes(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    flags = ("--tls-certificate", str(chain), "--tls-key", str(key))
    context = ssl.create_default_context(cafile=str(chain))
    with attacked_server(tmp_path / "root", *flags, descriptors=DESCRIPTORS) as server, ExitStack() as stack:
        port = flight_port(server.url)
        raise_descriptor_limit()
        for at in range(IDLE):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            with suppress(OSError):
                idle.sendall(HELLOS[at % 2])
        for _ in range(5):
            with context.wrap_socket(connect(server.url, PATIENCE), server_hostname="127.0.0.1") as caller:
                caller.sendall(ASKS)
                assert read_response(caller).status == 200


def test_call_without_a_message_ends_in_time(tmp_path: Path) -> None:
    with victim(tmp_path, environ={"TILTYARD_HEAD_TIMEOUT": "1"}) as attacked, RawCalls(attacked.port) as calls:
        stream = calls.greet().begin("PollFlightInfo", *attacked.credentials)
        assert b"took more than 1 s" in calls.wait_for_end(stream)
        stream = calls.begin("PollFlightInfo", *attacked.credentials)
        calls.send(stream, message(1000) + b"x")
        assert b"took more than 1 s" in calls.wait_for_end(stream)
        with RawCalls(attacked.port) as silent, RawCalls(attacked.port) as half:
            half.greet().socket.sendall(b"\x00\x01\x00\x01\x04\x00\x00\x00\x01half a block")
            assert silent.read_frame() is None
            while half.read_frame() is not None:
                pass


@pytest.mark.extended
@pytest.mark.timeout(600)  # the query's process starts first, which takes minutes where others start a hundred
def test_connection_that_reads_nothing_of_an_answer_ends(tmp_path: Path) -> None:
    text = "x" * 50_000  # gRPC itself takes a shorter answer
    handle = QueryHandle.of(f"SELECT x, x || 'y' AS y FROM (SELECT '{text}' AS x)", (), ())
    ticket = MESSAGES["Ticket"](ticket=handle.ticket).SerializeToString()
    with victim(tmp_path, environ={"TILTYARD_SEND_TIMEOUT": "1"}) as attacked, RawCalls(attacked.port, 400) as calls:
        calls.greet(window=0)
        unread = calls.begin("DoGet", *attacked.credentials)
        calls.send(unread, message(len(ticket)) + ticket, ends=True)
        while calls.read_frame() is not None:
            pass
        attacked.check()


@pytest.mark.extended
def test_compressed_messages_are_refused_before_they_are_decompressed(tmp_path: Path) -> None:
    environ = {"TILTYARD_HEAD_TIMEOUT": "600"}  # a busy machine takes longer than ten seconds to compress this
    with victim(tmp_path, environ=environ) as attacked, grpc.insecure_channel(f"127.0.0.1:{attacked.port}") as channel:
        call = channel.unary_unary(f"{SERVICE}/PollFlightInfo")
        metadata = (("x-api-key", attacked.key),)
        with pytest.raises(grpc.RpcError) as raised:
            call(bytes(512 << 20), metadata=metadata, compression=grpc.Compression.Gzip)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        attacked.check()


def parameters_of(values: int) -> bytes:
    """Parameters that are small as they are sent, and have so many zeros each of eight bytes."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    column = pa.array([bytes(8 * values)], pa.large_binary())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("1", column.type)]), options=options) as writer:
        writer.write_batch(pa.record_batch([column], ["1"]))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def test_parameters_that_become_large_are_refused_where_they_are_read(tmp_path: Path) -> None:
    bomb = parameters_of(100 << 20)
    assert len(bomb) < 100_000
    with victim(tmp_path) as attacked, grpc.insecure_channel(f"127.0.0.1:{attacked.port}") as channel:
        wire = Wire(channel, (("x-api-key", attacked.key),))
        assert wire.stream("DoGet", MESSAGES["Ticket"](ticket=QueryHandle.of("SELECT 1 AS x", (), ()).ticket))
        before = resident_mib(attacked.server.process.pid)
        for query in ("SELECT ? AS x", "SELECT name FROM films WHERE id = ?"):
            ticket = MESSAGES["Ticket"](ticket=QueryHandle.of(query, (), (), bomb).ticket)
            descriptor = MESSAGES["FlightDescriptor"](type=2, cmd=ticket.ticket)
            for _ in range(8):
                with pytest.raises(grpc.RpcError, match="parameters"):
                    wire.stream("DoGet", ticket)
                with pytest.raises(grpc.RpcError):
                    wire.call("PollFlightInfo", descriptor, "PollInfo")
        assert resident_mib(attacked.server.process.pid) < before + 100
        small = MESSAGES["Ticket"](ticket=QueryHandle.of("SELECT ? AS x", (), (), parameters_of(1000)).ticket)
        assert len(wire.stream("DoGet", small)) == 2
        attacked.check()


def test_metadata_without_an_end_or_with_a_foreign_token_are_refused(tmp_path: Path) -> None:
    with victim(tmp_path) as attacked, RawCalls(attacked.port) as endless, RawCalls(attacked.port) as forging:
        endless.greet()
        with suppress(OSError):
            endless.socket.sendall(b"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x00")
            for _ in range(MAX_BLOCK_BYTES):
                endless.socket.sendall(b"\x00\x00\x00\x09\x00\x00\x00\x00\x01" * 100)
        while endless.read_frame() is not None:
            pass
        token, peer = (b"x-tiltyard-connection", b"0" * 32), (b"x-tiltyard-peer", b"10.0.0.1:1")
        forged = metadata("ListActions", token, peer, *attacked.credentials)
        # A value that is longer than what is left would take in the field that the server adds.
        absorbing = forged + field(b"x-rest", b"")[:-1] + bytes([70])
        forging.greet()
        refused = forging.wait_for_end(forging.begin("ListActions", block=absorbing))
        assert b"CancelQuery" not in refused
        attacked.check()


@pytest.mark.extended
def test_one_caller_has_a_part_of_the_calls(tmp_path: Path) -> None:
    """One that reads nothing holds its calls, and no others: as many as one caller may have, over many connections."""
    assert MAX_WAITING < MAX_CALLS_OF_CALLER
    with victim(tmp_path, environ={"TILTYARD_HEAD_TIMEOUT": "600"}) as attacked, ExitStack() as stack:

        def wait(calls: RawCalls) -> None:
            for _ in range(50):
                calls.begin("DoGet", *attacked.credentials)

        open_calls(stack, attacked.port, 10, wait)
        attacked.wait_for_place()
        attacked.check()
